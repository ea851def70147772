"""The offline check of a store (`libra store check`): damage to the log and the queues, and what the next
start would repair.

    the log      frames, checksums and positions of all records; damage in the range known to be flushed
    the queues   units that are missing, point to the wrong place, or point to no record
    recovery     where the next start begins, and how much it repairs

The check changes nothing. It reads the log once, in order.
"""

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from libramq.errors import StoreCorrupt, StoreError, StoreLocked
from libramq.filesystem import FileSystem
from libramq.message.inner_batch import message_count
from libramq.message.record import RECORD_BYTES_MAX, RecordHead, peek_record
from libramq.message.sys_flag import is_queued
from libramq.store.checkpoint import RecoveryPoint, RecoveryPointFile, deletions_end, lost_before
from libramq.store.config import BATCH_UNIT_BYTES, UNIT_BYTES, StoreConfig
from libramq.store.deletions import Deletions
from libramq.store.log.log_scan import Damage, LogScan, newest_written
from libramq.store.queues.consume_queue import BLANK_SIZE, UNIT, end_of_unit, is_unit_tag_code, may_lack_end
from libramq.store.queues.light_queues import light_places
from libramq.store.queues.queue_extension import TAG_CODE_MIN
from libramq.store.reader import UNITS, QueueKey
from libramq.store.reading.read_only_files import ReadOnlyFiles, queue_directories
from libramq.store.recovery.kept_aside import ZEROES_MAX, written_size
from libramq.store.recovery.lost_units import Run
from libramq.store.recovery.opening import ABORT

Seen = Callable[[RecordHead | Damage], None]


@dataclass(slots=True, kw_only=True)
class QueueFindings:
    """The units of all queues against the records of the log.

    missing_count: records without a unit, not counting records after the recovery point; if files were lost,
    the next start rebuilds their units. wrong_count: units that do not match their record. stray_count: units
    that point to no record. unreadable: queues with impossible files, and the reason.
    """

    queue_count: int = 0
    unit_count: int = 0
    missing_count: int = 0
    wrong_count: int = 0
    stray_count: int = 0
    unreadable: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class StoreReport:
    """The findings of a check.

    state: how the store was left. log_end: the end of the last record. known_end: the log is known to be
    flushed up to here. lost_bytes: the size of the missing files at the start of the log. deleted_count:
    records of deleted topics, whose queue offsets may have been reused. recovered_* and cut_*: what the next
    start does: where it begins, how many records it reads, how many units it builds or removes, and how many
    bytes after the log's end it cuts off.
    """

    state: str
    file_count: int = 0
    log_start: int = 0
    log_end: int = 0
    known_end: int = 0
    record_count: int = 0
    deleted_count: int = 0
    lost_bytes: int = 0
    damages: list[Damage] = field(default_factory=list)
    queues: QueueFindings = field(default_factory=QueueFindings)
    recovered_from: int = 0
    recovered_record_count: int = 0
    recovered_unit_count: int = 0
    cut_unit_count: int = 0
    cut_bytes: int = 0

    @property
    def is_damaged(self) -> bool:
        """Return whether any flushed data is lost or wrong."""
        queues = self.queues
        return bool(
            self.damages
            or self.lost_bytes
            or self.log_end < self.known_end
            or queues.missing_count
            or queues.wrong_count
            or queues.stray_count
            or queues.unreadable
        )


def check_store(
    root: Path, filesystem: FileSystem, seen: Seen = lambda _: None, *, commit_log: Path | None = None
) -> StoreReport:
    """Check a store directory. seen: called with every record and every damaged range.

    commit_log: the directory of the log, if it is outside the store directory.

    Raises StoreLocked if a broker has the store open, StoreError if the directory is no store or lacks a file
    of its log.
    """
    if not filesystem.is_directory(commit_log or root / "commitlog"):
        raise StoreError(
            f"{root} is no store directory: it has no commitlog; is it elsewhere? see --commit-log"
        )
    if filesystem.is_locked(root / "lock"):
        raise StoreLocked(f"{root} is in use by a broker; stop it, or check a copy")
    return _Check(root, filesystem, seen, commit_log or root / "commitlog").run()


