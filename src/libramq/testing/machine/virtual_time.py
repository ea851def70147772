"""Virtual time: a clock that jumps from one event to the next.

Events that are due at the same millisecond happen in the order of their scheduling.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any, Final

from libramq.clock import MonotonicMs, WallMs

#: 2023-11-14: any moment, the same in every run.
WALL_START_MS: Final = WallMs(1_700_000_000_000)
#: Not zero: a time of zero means "never" in places.
MONOTONIC_START_MS: Final = MonotonicMs(1_000_000)

#: More events at one moment are an endless loop; a hundred members that join at once cause some thousands.
EVENTS_PER_MS_MAX: Final = 100_000

Action = Callable[[], None]


def _nothing() -> None:
    """Do nothing: a cancelled event."""


class Event(list[Any]):
    """A scheduled event: its time, its number, its action. A list, because the heap compares lists in C."""

    __slots__ = ()

    def cancel(self) -> None:
        """Have nothing happen at its time."""
        self[2] = _nothing


class Livelock(Exception):
    """Events cause events, and time does not advance."""


class VirtualTime:
    """A `Clock`, and the schedule of events."""

    def __init__(self) -> None:
        self.now_ms = MONOTONIC_START_MS
        self._events: list[Event] = []
        #: The event that happens now.
        self.event = Event((self.now_ms, 0, _nothing))
        self._sequence = 0

    def monotonic_ms(self) -> MonotonicMs:
        """Return the milliseconds since a fixed moment."""
        return self.now_ms

    def wall_ms(self) -> WallMs:
        """Return the milliseconds since 1970."""
        return WALL_START_MS + (self.now_ms - MONOTONIC_START_MS)

    @property
    def elapsed_ms(self) -> int:
        """Return the milliseconds since the simulation began."""
        return self.now_ms - MONOTONIC_START_MS

    def at(self, due_ms: MonotonicMs, action: Action) -> Event:
        """Schedule an event at a (monotonic) time; now, if that is over."""
        self._sequence += 1
        event = Event((due_ms if due_ms > self.now_ms else self.now_ms, self._sequence, action))
        heapq.heappush(self._events, event)
        return event

    def happen(self, event: Event) -> None:
        """Do an event's action now, later than it was due."""
        self.event = event
        event[2]()

    def run_until(self, end_ms: MonotonicMs) -> None:
        """Run all events up to a time; raises Livelock."""
        events, count, pop = self._events, 0, heapq.heappop
        while events and events[0][0] <= end_ms:
            self.event = event = pop(events)
            due_ms, _, action = event
            if due_ms != self.now_ms:
                self.now_ms, count = due_ms, 0
            action()
            count += 1
            if count > EVENTS_PER_MS_MAX:
                raise Livelock(f"{count} events at {self.elapsed_ms} ms")
        self.now_ms = max(self.now_ms, end_ms)


#: Linux: the kernel's NTP discipline corrects a clock by 500 ppm at most (MAXFREQ); quartz is better.
DRIFT_PPM_MAX: Final = 500
#: Ours: a clock without synchronisation.
SKEW_MS_MAX: Final = 600_000
#: Ours: how many readings take a millisecond, and how long a turn lasts at most.
READINGS_A_MS: Final = 5
TURN_MS_MAX: Final = 20
_MILLION: Final = 1_000_000
#: What the true wall clock is ahead of the true monotonic one.
_WALL_AHEAD_MS: Final = int(WALL_START_MS) - int(MONOTONIC_START_MS)


class NodeClock:
    """A `Clock` of one machine; exact without randomness. drift_ppm: millionths too fast.

    The monotonic clock runs a little fast or slow, and restarts at an arbitrary value with the machine. The
    wall clock drifts the same, is wrong from the start, and may be set. Time passes while a process computes:
    of two readings in one turn the second may be later, by either clock.
    """

    def __init__(self, time: VirtualTime, randomness: random.Random | None = None) -> None:
        self._time = time
        self._random = randomness
        self.drift_ppm = randomness.randint(-DRIFT_PPM_MAX, DRIFT_PPM_MAX) if randomness is not None else 0
        self._skew_ms = randomness.randint(-SKEW_MS_MAX, SKEW_MS_MAX) if randomness is not None else 0
        self._booted_ms = time.now_ms
        #: When the present turn began, how long it has lasted, and how often a clock was read in all.
        self._turn_ms, self._ahead_ms, self._readings = time.now_ms, 0, 0
        self._boot_ms = self._begin()
        #: The highest wall clock time ever read here.
        self.wall_ms_max = WallMs(0)

    def monotonic_ms(self) -> MonotonicMs:
        """Return the milliseconds since a fixed moment."""
        true_ms = self._passing() - self._booted_ms  # As `_ran_ms`, inlined for the most frequent call.
        return self._boot_ms + true_ms + true_ms * self.drift_ppm // _MILLION

    def wall_ms(self) -> WallMs:
        """Return the milliseconds since 1970, by this machine."""
        now_ms = self._passing()
        true_ms = now_ms - self._booted_ms
        wall_ms = WallMs(int(now_ms) + _WALL_AHEAD_MS) + self._skew_ms + true_ms * self.drift_ppm // _MILLION
        if wall_ms > self.wall_ms_max:
            self.wall_ms_max = wall_ms
        return wall_ms

    def _passing(self) -> MonotonicMs:
        """Return the present moment: later than the turn's beginning, if the clock was read often since."""
        now_ms = self._time.now_ms
        if self._random is None:
            return now_ms
        if now_ms != self._turn_ms:
            self._ahead_ms = max(0, self._ahead_ms - (now_ms - self._turn_ms))
            self._turn_ms = now_ms
        self._readings += 1
        if not self._readings % READINGS_A_MS and self._ahead_ms < TURN_MS_MAX:
            self._ahead_ms += 1
        return now_ms + self._ahead_ms

    def true_ms(self, delay_ms: int) -> int:
        """Return how long it really takes until this clock has advanced by a delay."""
        if not self.drift_ppm:
            return delay_ms + self._ahead_ms
        ran_ms = self._time.now_ms - self._booted_ms
        due_ms = ran_ms + ran_ms * self.drift_ppm // _MILLION + delay_ms
        true_ms = -(-due_ms * _MILLION // (_MILLION + self.drift_ppm)) - ran_ms
        return max(0, true_ms) + self._ahead_ms

    def set_wall(self, by_ms: int) -> None:
        """Set the wall clock."""
        self._skew_ms += by_ms

    def reboot(self) -> None:
        """Restart the machine: monotonic time starts over."""
        self._skew_ms += self._ran_ms() - (self._time.now_ms - self._booted_ms)
        self._booted_ms = self._time.now_ms
        self._boot_ms = self._begin()

    def _begin(self) -> MonotonicMs:
        """Return a value above zero: a time of zero means "never" in places."""
        if self._random is None:
            return MONOTONIC_START_MS + self._time.elapsed_ms
        return MonotonicMs(self._random.randint(int(MONOTONIC_START_MS), 1_000 * int(MONOTONIC_START_MS)))

    def _ran_ms(self) -> int:
        """Return how far it has advanced since the machine started."""
        true_ms = self._time.now_ms - self._booted_ms
        return true_ms + true_ms * self.drift_ppm // _MILLION if self.drift_ppm else true_ms
