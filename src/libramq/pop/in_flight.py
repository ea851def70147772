"""The check points in flight: which is due next, how many a group may have, the time of a pop by which its
check point is found, and the place from which the journal is still needed.

Everything before `oldest_place` in the journal is settled, so the next process begins to read there.
"""

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from libramq.clock import MonotonicMs
from libramq.pop.check_point import CheckPoint, Key

#: Ours: a check point takes some 600 bytes, whether for one message or 32, so these take 50 MB, which the
#: garbage collector scans in 15 ms. A group may have at most as many as remain free: one group alone gets
#: half of them, and another one always has room.
CHECK_POINTS_MAX: Final = 80_000
#: Ours: the entries of settled check points that are kept before an index is cleaned.
STALE_MAX: Final = 1024


class InFlight:
    """All unsettled check points."""

    def __init__(self) -> None:
        self._by_key: dict[Key, CheckPoint] = {}
        self._count_by_group: dict[str, int] = {}
        self._due: list[tuple[MonotonicMs, int, CheckPoint]] = []
        self._places: deque[tuple[int, CheckPoint]] = deque()
        self._sequence = 0
        #: Called when a check point is added, postponed or settled.
        self.changed: Callable[[], None] = lambda: None

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[CheckPoint]:
        return iter(self._by_key.values())

    def count_of(self, group: str) -> int:
        """Return the number of a group's check points."""
        return self._count_by_group.get(group, 0)

    def is_full_for(self, group: str) -> bool:
        """Return whether a group may not pop any more: it has as many check points as remain free."""
        return self.count_of(group) >= CHECK_POINTS_MAX - len(self._by_key)

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return when the next check point is due, or None."""
        due = self._due
        while due and not self._is_current(due[0]):
            heapq.heappop(due)
        return due[0][0] if due else None

    @property
    def oldest_place(self) -> int | None:
        """Return the first place in the journal that is still needed, or None."""
        places = self._places
        while places and not self._is_in(*places[0]):
            places.popleft()
        return places[0][0] if places else None

    def reaches_back(self, place: int) -> bool:
        """Return whether a check point before this place of the journal may still be in flight.

        Cheaper than `oldest_place`; called after every event.
        """
        return bool(self._places) and self._places[0][0] < place

    def find(self, key: Key) -> CheckPoint | None:
        """Return a check point in flight."""
        return self._by_key.get(key)

    def unused_time(self, untimed_keys: Sequence[tuple[str, str, int, int]], wall_ms: int) -> int:
        """Return the pop time of new check points: now, or the next time at which their keys are unused.

        untimed_keys: those keys, without the time.
        """
        by_key = self._by_key  # Hot: any() of a generator takes 0.4 µs more.
        while True:
            for topic, group, queue_id, start in untimed_keys:
                if (topic, group, queue_id, start, wall_ms) in by_key:
                    break
            else:
                return wall_ms
            wall_ms += 1

    def add(self, check_point: CheckPoint) -> None:
        """Add a journalled check point; it replaces an older one with the same key."""
        if check_point.is_settled:
            return
        if check_point.key not in self._by_key:
            self._count_by_group[check_point.group] = self.count_of(check_point.group) + 1
        self._by_key[check_point.key] = check_point
        self.placed(check_point)
        self.postpone(check_point, check_point.due_ms)

    def acknowledge(self, check_point: CheckPoint, bits: int) -> None:
        """Mark messages as done; a check point whose messages are all done is no longer in flight."""
        check_point.done |= bits
        if check_point.is_settled and self._by_key.get(check_point.key) is check_point:
            del self._by_key[check_point.key]
            count = self._count_by_group.pop(check_point.group) - 1
            if count:
                self._count_by_group[check_point.group] = count
            self.changed()

    def placed(self, check_point: CheckPoint) -> None:
        """Note a check point's new place in the journal, after all others."""
        self._places.append((check_point.place, check_point))
        if len(self._places) > 2 * len(self._by_key) + STALE_MAX:
            self._places = deque(each for each in self._places if self._is_in(*each))

    def postpone(self, check_point: CheckPoint, due_ms: MonotonicMs) -> None:
        """Set when a check point is due."""
        check_point.due_ms = due_ms
        self._sequence += 1
        heapq.heappush(self._due, (due_ms, self._sequence, check_point))
        if len(self._due) > 2 * len(self._by_key) + STALE_MAX:
            self._due = [each for each in self._due if self._is_current(each)]
            heapq.heapify(self._due)
        self.changed()

    def next_due(self, now_ms: MonotonicMs) -> CheckPoint | None:
        """Return the first check point to become due, if it is due now."""
        due_ms = self.next_due_ms
        return self._due[0][2] if due_ms is not None and due_ms <= now_ms else None

    def oldest(self, count_max: int) -> list[CheckPoint]:
        """Return the check points with the first places in the journal."""
        found: list[CheckPoint] = []
        for place, check_point in self._places:
            if len(found) == count_max:
                break
            if self._is_in(place, check_point):
                found.append(check_point)
        return found

    def _is_in(self, place: int, check_point: CheckPoint) -> bool:
        return check_point.place == place and self._by_key.get(check_point.key) is check_point

    def _is_current(self, entry: tuple[MonotonicMs, int, CheckPoint]) -> bool:
        return entry[2].due_ms == entry[0] and self._by_key.get(entry[2].key) is entry[2]
