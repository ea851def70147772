"""The recovery: reads the log and rebuilds the queues after a stop, a kill, damage or lost power; cuts off a
torn end, skips and reports damaged records, and decides when an operator must choose.

1. Choose where to begin (`Beginning`). After a clean stop: where the queues end. Otherwise: at the recovery
   point, if the last broker to write made it, or else at the first file. Never by a time.
2. Cut the queues there, read the records from there, and rebuild a unit from each.
3. After the data known to be on the disk, the log ends at the first position without a complete, valid
   record; the rest is kept aside and removed. Earlier data is never removed without an operator.

So queues are never trusted beyond the recovery point; they are rebuilt from the log, which is authoritative.

A single damaged record whose frame leads to a valid next record is skipped automatically. If any other data
that was on the disk cannot be read, the broker does not start until an operator chooses. The error states the
cost of each choice:

    skip   skip unreadable data, keep everything after it
    cut    end the log before it; later data is kept aside in `damaged`

Upstream: store/DefaultMessageStore.recover, CommitLog.recoverNormally, recoverAbnormally.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from libramq.clock import WallMs
from libramq.errors import StoreDamaged
from libramq.logs import get_logger
from libramq.message.record import RecordHead
from libramq.message.sys_flag import is_queued
from libramq.store.checkpoint import RecoveryPoint
from libramq.store.config import Damaged
from libramq.store.deletions import Deletions
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.log_scan import Damage, LogScan, newest_written
from libramq.store.log.segments import Segments
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, unit_of
from libramq.store.queues.consume_queue_table import ConsumeQueueTable

log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryReport:
    """The findings of recovery.

    unreachable_count: valid records with an impossible queue or number. damages: skipped unreadable data that
    had been on the disk. cut_bytes: the size of the data that was kept aside and removed.
    """

    clean: bool
    start: int = 0
    end: int = 0
    record_count: int = 0
    unreachable_count: int = 0
    last_store_timestamp_ms: WallMs = WallMs(0)
    damages: tuple[Damage, ...] = ()
    cut_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Beginning:
    """The beginning of a recovery: its position and its assumptions.

    known_end: the log was on the disk up to here, so it is shorter only if files were lost. protected:
    nothing before this is cut without an operator. refuses_nuls: everything after `protected` was written by
    a broker that accepts no NULs. lacks_units: queues were lost, so all of them are rebuilt.
    """

    start: int
    protected: int
    known_end: int
    refuses_nuls: bool = True
    lacks_units: bool = False


def begin_after_stop(log_: CommitLog, queues: ConsumeQueueTable, point: RecoveryPoint | None) -> Beginning:
    """Begin where the queues end, because a clean stop flushes everything."""
    files_end = log_.segments.end
    beyond = [queue for queue in queues if queue.last_physical_end > files_end]
    queue_end = max((queue.last_physical_end for queue in queues if queue not in beyond), default=0)
    if len(beyond) == 1 and point is not None and queue_end <= point.flushed <= files_end:
        # The log is complete, so the unit is wrong.
        return Beginning(
            start=log_.min_offset, protected=point.flushed, known_end=point.flushed, lacks_units=True
        )
    queue_end = max([queue_end, *(queue.last_physical_end for queue in beyond)])
    known_end = max(queue_end, point.flushed if point else 0)
    # If a broker wrote after the point, the queues end later, and the point's unit count is void.
    counts = point is not None and queue_end <= point.flushed
    lacks_units = counts and point is not None and queues.count_units() < point.units
    start = log_.min_offset if lacks_units else max(queue_end, log_.min_offset)
    return Beginning(
        start=start,
        protected=known_end or newest_written(log_.segments, log_.segments.starts),
        known_end=known_end,
        refuses_nuls=point is not None,
        lacks_units=lacks_units,
    )


def begin_after_crash(log_: CommitLog, queues: ConsumeQueueTable, point: RecoveryPoint | None) -> Beginning:
    """Begin at the recovery point; without one, at the first file: units of any file may be missing."""
    if point is None:
        return Beginning(
            start=log_.min_offset,
            protected=newest_written(log_.segments, log_.segments.starts),
            known_end=0 if log_.segments.starts else max((q.last_physical_end for q in queues), default=0),
            refuses_nuls=False,
            lacks_units=True,
        )
    for queue in queues:
        queue.truncate_physical(point.dispatched)
    lacks_units = queues.count_units() < point.units
    start = log_.min_offset if lacks_units else max(point.dispatched, log_.min_offset)
    return Beginning(start=start, protected=point.flushed, known_end=point.flushed, lacks_units=lacks_units)


def face_lost_files(
    log_: CommitLog, queues: ConsumeQueueTable, beginning: Beginning, damaged: Damaged | None
) -> Beginning:
    """Return where to begin if files of the log are gone; raises StoreDamaged without a decision."""
    segments = log_.segments
    if segments.end >= beginning.known_end:
        return beginning
    count = sum(queue.max_offset - queue.first_at_or_after(segments.end) for queue in queues)
    if damaged is None:
        raise lost_files(segments, beginning.known_end, count)
    log.error("files of the commit log are lost", end=segments.end, was=beginning.known_end, messages=count)
    if segments.starts:
        return replace(beginning, start=min(beginning.start, segments.starts[-1]), known_end=segments.end)
    if damaged is Damaged.CUT:
        queues.delete_all()
        return Beginning(start=0, protected=0, known_end=0)
    # Used numbers are not reassigned: queues continue at their ends, in a file after all others.
    last = max(beginning.known_end, *(queue.last_physical_end for queue in queues), 0)
    start = -(-last // segments.file_size) * segments.file_size
    segments.create(start)
    return Beginning(start=start, protected=start, known_end=start)


def recover(
    log_: CommitLog,
    queues: ConsumeQueueTable,
    beginning: Beginning,
    *,
    clean: bool,
    deletions: Deletions,
    damaged: Damaged | None = None,
    before_cut: Callable[[int], int] = lambda _: 0,
) -> RecoveryReport:
    """Bring the loaded log and queues to the same end; raises StoreDamaged if an operator must decide.

    deletions: the records of a deleted topic get no units. before_cut: keeps aside the data after an offset,
    and returns its size.
    """
    for queue in queues:
        queue.truncate_physical(beginning.start)
    scan = LogScan(
        log_.segments, beginning.start,
        protected=min(beginning.protected, log_.segments.end), refuses_nuls=beginning.refuses_nuls,
    )  # fmt: skip
    record_count = unreachable_count = 0
    stored_ms, damages, end = WallMs(0), list[Damage](), None
    for found in scan:
        if isinstance(found, RecordHead):
            record_count += 1
            stored_ms = WallMs(found.store_timestamp_ms)
            unreachable_count += not _dispatch(queues, found, deletions)
            continue
        if not found.is_proven:
            if damaged is None:
                raise refusal(log_.segments, queues, found, scan, beginning.protected)
            if damaged is Damaged.CUT or not log_.segments.has(found.end):
                end = found.offset
                break
        _pass_over(log_, queues, found)
        damages.append(found)
    end = scan.end if end is None else end
    cut_bytes = before_cut(end)
    log_.recovered(end)
    for queue in queues:
        queue.truncate_physical(end)
        queue.visible_max = queue.max_offset
        deleted_end = deletions.end_in_queue(queue.topic, queue.queue_id)
        queue.correct_min_offset(max(log_.min_offset, deleted_end))
    return RecoveryReport(
        clean=clean, start=beginning.start, end=end, record_count=record_count,
        unreachable_count=unreachable_count, last_store_timestamp_ms=stored_ms,
        damages=tuple(damages), cut_bytes=cut_bytes,
    )  # fmt: skip


def _dispatch(queues: ConsumeQueueTable, head: RecordHead, deletions: Deletions) -> bool:
    """Add a record's units to its queues; return False if its own queue or number is impossible."""
    is_possible = True
    for place in queues.places(head):
        if head.physical_offset >= deletions.end_of(place.topic):
            is_added = queues.add_unit(head, place, unit_of(head)) is not None
            is_possible &= is_added or place.topic != head.topic
    return is_possible


