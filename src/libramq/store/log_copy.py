"""The log copy: appends the master's bytes to a slave's log, chooses where an empty log begins, and cuts a
diverged one.

    bytes ─► whole records and blanks ─► the log, as they came ─► units, from the records themselves

An incomplete record waits in memory, so the log always ends at the end of a record. An empty copy begins
where the master begins to send, at the start of a file.

Where the logs diverge, the slave's is cut (`cut_log`):

    kept aside ─► recovery point lowered, on the disk ─► queues cut ─► log cut

A crash between any two steps leaves a log that recovery accepts: recovery begins at the lowered point, and
the part not yet cut is still valid. The slave compares the logs again before it copies.

Upstream: DefaultMessageStore.appendToCommitLog, ReputMessageService.
"""

from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from libramq.errors import RemoteProtocolError, StoreCorrupt, StoreError
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_BYTES_MAX,
    RECORD_BYTES_MIN,
    RecordHead,
    has_good_crc,
    peek_record,
)
from libramq.store.flush import RecoveryPointWriter
from libramq.store.log.commit_log import CommitLog
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, ConsumeQueue, unit_of
from libramq.store.queues.consume_queue_table import ConsumeQueueTable
from libramq.store.queues.light_queues import QueuePlace
from libramq.store.recovery.kept_aside import keep_aside

log = get_logger(__name__)


class LogCopy:
    """Appends to a slave's log.

    may_append: whether the store accepts data. added: called with the heads of stored records and the new
    ends of their queues. failed: called with the reason if the disk refuses.
    """

    def __init__(
        self,
        log_: CommitLog,
        queues: ConsumeQueueTable,
        *,
        may_append: Callable[[], bool],
        added: Callable[[list[RecordHead], dict[ConsumeQueue, int]], None],
        failed: Callable[[str], None],
    ) -> None:
        self._log = log_
        self._queues = queues
        self._may_append = may_append
        self._added = added
        self._failed = failed
        self._partial = bytearray()
        #: Topics that got their first queue here; the reader clears the set.
        self.new_topics: set[str] = set()
        #: Records that are in the log and have no unit yet.
        self._undispatched: deque[tuple[RecordHead, bool]] = deque()

    @property
    def is_empty(self) -> bool:
        """Return whether the log is empty, so that the master chooses where it begins."""
        return not self._log.segments.starts and not self._partial

    @property
    def end(self) -> int:
        """Return the offset after the last whole record."""
        return self._log.end

    @property
    def position(self) -> int:
        """Return the offset of the next byte to receive."""
        return self._log.end + len(self._partial)

    @property
    def is_refused(self) -> bool:
        """Return whether the store currently refuses data, so that there is no point in requesting more."""
        return not self._may_append()

    def forget_partial(self) -> None:
        """Drop an incomplete record: the connection that brought it has ended."""
        self._partial.clear()

    def append(self, offset: int, data: bytes) -> None:
        """Append bytes of the master's log.

        Raises RemoteProtocolError if they do not fit this log; StoreError if the store or the disk refuses.
        """
        if not self._may_append():
            raise StoreError("the store accepts no data")
        if self.is_empty:
            self._begin_at(offset)
        if offset != self.position:
            raise RemoteProtocolError(
                f"the master sent its log from {offset}, but the slave's ends at {self.position}"
            )
        self._partial += data
        data, at, segments = bytes(self._partial), 0, self._log.segments
        try:
            self._dispatch_all()
            while at < len(data):
                file_end = segments.start_of(self._log.end) + segments.file_size
                stretch = whole_records(data, at, self._log.end, file_end)
                if not stretch.size:
                    break
                self._write(data[at : at + stretch.size])
                at += stretch.size
                self._undispatched += (
                    (head, head.physical_offset in stretch.damaged) for head in stretch.heads
                )
                self._dispatch_all()
        except OSError as error:
            reason = f"the copy of the master's log cannot be written: {error}"
            self._failed(reason)
            raise StoreError(reason) from error
        finally:
            del self._partial[:at]

    def last_record(self) -> tuple[int, int] | None:
        """Return the offset and size of the last record that a queue refers to; None if there is none."""
        last = max(self._queues, key=lambda queue: queue.last_physical_end, default=None)
        unit = last.unit(last.max_offset - 1) if last is not None else None
        if unit is None or unit[1] == BLANK_SIZE:
            return None
        return unit[0], unit[1]

    def last_stored_ms(self) -> int:
        """Return the store time of the last record in a queue, waiting for the disk; 0 if there is none."""
        last = self.last_record()
        return self._log.store_timestamp_ms(last[0]) if last is not None else 0

    def record(self, offset: int, size: int) -> bytes | None:
        """Return the bytes of a record, waiting for the disk; None if they are not there."""
        return self._log.read(offset, size)

    def _begin_at(self, offset: int) -> None:
        segments = self._log.segments
        if offset % segments.file_size:
            raise RemoteProtocolError(
                f"the master's newest file begins at {offset}, where no file of this slave can: "
                "its mappedFileSizeCommitLog differs"
            )
        self._log.begin_at(offset)

    def _write(self, data: bytes) -> None:
        """Append whole records of one file."""
        segments = self._log.segments
        if self._log.end == segments.end or not segments.starts:
            segments.create(segments.start_of(self._log.end))
        self._log.write(data)

    def _dispatch_all(self) -> None:
        """Add the units of stored records; after an OSError the next call continues."""
        heads, ends = list[RecordHead](), dict[ConsumeQueue, int]()
        try:
            while self._undispatched:
                head, is_damaged = self._undispatched[0]
                changed = self._dispatch(head, is_damaged=is_damaged)
                self._undispatched.popleft()
                heads.append(head)
                ends.update((queue, queue.max_offset) for queue in changed)
        finally:
            if heads:
                self._added(heads, ends)

    def _dispatch(self, head: RecordHead, *, is_damaged: bool) -> list[ConsumeQueue]:
        if is_damaged:
            log.error("the master's log has a damaged record; readers skip it", offset=head.physical_offset)
            self._log.unreadable.note(head.physical_offset)
        places = self._queues.places(head, is_damaged=is_damaged)
        if places and self._queues.get(head.topic, head.queue_id) is None:
            self.new_topics.add(head.topic)
        unit = UNIT.pack(head.physical_offset, BLANK_SIZE, 0) if is_damaged else unit_of(head)
        changed = [self._add_unit(head, place, unit) for place in places]
        return [queue for queue in changed if queue is not None]

    def _add_unit(self, head: RecordHead, place: QueuePlace, unit: bytes) -> ConsumeQueue | None:
        known = self._queues.get(*place[:2])
        was_empty = known is None or not known.max_offset
        queue = self._queues.add_unit(head, place, unit)
        if queue is not None and (was_empty or not place.number):
            queue.min_offset = place.number  # Earlier messages were not copied, or their topic was deleted.
        return queue


