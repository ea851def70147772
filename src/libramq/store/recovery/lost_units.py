"""The lost units: finds missing files of consume queues, and restores their units from the log.

    unit      0 … 99 │ 100 … 199 │ 200 …        the file with 100 to 199 is gone
    log       … 98 99 │ 100 101 … 198 199 │ 200      one run up to the first existing unit: restored

A queue may begin later than the log only if its files were removed with the log's or its messages were
deleted; otherwise its first files were lost. Units are restored only if their numbers run without a gap, in
the log's order, up to the first existing unit. This excludes records of a topic that was deleted and
recreated, even if no note of the deletion exists (Apache's stores).

A queue without any file has no existing unit; `recover` rebuilds it with all others. The unit count in the
recovery point tells whether last files were lost. It is void once another broker has stored messages. In that
case the log is searched for units after the end of every queue that ends with a full file or has no units.
"""

from collections.abc import Iterator

from libramq.logs import get_logger
from libramq.message.inner_batch import message_count
from libramq.message.record import RecordHead
from libramq.store.deletions import Deletions
from libramq.store.log.commit_log import CommitLog
from libramq.store.log.log_scan import LogScan
from libramq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue, end_of_unit, unit_of
from libramq.store.queues.consume_queue_table import ConsumeQueueTable, QueueKey

log = get_logger(__name__)


class Run:
    """Consecutively numbered records of a queue; a gap begins another run."""

    __slots__ = ("count", "next_number")

    def __init__(self) -> None:
        self.count = 0
        self.next_number = -1

    def add(self, number: int, message_count: int) -> bool:
        """Add a record; return whether it continues the run."""
        continues = number == self.next_number
        self.count = self.count + 1 if continues else 1
        self.next_number = number + message_count
        return continues


class LostUnits:
    """A queue's places [low, end) without units, and their records' range in the log. low 0: the start."""

    def __init__(self, queue: ConsumeQueue, low: int, end: int, after: int) -> None:
        self.queue = queue
        self.low, self.end = low, end
        self.after, self.before = after, int(queue.unit_at(end)[0])
        self.number = queue.number_at(end)
        self._run = Run()
        self._units = bytearray()

    @property
    def has_records(self) -> bool:
        """Return whether the log has a record whose unit may be among the lost ones."""
        return self._run.count > 0

    def offer(self, head: RecordHead, number: int) -> None:
        """Take a record of the queue if its unit may be among the lost ones."""
        if self.after <= head.physical_offset < self.before:
            count = message_count(head)
            if not self._run.add(number, count):
                self._units.clear()
            if self._run.next_number <= self.number:  # Later numbers exceed the lost places.
                self._units += self.queue.with_tail(unit_of(head), number, count, head.store_timestamp_ms)

    def restore(self) -> int:
        """Write the units found, and blank units in place of the rest; return the number found."""
        room = (self.end - self.low) * self.queue.unit_bytes
        units = bytes(self._units[-room:]) if self._run.next_number == self.number else b""
        self.queue.restore(self.low, self.end, units, before=self.after if self.low else 0)
        return len(units) // self.queue.unit_bytes


def lost_units(queue: ConsumeQueue, log_start: int, deletions: Deletions) -> Iterator[LostUnits]:
    """Yield a queue's ranges of lost units, according to its files; waits for the disk."""
    starts = queue.segments.starts
    first = queue.segments.min_offset // queue.unit_bytes if starts else 0
    if first and queue.written > first:
        limit = max(log_start, deletions.end_in_queue(queue.topic, queue.queue_id))
        unit = queue.unit_at(first)
        if unit[0] > limit and unit[1] != BLANK_SIZE:
            yield LostUnits(queue, 0, first, limit)
    for low, end in queue.holes:
        yield LostUnits(queue, low, end, end_of_unit(*queue.unit_at(low - 1)[:2]))


def restore_lost_units(log_: CommitLog, queues: ConsumeQueueTable, deletions: Deletions) -> None:
    """Restore units of files that are missing before or between others; waits for the disk."""
    lost: dict[QueueKey, list[LostUnits]] = {}
    for queue in queues:
        if found := list(lost_units(queue, log_.min_offset, deletions)):
            lost[queue.topic, queue.queue_id] = found
    if not lost:
        return
    every = [each for found in lost.values() for each in found]
    begin = max(min(each.after for each in every), log_.min_offset)
    for head, key, number in _records_between(log_, queues, begin, max(each.before for each in every)):
        for each in lost.get(key, ()):
            each.offer(head, number)
    for found in lost.values():
        queue = found[0].queue
        restored = sum([each.restore() for each in found])
        queue.restored()
        queues.unsynced[queue] = None
        if any(each.low or each.has_records for each in found):  # Otherwise it begins with the log.
            log.warning(
                "files of a consume queue were lost; their units are rebuilt from the commit log",
                topic=queue.topic,
                queue_id=queue.queue_id,
                units=restored,
            )


def restore_lost_ends(
    log_: CommitLog, queues: ConsumeQueueTable, deletions: Deletions, known_end: int, lost: list[ConsumeQueue]
) -> bool:
    """Rebuild the units of the queues' last files; return whether there were any. Waits for the disk.

    A queue without units gets those of the newest topic of its name, whose numbers restart at 0.
    """
    begin = max(log_.min_offset, min(queue.last_physical_end for queue in lost))
    was_empty = {queue: not queue.last_physical_end for queue in lost}
    restored = False
    for head, (topic, queue_id), number in _records_between(log_, queues, begin, known_end):
        queue = queues.get(topic, queue_id)
        at = head.physical_offset
        if queue not in was_empty or at < max(queue.last_physical_end, deletions.end_of(topic)):
            continue
        begins = was_empty[queue] and (not number or not queue.last_physical_end)
        if begins or number == queue.max_offset:
            restored |= queue.rebuild(head, number, unit_of(head))
            queues.pending[queue] = None
    return restored


def _records_between(
    log_: CommitLog, queues: ConsumeQueueTable, begin: int, end: int
) -> Iterator[tuple[RecordHead, QueueKey, int]]:
    """Yield the records of the log, each with every queue that contains it and its number there."""
    for head in LogScan(log_.segments, begin, protected=min(end, log_.segments.end), refuses_nuls=False):
        if head.offset >= end if not isinstance(head, RecordHead) else head.physical_offset >= end:
            return
        if isinstance(head, RecordHead):
            for topic, queue_id, number in queues.places(head):
                yield head, (topic, queue_id), number