class _Check:
    """One check."""

    def __init__(self, root: Path, filesystem: FileSystem, seen: Seen, commit_log: Path) -> None:
        self._root = root
        self._filesystem = filesystem
        self._seen = seen
        self._log = ReadOnlyFiles(filesystem, commit_log)
        self._queues: dict[QueueKey, QueueCheck | BatchQueueCheck] = {}
        abort = filesystem.read_text(root / ABORT)
        point = RecoveryPointFile(filesystem, root).load()
        self._is_closed = abort is None
        #: By queue: records before its first unit, whose units may have been lost.
        self._fronts: dict[QueueKey, Run] = {}
        #: Records before this offset may have lost their units with their queues; 0: no queue lost its end.
        self._lost_before = 0
        #: Whether another broker closed the store, in which case the recovery point's unit count is void.
        self._is_closed_by_another = False
        self._point = point if abort is None or (point is not None and point.is_of(abort)) else None
        self._deletions = Deletions(filesystem, root)
        self._deletions.load(end=deletions_end(point, abort))
        self.report = StoreReport(state=_state(is_closed=self._is_closed, point=self._point))

    def run(self) -> StoreReport:
        try:
            self._open_queues()
            self._read_log()
            self._count_units()
        finally:
            self._log.close()
            for queue in self._queues.values():
                queue.close()
        return self.report

    def _open_queues(self) -> None:
        """Find the queues, and derive the start of the next recovery from their ends."""
        report, point, log = self.report, self._point, self._log
        config = StoreConfig(root=self._root)
        kinds: tuple[tuple[Path, type[QueueCheck | BatchQueueCheck]], ...] = (
            (config.consume_queue_directory, QueueCheck),
            (config.batch_queue_directory, BatchQueueCheck),
        )
        for root, kind in kinds:
            for key, directory in queue_directories(self._filesystem, root):
                if kind is BatchQueueCheck and not self._filesystem.listdir(directory):
                    continue  # Apache's broker leaves empty directories when it deletes a topic.
                try:
                    self._queues[key] = kind(self._filesystem, directory)
                except StoreCorrupt as error:
                    report.queues.unreadable.append(str(error))
        units_end = max((queue.physical_end for queue in self._queues.values()), default=0)
        report.known_end = max(point.flushed if point else 0, units_end if self._is_closed else 0)
        begin = 0
        if self._is_closed:
            begin = units_end
        elif point is not None:
            begin = point.dispatched
        units = sum(queue.next for queue in self._queues.values())
        if point is not None and units < point.units and units_end <= point.flushed:  # Queues were lost.
            begin, self._lost_before = 0, report.known_end if self._is_closed else point.dispatched
        self._is_closed_by_another = self._is_closed and (point is None or units_end > point.flushed)
        report.recovered_from = max(begin, log.min_offset)

    def _read_log(self) -> None:
        report, log = self.report, self._log
        report.file_count, report.log_start = len(log.starts), log.min_offset
        if self._point is not None and log.starts:
            report.lost_bytes = lost_before(self._point, log.min_offset, report.known_end)
        protected = min(report.known_end, log.end) or newest_written(log, log.starts)
        scan = LogScan(log, log.min_offset, protected=protected, refuses_nuls=self._point is not None)
        for found in scan:
            self._seen(found)
            if isinstance(found, Damage):
                report.damages.append(found)
                continue
            report.record_count += 1
            if found.physical_offset >= report.recovered_from:
                report.recovered_record_count += 1
            if is_queued(found.sys_flag):
                self._compare(found, (found.topic, found.queue_id), found.queue_offset)
                for name, queue_id, number in light_places(found):
                    if (name, queue_id) in self._queues:
                        self._compare(found, (name, queue_id), number)
        report.log_end = scan.end
        if log.has(scan.end):
            file_end = log.start_of(scan.end) + log.file_size
            report.cut_bytes = written_size(log, scan.end, min(file_end, log.end), ZEROES_MAX)

    def _compare(self, head: RecordHead, key: QueueKey, number: int) -> None:
        """Compare a record with its unit in a queue."""
        report, queues, at = self.report, self.report.queues, head.physical_offset
        queue = self._queues.get(key)
        unit = queue.unit(number) if queue is not None else None
        is_older = queue is not None and number >= queue.next and at < queue.physical_end
        if at < self._deletions.end_of(key[0]) or is_older or self._was_reused(head, unit):
            report.deleted_count += 1
        elif queue is not None and number < queue.first:
            self._take_before(head, key, number)
        elif queue is not None and unit is not None and unit[0] == at:
            queue.matched_count += 1
            is_code_elsewhere = unit[2] < TAG_CODE_MIN
            queues.wrong_count += unit[1] != head.size or (
                not is_unit_tag_code(unit[2], head) and not is_code_elsewhere
            )
        elif at >= report.recovered_from:
            report.recovered_unit_count += 1
            queues.missing_count += at < self._lost_before
        elif queue is None:  # If queues were lost, recovery begins earlier.
            report.deleted_count += 1
        elif unit is None:
            queues.missing_count += 1
            is_lost_end = self._is_closed_by_another and number >= queue.next and queue.may_lack_end
            report.recovered_unit_count += is_lost_end or queue.is_lost(number)
        else:
            queues.wrong_count += 1

    def _take_before(self, head: RecordHead, key: QueueKey, number: int) -> None:
        """Note a record before its queue's first unit: deleted, or lost with the queue's first files."""
        run = self._fronts.setdefault(key, Run())
        before = run.count
        if head.physical_offset < self._deletions.end_in_queue(*key):
            self.report.deleted_count += 1
        elif not run.add(number, message_count(head)):
            self.report.deleted_count += before

    def _was_reused(self, head: RecordHead, unit: tuple[int, int, int] | None) -> bool:
        """Return whether a later record has the same queue offset, because its topic was recreated."""
        if unit is None or unit[0] <= head.physical_offset or not self._log.has(unit[0]):
            return False
        try:
            later = peek_record(self._log.read_across(unit[0], min(unit[1], RECORD_BYTES_MAX)))
        except StoreCorrupt:
            return False
        place = head.topic, head.queue_id, head.queue_offset
        return later is not None and (later.topic, later.queue_id, later.queue_offset) == place

    def _count_units(self) -> None:
        report, queues = self.report, self.report.queues
        for key, run in self._fronts.items():
            if run.next_number == self._queues[key].first:
                queues.missing_count += run.count
                report.recovered_unit_count += run.count
            else:
                report.deleted_count += run.count
        queues.queue_count = len(self._queues)
        for queue in self._queues.values():
            counts = queue.count_units(self._log.min_offset, report.log_end, report.damages)
            queues.unit_count += counts.all
            report.cut_unit_count += counts.beyond
            queues.stray_count += max(0, counts.within - queue.matched_count)


