"""The comparison: up to where a slave's log is its master's.

    the last record ─┬─ the same, and nothing behind it ──────────────► shared up to its end
                     └─ another, or none ─► the records of a file ─► halved, until one is the last shared
                                              ▲  none of them: the file before it

Records of one place are equal only if everything before is: a record has its place and its store time, and
logs only grow. Apache's masters send records by their place too, so this works with them; but none of a topic
that they have deleted, so these count as not shared: more than necessary is cut, and copied again. Ours send
such a record to a slave that has the same (`lbSha256`): the slave may have no others.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.filesystem import FileSystem
from libramq.kernel.effect import Effects, Thread
from libramq.logs import get_logger
from libramq.message.record import RecordHead
from libramq.replication.ha_client import NothingShared, Shared
from libramq.store.log.log_scan import LogScan
from libramq.store.message_store import MessageStore
from libramq.store.reading.read_only_files import ReadOnlyFiles

log = get_logger(__name__)

#: Takes an offset and our record there; calls back with the master's, or why there is none.
AskRecord = Callable[[int, bytes, Callable[[bytes | LibraError], None]], None]
#: The answers of brokers that have no such record.
_NOT_THERE: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)


def records_of_file(
    filesystem: FileSystem, store: MessageStore, start: int, end: int
) -> list[tuple[int, int]]:
    """Return offset and size of the records from `start` up to `end`; to be called in a thread."""
    files = ReadOnlyFiles(filesystem, store.config.commit_log_directory)
    try:
        found = []
        for record in LogScan(files, start, protected=end):
            offset = record.physical_offset if isinstance(record, RecordHead) else record.offset
            if offset >= end:
                break
            if isinstance(record, RecordHead):
                found.append((offset, record.size))
        return found
    finally:
        files.close()


class LogComparison:
    """One comparison. done: called once, with the end of the shared log, or why there is none.

    master_begins: where the master's log begins; 0: nobody knows.
    """

    def __init__(
        self,
        store: MessageStore,
        filesystem: FileSystem,
        effects: Effects,
        *,
        master_begins: int,
        ask: AskRecord,
        done: Callable[[Shared], None],
    ) -> None:
        self._store = store
        self._master_begins = master_begins
        self._filesystem = filesystem
        self._effects = effects
        self._ask = ask
        self._done = done
        self._records: Sequence[tuple[int, int]] = ()
        #: The end of the last record that a queue refers to, if that is shared.
        self._shared_end = 0
        self._file_start = store.log_file_start(max(store.copy.end - 1, 0))

    def begin(self) -> None:
        """Compare; nothing is read of a log that ends before the master's begins."""
        end = self._store.copy.end
        if end <= self._master_begins:
            reason = (
                f"this slave's log ends at {end}, and its master's begins at {self._master_begins}, as older "
                "files are deleted: remove the slave's files, and it starts again"
            )
            self._done(NothingShared(reason, report=end))
            return
        last = self._store.copy.last_record()
        if last is None:
            self._search_file()
        else:
            self._compare(*last, partial(self._last_compared, last[0] + last[1]))

    def _last_compared(self, end: int, is_shared: bool) -> None:
        log_end = self._store.copy.end
        if is_shared and end == log_end:
            self._done(end)
            return
        if is_shared:  # Records of deleted topics follow.
            self._shared_end = end
        else:
            log.warning("this slave's log ends with what its master does not have", ends_at=log_end)
        self._search_file()

    def _search_file(self) -> None:
        """Look for the last shared record of a file; a thread reads it."""
        store = self._store
        end = min(store.log_file_end(self._file_start), store.copy.end)
        work = partial(records_of_file, self._filesystem, store, self._file_start, end)
        self._effects.run(Thread.READ, work, self._found_records)

    def _found_records(self, found: object) -> None:
        if not isinstance(found, list):
            self._done(f"this slave's log cannot be read: {found}")
            return
        self._records = found
        self._halve(0, len(found))

    def _halve(self, low: int, high: int) -> None:
        """Continue: the first `low` records of the file are shared, those from `high` on are not."""
        if low < high:
            middle = (low + high) // 2

            def compared(is_shared: bool) -> None:
                if is_shared:
                    self._halve(middle + 1, high)
                else:
                    self._halve(low, middle)

            self._compare(*self._records[middle], compared)
        elif low:
            offset, size = self._records[low - 1]
            self._done(max(offset + size, self._shared_end))
        elif self._shared_end:
            self._done(self._shared_end)
        elif self._file_start > max(self._store.log_start, self._master_begins):
            self._file_start = self._store.log_file_start(self._file_start - 1)
            self._search_file()
        else:
            first, end = self._store.log_start, self._store.copy.end
            reason = f"nothing of this slave's log, which goes from {first} to {end}, is its master's"
            self._done(NothingShared(f"{reason}: remove the slave's files, and it starts again"))

    def _compare(self, offset: int, size: int, compared: Callable[[bool], None]) -> None:
        """Compare one record with the master's; what is not there is not the same."""
        ours = self._store.copy.record(offset, size)
        if ours is None:
            compared(False)
            return

        def answered(theirs: bytes | LibraError) -> None:
            if isinstance(theirs, BrokerError) and theirs.response_code in _NOT_THERE:
                compared(False)
            elif isinstance(theirs, LibraError):
                self._done(f"the logs cannot be compared: {theirs}")
            else:
                compared(theirs == ours)

        self._ask(offset, ours, answered)