class Stretch(NamedTuple):
    """Contiguous whole records of one file: size, heads, and the offsets of damaged bodies' records."""

    size: int
    heads: list[RecordHead]
    damaged: set[int]


def whole_records(data: bytes, start: int, offset: int, file_end: int) -> Stretch:
    """Return the complete records from `start`, which lies at `offset` of the log.

    Stops after the blank that fills a file. Raises RemoteProtocolError for an impossible record or blank.
    """
    position, heads, damaged = start, list[RecordHead](), set[int]()
    while len(data) - position >= BLANK_BYTES:
        at = offset + position - start
        size = int.from_bytes(data[position : position + 4])
        is_blank = int.from_bytes(data[position + 4 : position + 8]) == BLANK_MAGIC
        if is_blank and at + size != file_end:
            raise RemoteProtocolError(
                f"the master's file ends at {at + size} and the slave's at {file_end}: its "
                "mappedFileSizeCommitLog differs"
            )
        if not is_blank and not RECORD_BYTES_MIN <= size <= min(RECORD_BYTES_MAX, file_end - at):
            raise RemoteProtocolError(
                f"the master's log has a record of {size} bytes at {at}, in a file that ends at {file_end}: "
                "it is damaged, or its mappedFileSizeCommitLog differs"
            )
        if len(data) - position < size:
            break
        position += size
        if is_blank:
            break
        head = _head(data, position - size, at)
        heads.append(head)
        if not has_good_crc(data, head):
            damaged.add(at)
    return Stretch(position - start, heads, damaged)


def _head(data: bytes, position: int, offset: int) -> RecordHead:
    try:
        head = peek_record(data, position)
    except StoreCorrupt as error:
        raise RemoteProtocolError(f"the master's log is damaged at {offset}: {error}") from None
    if head is None or head.physical_offset != offset:
        raise RemoteProtocolError(f"the master's log has no record at {offset}")
    return head


def cut_log(
    filesystem: FileSystem,
    root: Path,
    log_: CommitLog,
    queues: ConsumeQueueTable,
    points: RecoveryPointWriter,
    end: int,
) -> None:
    """Cut the log and the queues at a record's start, and wait for the disk; raises OSError if it refuses."""
    assert log_.min_offset <= end <= log_.end, (log_.min_offset, end, log_.end)
    size, path = keep_aside(filesystem, root, log_.segments, end, is_torn=True)
    log.warning("the end of the commit log was cut off", offset=end, size=size, kept=str(path))
    points.cut(end)
    for queue in queues:
        queue.truncate_physical(end)
    log_.flushed = min(log_.flushed, end)
    log_.recovered(end)