def _state(*, is_closed: bool, point: RecoveryPoint | None) -> str:
    if is_closed:
        return "closed by its broker"
    if point is not None:
        return "not closed: its broker was killed, or lost power"
    return "not closed, and without its last broker's libra.checkpoint: the next start reads the whole log"


#: Ours: this many units are read at once to compare records.
NEIGHBOURS: Final = 128
#: Ours: this many units are read at once to count them.
BLOCK_UNITS: Final = 50_000


class UnitCounts(NamedTuple):
    """A queue's unit counts: all, those into undamaged parts of the log, those past the log's end."""

    all: int
    within: int
    beyond: int


def count_units(
    units: npt.NDArray[np.void], log_start: int, log_end: int, damages: Sequence[Damage]
) -> tuple[int, int]:
    """Count the units that point into the log outside damaged ranges, and those that point past its end."""
    leads = (units["size"] > 0) & (units["size"] != BLANK_SIZE) & (units["physical"] >= log_start)
    is_beyond = leads & (units["physical"] >= log_end)
    is_lost = np.zeros(len(units), dtype=np.bool_)
    for damage in damages:
        is_lost |= (units["physical"] >= damage.offset) & (units["physical"] < damage.end)
    return int((leads & ~is_beyond & ~is_lost).sum()), int(is_beyond.sum())


