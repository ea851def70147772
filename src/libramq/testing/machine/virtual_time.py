"""Virtual time: a clock that jumps from one event to the next.

Events that are due at the same millisecond happen in the order of their scheduling.
"""

import heapq
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