def _pass_over(log_: CommitLog, queues: ConsumeQueueTable, damage: Damage) -> None:
    """Skip an unreadable record; if its queue is known, add a blank unit there."""
    log.error(
        "part of the commit log cannot be read and is skipped",
        file=str(log_.segments.path(log_.segments.start_of(damage.offset))),
        offset=damage.offset,
        size=damage.end - damage.offset,
        reason=damage.reason,
    )
    if not damage.is_blank:
        log_.unreadable.note(damage.offset)
    head = damage.head
    if head is None:
        return
    for place in queues.places(head, is_damaged=True):
        queue = queues.get(place.topic, place.queue_id)
        if queue is not None and place.number >= queue.max_offset:
            queues.add_unit(head, place, UNIT.pack(damage.offset, BLANK_SIZE, 0))


REMEDY = "Bring back the files from a copy, or start with --damaged=skip or --damaged=cut"


def refusal(
    segments: Segments,
    queues: ConsumeQueueTable,
    first: Damage,
    rest: Iterable[RecordHead | Damage],
    known_end: int,
) -> StoreDamaged:
    """Return the error for damage without an operator's decision, stating what each choice would lose.

    rest: a scan of the log after the first damage, to count its messages.
    """
    next_numbers = {(queue.topic, queue.queue_id): queue.max_offset for queue in queues}
    stretches = [first]
    record_count = record_bytes = missing_count = 0
    for found in rest:
        if isinstance(found, Damage):
            if not found.is_blank:
                stretches.append(found)
            continue
        record_count += 1
        record_bytes += found.size
        if is_queued(found.sys_flag):
            key = found.topic, found.queue_id
            missing_count += max(0, found.queue_offset - next_numbers.get(key, 0))
            next_numbers[key] = found.queue_offset + 1
    damaged_bytes = sum(min(each.end, max(known_end, each.offset)) - each.offset for each in stretches)
    places = f"{len(stretches)} places, the first" if len(stretches) > 1 else "one place,"
    return StoreDamaged(
        f"the commit log cannot be read in {places} at offset {first.offset} "
        f"({segments.path(segments.start_of(first.offset))}, {first.reason}), although it was on the disk up "
        f"to {known_end}. --damaged=skip loses {damaged_bytes} bytes, which are at least "
        f"{max(1, missing_count)} messages, and keeps the {record_count} messages behind them; "
        f"--damaged=cut loses those {record_count} messages ({record_bytes} bytes) too. "
        f"{REMEDY}; no message was touched."
    )


def lost_files(segments: Segments, known_end: int, unit_count: int) -> StoreDamaged:
    """Return the error for a log that ends before its known end."""
    what = f"ends at offset {segments.end}" if segments.starts else "has no files"
    way = (
        "either continues without them" if segments.starts
        else "skip continues with the queues' offsets, cut restarts them at 0"
    )  # fmt: skip
    return StoreDamaged(
        f"the commit log in {segments.directory} {what}, although it was on the disk up to offset "
        f"{known_end}: files were removed, or their disk is not mounted. "
        f"{unit_count} messages of the queues are gone with them. {REMEDY} ({way}); no message was touched."
    )