class QueueCheck:
    """The units of one queue. matched_count: the units that point to their records.

    Raises StoreCorrupt if the file names do not fit the file size.
    """

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        self._files = ReadOnlyFiles(filesystem, directory, may_lack=True)
        if any(start % self._files.file_size for start in self._files.starts):
            raise StoreCorrupt(f"{directory}: its files have no names that fit their size")
        self._near: tuple[int, bytes] = 0, b""
        while len(self._files.starts) > 1 and self.is_lost(self._files.min_offset // UNIT_BYTES):
            self._files.starts.pop(0)
        self.first = self._files.min_offset // UNIT_BYTES
        self.next = self._find_next()
        last = self.unit(self.next - 1) if self.next > self.first else None
        self.physical_end = 0 if last is None else end_of_unit(*last[:2])
        self.matched_count = 0
        files = self._files
        self.may_lack_end = may_lack_end(self.next * UNIT_BYTES, files.file_size, was_short=files.is_short)

    def is_lost(self, number: int) -> bool:
        """Return whether the unit's file is missing or has holes, in which case a start rebuilds it."""
        if not self._files.starts:
            return False
        start = self._files.start_of(number * UNIT_BYTES)
        ends = start, start + self._files.file_size - UNIT_BYTES
        return start < self._files.starts[-1] and not all(self.unit(at // UNIT_BYTES) for at in ends)

    def unit(self, number: int) -> tuple[int, int, int] | None:
        """Return a unit: physical offset, size, tag code; None if it was never written."""
        if not self._files.min_offset // UNIT_BYTES <= number < self._files.end // UNIT_BYTES:
            return None
        start, data = self._near
        if not start <= number < start + len(data) // UNIT_BYTES:
            data = self._read(number, NEIGHBOURS)
            start = number
            self._near = start, data
        physical, size, code = UNIT.unpack_from(data, (number - start) * UNIT_BYTES)
        return (physical, size, code) if size > 0 and physical >= 0 else None

    def count_units(self, log_start: int, log_end: int, damages: Sequence[Damage]) -> UnitCounts:
        """Count the units by where they point."""
        within = beyond = count = 0
        number = self.first
        while number < self.next:
            units = self._units(number, min(BLOCK_UNITS, self.next - number))
            here, behind = count_units(units, log_start, log_end, damages)
            count += len(units)
            within += here
            beyond += behind
            number += len(units)
        return UnitCounts(count, within, beyond)

    def close(self) -> None:
        """Close the descriptors."""
        self._files.close()

    def _find_next(self) -> int:
        """Return the number after the last written unit; the rest of a file is zeroes."""
        files = self._files
        for start in reversed(files.starts):
            size = min(files.file_size, files.end - start)
            units = np.frombuffer(files.read(start, size - size % UNIT_BYTES), dtype=UNITS)
            files.close()
            written = np.flatnonzero((units["size"] > 0) & (units["physical"] >= 0))
            if len(written):
                return start // UNIT_BYTES + int(written[-1]) + 1
        return self.first

    def _read(self, number: int, count: int) -> bytes:
        position = number * UNIT_BYTES
        room = self._files.start_of(position) + self._files.file_size - position
        data = self._files.read(position, min(count * UNIT_BYTES, room))
        self._files.close()  # There may be more queues than this process may open files.
        return data

    def _units(self, number: int, count: int) -> npt.NDArray[np.void]:
        return np.frombuffer(self._read(number, count), dtype=UNITS)


_BATCH_UNITS: Final = np.dtype(
    [
        ("physical", ">i8"), ("size", ">i4"), ("code", ">i8"), ("stored_ms", ">i8"), ("base", ">i8"),
        ("count", ">i2"), ("compacted", ">i4"), ("reserved", ">i4"),
    ]
)  # fmt: skip


class BatchQueueCheck:
    """The units of one batch queue, the counterpart of `QueueCheck`; keeps all units in memory."""

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        with closing(ReadOnlyFiles(filesystem, directory, may_lack=True)) as files:
            if any(start % files.file_size for start in files.starts):
                raise StoreCorrupt(f"{directory}: its files have no names that fit their size")
            sizes = {start: min(files.file_size, files.end - start) for start in files.starts}
            parts = [
                np.frombuffer(files.read(start, size - size % BATCH_UNIT_BYTES), dtype=_BATCH_UNITS)
                for start, size in sizes.items()
            ]
        units = np.concatenate(parts) if parts else np.empty(0, dtype=_BATCH_UNITS)
        is_unit = (units["size"] > 0) & (units["physical"] >= 0) & (units["count"] > 0)
        written = np.flatnonzero(is_unit)
        end = int(written[-1]) + 1 if len(written) else 0
        self.may_lack_end = may_lack_end(
            end * BATCH_UNIT_BYTES, files.file_size, was_short=files.is_short, is_empty_batch=not end
        )
        self._units = units[:end][is_unit[:end]]
        #: Whether files before the last are missing or have holes.
        self._has_holes = len(self._units) < end or (
            len(files.starts) > 1 and files.starts[-1] - files.starts[0] != files.file_size * (len(parts) - 1)
        )
        self._bases = self._units["base"].astype(np.int64)
        self.first = int(self._bases[0]) if len(self._units) else 0
        self.next = self.physical_end = self.matched_count = 0
        if len(self._units):
            last = self._units[-1]
            self.next = int(last["base"]) + int(last["count"])
            self.physical_end = end_of_unit(int(last["physical"]), int(last["size"]))

    def unit(self, number: int) -> tuple[int, int, int] | None:
        """Return the unit that begins at a message: physical offset, size, tag code; None if none does."""
        at = int(np.searchsorted(self._bases, number))
        if at == len(self._bases) or self._bases[at] != number:
            return None
        unit = self._units[at]
        return int(unit["physical"]), int(unit["size"]), int(unit["code"])

    def is_lost(self, number: int) -> bool:
        """Return whether a missing unit within the queue's range was lost with its file."""
        return self._has_holes and self.first <= number < self.next

    def count_units(self, log_start: int, log_end: int, damages: Sequence[Damage]) -> UnitCounts:
        """Count the units by where they point."""
        within, beyond = count_units(self._units, log_start, log_end, damages)
        return UnitCounts(len(self._units), within, beyond)

    def close(self) -> None:
        """Do nothing: no file is open."""
