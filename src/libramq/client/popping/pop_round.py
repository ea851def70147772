"""The pop round: which brokers one `receive` pops in turn, and for how long each may hold the request.

    several places   first each in turn at once, then each in turn for a second, until the time is up
    one place        it holds the request for the whole time

A place is a topic at a broker. One that fails is left out of the round; if all do, the last error is raised.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.errors import LibraError

#: Ours: messages that arrive elsewhere wait for at most as long, times the number of places.
SLICE_MS: Final = 1_000

#: Ours: a broker answers a held pop 50 ms early, so with less time left it answers at once, again and again.
ENOUGH_MS: Final = 100


class Place(NamedTuple):
    """A topic at a broker."""

    topic: str
    broker_name: str


class NextPop(NamedTuple):
    """Pop here; the broker may hold the request for so long."""

    place: Place
    poll_ms: int


class PopRound:
    """One round, beginning with the first place."""

    def __init__(self, places: Sequence[Place], *, now_ms: MonotonicMs, await_ms: int) -> None:
        self._places = list(places)
        self._deadline_ms = now_ms + await_ms
        self._requested = 0
        self._at_once = len(places) if len(places) > 1 else 0
        self._error: LibraError | None = None

    def next(self, now_ms: MonotonicMs) -> NextPop | None:
        """Return where to pop next; None when the time is up. Raises the last error if every place failed."""
        if not self._places:
            assert self._error is not None, "a round has places"
            raise self._error
        left_ms = max(0, self._deadline_ms - now_ms)
        at_once = self._requested < self._at_once
        if not at_once and left_ms < ENOUGH_MS and self._requested:
            return None
        place = self._places.pop(0)
        self._places.append(place)
        self._requested += 1
        if at_once:
            return NextPop(place, 0)
        return NextPop(place, left_ms if len(self._places) == 1 else min(left_ms, SLICE_MS))

    @property
    def is_last(self) -> bool:
        """Return whether no other place is left to ask."""
        return len(self._places) == 1

    def failed(self, place: Place, error: LibraError) -> None:
        """Leave a place out."""
        self._places.remove(place)
        self._error = error
