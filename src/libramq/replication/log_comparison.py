"""The comparison: finds the end of the part that a slave's log shares with its master's, by comparing
records, or that they share nothing.

    the last record ─┬─ equal, and nothing after it ────────────────► shared up to its end
                     └─ different, or none ─► the records of a file ─► bisected to the last shared one
                                              ▲  none of them: the file before it

Records at the same offset are equal only if everything before them is, because a record contains its offset
and store time, and logs only grow. Apache's masters also send records by offset, so this works with them. But
they send no record of a deleted topic, so these count as not shared, and more than necessary is cut and
copied again. LibraMQ's masters send such a record to a slave that has the same one (`lbSha256`), because the
slave may have no others.
"""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import Final

from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.filesystem import FileSystem
from libramq.kernel.effect import Thread
from libramq.kernel.work import Callback, InThread, Work
from libramq.logs import get_logger
from libramq.message.record import RecordHead
from libramq.replication.ha_client import NothingShared, Shared
from libramq.store.log.log_scan import LogScan
from libramq.store.message_store import MessageStore
from libramq.store.reading.read_only_files import ReadOnlyFiles

log = get_logger(__name__)

#: Takes an offset and the slave's record there; waits for the master's record, or the reason why there is
#: none.
AskRecord = Callable[[int, bytes], Callback]
#: Error codes of brokers without such a record.
_NOT_THERE: Final = (ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND)


def records_of_file(
    filesystem: FileSystem, store: MessageStore, start: int, end: int
) -> list[tuple[int, int]]:
    """Return the offset and size of each record from `start` up to `end`; to be called in a thread."""
    found = []
    with closing(ReadOnlyFiles(filesystem, store.config.commit_log_directory)) as files:
        for record in LogScan(files, start, protected=end):
            offset = record.physical_offset if isinstance(record, RecordHead) else record.offset
            if offset >= end:
                break
            if isinstance(record, RecordHead):
                found.append((offset, record.size))
    return found


def compare_logs(
    store: MessageStore, filesystem: FileSystem, *, master_begins: int, ask: AskRecord
) -> Work[Shared]:
    """Return the end of the shared log, or the reason why it is unknown; a log that ends too early is not
    read.

    master_begins: the start of the master's log; 0 if unknown.
    """
    log_end = store.copy.end
    if log_end <= master_begins:
        reason = (
            f"this slave's log ends at {log_end}, and its master's begins at {master_begins}, as older "
            "files are deleted: remove the slave's files, and it starts again"
        )
        return NothingShared(reason, report=log_end)
    try:
        last, shared_end = store.copy.last_record(), 0
        if last is not None and (yield from _is_shared(store, ask, *last)):
            shared_end = sum(last)
            if shared_end == log_end:  # Otherwise records of deleted topics follow.
                return shared_end
        elif last is not None:
            log.warning("this slave's log ends with what its master does not have", ends_at=log_end)
        file_start = store.log_file_start(max(log_end - 1, 0))
        while True:
            found = yield from _last_shared_of(store, filesystem, file_start, ask)
            if isinstance(found, str):
                return found
            if found or shared_end:
                return max(found, shared_end)
            if file_start <= max(store.log_start, master_begins):
                break
            file_start = store.log_file_start(file_start - 1)
    except LibraError as error:
        return f"the logs cannot be compared: {error}"
    reason = f"nothing of this slave's log, which goes from {store.log_start} to {log_end}, is its master's"
    return NothingShared(f"{reason}: remove the slave's files, and it starts again")


def _last_shared_of(
    store: MessageStore, filesystem: FileSystem, file_start: int, ask: AskRecord
) -> Work[int | str]:
    """Return the end of the last shared record of a file, 0 if there is none, or why it is unknown."""
    end = min(store.log_file_end(file_start), store.copy.end)
    try:
        records = yield InThread(Thread.READ, partial(records_of_file, filesystem, store, file_start, end))
    except Exception as error:
        return f"this slave's log cannot be read: {error}"
    low, high = 0, len(records)
    while low < high:  # The first `low` records are shared, those from `high` on are not.
        middle = (low + high) // 2
        if (yield from _is_shared(store, ask, *records[middle])):
            low = middle + 1
        else:
            high = middle
    return sum(records[low - 1]) if low else 0


def _is_shared(store: MessageStore, ask: AskRecord, offset: int, size: int) -> Work[bool]:
    """Return whether the master has the same record; a missing record is not the same."""
    ours = store.copy.record(offset, size)
    if ours is None:
        return False
    try:
        theirs = yield ask(offset, ours)
    except BrokerError as error:
        if error.response_code in _NOT_THERE:
            return False
        raise
    return bool(theirs == ours)
