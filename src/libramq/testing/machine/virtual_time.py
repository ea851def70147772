"""Virtual time: a clock that jumps from one event to the next.

Events due at the same millisecond happen in the order in which they were scheduled.
"""

import heapq
import random
from collections.abc import Callable
from typing import Any, Final

from libramq.clock import MonotonicMs, WallMs

#: 2023-11-14: an arbitrary moment, the same in every run.
WALL_START_MS: Final = WallMs(1_700_000_000_000)
#: Not zero, because a time of zero means "never" in some places.
MONOTONIC_START_MS: Final = MonotonicMs(1_000_000)

#: More events at one moment mean an endless loop; a hundred members joining at once cause a few thousand.
EVENTS_PER_MS_MAX: Final = 100_000

Action = Callable[[], None]


def _nothing() -> None:
    """Do nothing: a cancelled event."""


class Event(list[Any]):
    """A scheduled event: time, number, action. A list, because the heap compares lists in C."""

    __slots__ = ()

    def cancel(self) -> None:
        """Cancel the event."""
        self[2] = _nothing


class Livelock(Exception):
    """Events keep causing events without time advancing."""


class VirtualTime:
    """A `Clock`, and the schedule of events."""

    def __init__(self) -> None:
        self.now_ms = MONOTONIC_START_MS
        self._events: list[Event] = []
        #: The current event.
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
        """Schedule an event at a monotonic time, or now if that has passed."""
        self._sequence += 1
        event = Event((due_ms if due_ms > self.now_ms else self.now_ms, self._sequence, action))
        heapq.heappush(self._events, event)
        return event

    def happen(self, event: Event) -> None:
        """Run an overdue event now."""
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


#: Linux's NTP discipline corrects a clock by at most 500 ppm (MAXFREQ); quartz clocks are better.
DRIFT_PPM_MAX: Final = 500
#: Ours: the initial error of an unsynchronised clock.
SKEW_MS_MAX: Final = 600_000
#: Ours: this many readings of a clock take a millisecond.
READINGS_A_MS: Final = 5
#: Ours: the longest turn.
TURN_MS_MAX: Final = 20
_MILLION: Final = 1_000_000
#: The difference between the true wall clock and the true monotonic clock.
_WALL_AHEAD_MS: Final = int(WALL_START_MS) - int(MONOTONIC_START_MS)


class NodeClock:
    """The `Clock` of one machine; exact without randomness. drift_ppm: millionths too fast.

    The monotonic clock runs a little fast or slow and restarts at an arbitrary value with the machine. The
    wall clock has the same drift, is wrong from the start, and may be set. Time passes while a process
    computes: the second of two readings in one turn may be later, on either clock.
    """

    def __init__(self, time: VirtualTime, randomness: random.Random | None = None) -> None:
        self._time = time
        self._random = randomness
        self.drift_ppm = randomness.randint(-DRIFT_PPM_MAX, DRIFT_PPM_MAX) if randomness is not None else 0
        self._skew_ms = randomness.randint(-SKEW_MS_MAX, SKEW_MS_MAX) if randomness is not None else 0
        self._booted_ms = time.now_ms
        #: The start of the current turn, its duration so far, and the total number of readings.
        self._turn_ms, self._ahead_ms, self._readings = time.now_ms, 0, 0
        self._boot_ms = self._begin()
        #: The highest wall clock time read so far.
        self.wall_ms_max = WallMs(0)

    def monotonic_ms(self) -> MonotonicMs:
        """Return the milliseconds since a fixed moment."""
        true_ms = self._passing() - self._booted_ms  # `_ran_ms`, inlined for the most frequent call.
        return self._boot_ms + true_ms + true_ms * self.drift_ppm // _MILLION

    def wall_ms(self) -> WallMs:
        """Return the milliseconds since 1970 on this machine's clock."""
        now_ms = self._passing()
        true_ms = now_ms - self._booted_ms
        wall_ms = WallMs(int(now_ms) + _WALL_AHEAD_MS) + self._skew_ms + true_ms * self.drift_ppm // _MILLION
        if wall_ms > self.wall_ms_max:
            self.wall_ms_max = wall_ms
        return wall_ms

    def _passing(self) -> MonotonicMs:
        """Return the current time, which advances during a turn as the clock is read."""
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
        """Return the true time until this clock has advanced by `delay_ms`."""
        if not self.drift_ppm:
            return delay_ms + self._ahead_ms
        ran_ms = self._time.now_ms - self._booted_ms
        due_ms = ran_ms + ran_ms * self.drift_ppm // _MILLION + delay_ms
        true_ms = -(-due_ms * _MILLION // (_MILLION + self.drift_ppm)) - ran_ms
        return max(0, true_ms) + self._ahead_ms

    def set_wall(self, by_ms: int) -> None:
        """Move the wall clock by `by_ms`."""
        self._skew_ms += by_ms

    def reboot(self) -> None:
        """Restart the machine: monotonic time starts over."""
        self._skew_ms += self._ran_ms() - (self._time.now_ms - self._booted_ms)
        self._booted_ms = self._time.now_ms
        self._boot_ms = self._begin()

    def _begin(self) -> MonotonicMs:
        """Return a start value above zero, because a time of zero means "never" in some places."""
        if self._random is None:
            return MONOTONIC_START_MS + self._time.elapsed_ms
        return MonotonicMs(self._random.randint(int(MONOTONIC_START_MS), 1_000 * int(MONOTONIC_START_MS)))

    def _ran_ms(self) -> int:
        """Return how far the clock has advanced since the machine started."""
        true_ms = self._time.now_ms - self._booted_ms
        return true_ms + true_ms * self.drift_ppm // _MILLION if self.drift_ppm else true_ms
