"""The retries of groups: how many messages of each group wait at this broker for another attempt, and how
often they have failed.

    a delay level    ── delivered ──┬──── counted ────┬── new: read by the next look ──► end
                                    begin             end

A message sent back waits in SCHEDULE_TOPIC_XXXX, and only its record names its group. Each message is read
once to be counted, after a start all waiting ones; delivered ones are subtracted. If a level's position jumps
because another broker has delivered for it, the level is counted again. Until all levels are read, the
numbers are unknown. A message that was popped again counts while it is in flight.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from libramq.broker.files.delay_schedule import DelaySchedule
from libramq.clock import Clock
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.pop.in_flight import InFlight
from libramq.pop.ordered import OrderTable
from libramq.store.log.append import undamaged
from libramq.store.message_store import MessageStore
from libramq.store.reading.read import ReadStatus

#: Ours: messages per step; a stretch without retries is not decoded.
READ_MAX: Final = 32
#: Ours: check points, or ordered pops, per step, in 0.1 ms.
POPS_AT_ONCE: Final = 1_000
#: Ours: messages that have failed more often are counted here; Apache's retryMaxTimes.
TIMES_MAX: Final = 16
_OF_RETRY: Final = f"{p.REAL_TOPIC}\x01{names.RETRY_PREFIX}".encode()


@dataclass(slots=True)
class _Level:
    """The counts of a delay level: retries by group and number of failures.

    is_counted: all messages that waited at the last read are included.
    """

    begin: int
    end: int
    is_counted: bool = False
    counts: Counter[tuple[str, int]] = field(default_factory=Counter)


class GroupRetries:
    """Counts waiting retries."""

    def __init__(
        self,
        store: MessageStore,
        schedule: DelaySchedule,
        in_flight: InFlight,
        ordered: OrderTable,
        clock: Clock,
    ) -> None:
        self._store = store
        self._clock = clock
        self._schedule = schedule
        self._in_flight = in_flight
        self._ordered = ordered
        self._popped: Counter[tuple[str, int]] = Counter()
        self._levels: dict[int, _Level] = {}
        self._is_looking = False
        schedule.delivered = self._delivered

    def waiting(self) -> Mapping[str, Mapping[int, int]] | None:
        """Return how many messages of each group wait, by their number of failures; None: unknown."""
        levels = [self._levels.get(number) for number in self._schedule.levels]
        found: dict[str, Counter[int]] = {}
        counters = [self._popped]
        for level in levels:
            if level is None or not level.is_counted:
                return None
            counters.append(level.counts)
        for counter in counters:
            for (group, times), count in counter.items():
                found.setdefault(group, Counter())[times] += count
        return found

    @property
    def may_wait(self) -> bool:
        """Return whether retries wait, or may wait because not all are counted. None wait at a slave."""
        levels = [self._levels.get(number) for number in self._schedule.levels]
        waits = any(level is None or not level.is_counted or level.counts for level in levels)
        return (waits or bool(self._popped)) and not self._store.config.is_copy

    def look(self) -> Work[None]:
        """Count messages delayed since the last look; a slave counts none, as its master delivers."""
        if self._is_looking or self._store.config.is_copy:
            return
        self._is_looking = True
        try:
            for number in self._schedule.levels:
                yield from self._read(number)
            yield from self._look_at_pops()
        finally:
            self._is_looking = False

    def _look_at_pops(self) -> Work[None]:
        """Count failed messages that were popped again."""
        found: Counter[tuple[str, int]] = Counter()
        for number, each in enumerate(list(self._in_flight)):
            if each.failures:
                found[each.group, min(each.failures, TIMES_MAX)] += each.open_bits.bit_count()
            if number % POPS_AT_ONCE == 0:
                yield None
        for number, queue in enumerate(list(self._ordered.pops)):
            pop = self._ordered.pops.get(queue)
            if pop is not None and pop.counts:
                for times in pop.failures(self._clock.monotonic_ms()):
                    found[queue[0], min(times, TIMES_MAX)] += 1
            if number % POPS_AT_ONCE == 0:
                yield None
        self._popped = found

    def _read(self, number: int) -> Work[None]:
        while True:
            begin = self._schedule.next_offset(number)
            level = self._levels.get(number)
            if level is None or level.begin != begin:
                level = self._levels[number] = _Level(begin, begin)
            start = level.end
            if start >= self._store.max_offset(names.SCHEDULE_TOPIC, number - 1):
                level.is_counted = True
                return
            found = yield from self._store.reading(partial(self._stretch, number, start))
            if level is self._levels.get(number) and level.end == start:  # Nothing was delivered meanwhile.
                messages, level.end = found
                level.counts.update(self._retries(messages))
                if level.end == start:  # Later messages are not flushed yet.
                    level.is_counted = True
                    return
            yield None

    def _stretch(self, number: int, start: int) -> tuple[list[MessageExt], int]:
        """Return the messages of a stretch if it has retries, and where the next stretch begins."""
        result = self._store.read(names.SCHEDULE_TOPIC, number - 1, start, READ_MAX)
        if result.status is not ReadStatus.FOUND:
            return [], max(start, result.next_offset) if result.max_offset > start else start
        has_retries = _OF_RETRY in b"".join(result.data)
        return undamaged(result.data) if has_retries else [], result.next_offset

    def _delivered(self, number: int, start: int, end: int, messages: Sequence[MessageExt]) -> None:
        """Subtract the messages that a level has delivered between two offsets."""
        level = self._levels.get(number)
        if level is None:
            return
        if level.begin != start:
            del self._levels[number]
            return
        passed = [each for each in messages if each.queue_offset < min(end, level.end)]
        level.counts.subtract(self._retries(passed))
        level.counts = +level.counts  # Drop zero counts.
        level.begin, level.end = end, max(end, level.end)

    def topic_deleted(self, topic: str) -> None:
        """Forget messages for a deleted topic: when due, they are dropped, even if the topic exists again."""
        if topic.startswith(names.RETRY_PREFIX):
            group = topic.removeprefix(names.RETRY_PREFIX)
            for level in self._levels.values():
                for key in [key for key in level.counts if key[0] == group]:
                    del level.counts[key]

    def _retries(self, messages: Iterable[MessageExt]) -> list[tuple[str, int]]:
        return [
            (topic.removeprefix(names.RETRY_PREFIX), min(message.reconsume_times, TIMES_MAX))
            for message in messages
            if (topic := message.properties.get(p.REAL_TOPIC, "")).startswith(names.RETRY_PREFIX)
            and not self._schedule.is_dropped(message)
        ]
