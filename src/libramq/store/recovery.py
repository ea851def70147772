"""The recovery: what a store holds after it was closed, killed, or lost power.

1. Choose where to begin. After a clean stop: where the queues end. After anything else: the newest file
   whose first message the checkpoint calls safe.
2. Cut the queues there. Read records from there on; each gives its queue a unit again.
3. The first thing that is no whole, right record ends the log: what lies behind it is removed.

So queues are never trusted beyond the checkpoint; they are built from the log, which is the truth.

Upstream: store/DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from libramq.clock import WallMs
from libramq.errors import InvalidName, StoreCorrupt
from libramq.message.record import BLANK_MAGIC, RecordHead, has_good_crc, peek_record
from libramq.message.sys_flag import is_queued
from libramq.store.checkpoint import Checkpoint
from libramq.store.commit_log import CommitLog
from libramq.store.consume_queue import UNIT
from libramq.store.consume_queue_table import ConsumeQueueTable
from libramq.store.dispatch import unit_tag_code

_WINDOW_BYTES: Final = 1 << 20
_ZERO_SECTOR: Final = bytes(512)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """What recovery found; unreachable_count: good records whose queue or number in it cannot be right."""

    clean: bool
    start: int = 0
    end: int = 0
    record_count: int = 0
    unreachable_count: int = 0
    last_store_timestamp_ms: WallMs = WallMs(0)


class LogFiles(Protocol):
    """The files of a log: libramq.store.segments, or read_only_files."""

    @property
    def file_size(self) -> int: ...
    def start_of(self, offset: int) -> int: ...
    def has(self, offset: int) -> bool: ...
    def read(self, offset: int, size: int) -> bytes: ...


class LogScan:
    """Reads records of the log one after the other; afterwards `end` is where the good ones end."""

    def __init__(self, files: LogFiles, start: int) -> None:
        self._segments = files
        self.end = start

    def __iter__(self) -> Iterator[RecordHead]:
        segments = self._segments
        window, window_start = b"", self.end
        while segments.has(self.end):
            offset = self.end
            file_end = segments.start_of(offset) + segments.file_size
            at = offset - window_start
            size = int.from_bytes(window[at : at + 4])
            if len(window) - at < max(8, size):
                window = segments.read(offset, min(_WINDOW_BYTES, file_end - offset))
                window_start, at = offset, 0
            if len(window) < 8:
                return
            size = int.from_bytes(window[at : at + 4])
            if int.from_bytes(window[at + 4 : at + 8]) == BLANK_MAGIC:
                if offset + size != file_end or not segments.has(file_end):
                    return
                self.end, window, window_start = file_end, b"", file_end
                continue
            if offset + size > file_end:
                return
            try:
                head = peek_record(window, at)
                if head is None:  # Larger than the window.
                    window, window_start, at = segments.read(offset, size), offset, 0
                    head = peek_record(window, at)
            except StoreCorrupt:
                return
            if head is None or head.physical_offset != offset or not has_good_crc(window, head):
                return
            if _is_torn(head):
                return
            self.end = offset + size
            yield head


def recover(
    log: CommitLog, queues: ConsumeQueueTable, checkpoint: Checkpoint, *, clean: bool
) -> RecoveryReport:
    """Bring log and queues, both loaded, to the same end."""
    if not log.segments.starts:
        queues.delete_all()
        return RecoveryReport(clean=clean)
    start = _clean_start(log, queues) if clean else _safe_start(log, checkpoint)
    for queue in queues:
        queue.truncate_physical(start)
    scan = LogScan(log.segments, start)
    count = timestamp_ms = unreachable = 0
    for head in scan:
        count += 1
        timestamp_ms = head.store_timestamp_ms
        if not is_queued(head.sys_flag):
            continue
        try:
            queue = queues.get_or_create(head.topic, head.queue_id)
        except InvalidName:
            unreachable += 1
            continue
        end = head.physical_offset + head.size
        unit = UNIT.pack(head.physical_offset, head.size, unit_tag_code(head))
        if queue.rebuild(head.queue_offset, unit, head.physical_offset, end):
            queues.pending[queue] = None
        else:
            unreachable += 1
    log.recovered(scan.end)
    for queue in queues:
        queue.truncate_physical(scan.end)
        queue.visible_max = queue.max_offset
        queue.correct_min_offset(log.min_offset)
    return RecoveryReport(
        clean=clean, start=start, end=scan.end, record_count=count, unreachable_count=unreachable,
        last_store_timestamp_ms=WallMs(timestamp_ms),
    )  # fmt: skip


def _is_torn(head: RecordHead) -> bool:
    """Whether a sector of topic or properties was never written: the checksum covers only the body.

    A lost sector that begins before the properties takes their length with it, which does not add up then;
    one within them leaves a sector of zeroes, and one that reaches beyond them a zero at their end.
    """
    properties = head.properties
    return "\0" in head.topic or properties.endswith(b"\0") or _ZERO_SECTOR in properties


def _clean_start(log: CommitLog, queues: ConsumeQueueTable) -> int:
    """Where the queues end; a record ends there too. Without queues, the beginning."""
    end = max((queue.last_physical_end for queue in queues), default=0)
    if end >= log.segments.end:  # Files are missing that the queues knew.
        return log.segments.starts[-1]
    return max(end, log.min_offset)


def _safe_start(log: CommitLog, checkpoint: Checkpoint) -> int:
    """The newest file whose first record is good and was stored before everything that may be lost."""
    for start in reversed(log.segments.starts):
        first = next(iter(LogScan(log.segments, start)), None)
        if first is not None and 0 < first.store_timestamp_ms <= int(checkpoint.safe_timestamp_ms):
            return start
    return log.segments.starts[0]
