"""The standstill: time in which a process did nothing, as it was stopped, or its machine was busy elsewhere.

Whoever judges others by their silence looks every period. A look that comes much too late says that nobody
listened meanwhile: what the others sent lies unread in sockets, and their silence is not theirs.
"""

from typing import Final

from libramq.clock import MonotonicMs

#: Ours: how late a look must come; the shortest sessions are of 1 s, with a request every third of it.
LATE_MS_MIN: Final = 250


class Standstill:
    """Notices looks that come late."""

    def __init__(self, period_ms: int) -> None:
        self._period_ms = period_ms
        self._looked_at_ms: MonotonicMs | None = None

    @property
    def due_ms(self) -> MonotonicMs | None:
        """When to look at the latest; None while nobody is judged."""
        return self._looked_at_ms + self._period_ms if self._looked_at_ms is not None else None

    def look(self, now_ms: MonotonicMs, *, goes_on: bool = True) -> int:
        """Return the milliseconds since the last look if this one comes late, else 0.

        goes_on: whether somebody is judged until the next look.
        """
        before_ms = self._looked_at_ms
        self._looked_at_ms = now_ms if goes_on else None
        if before_ms is None or now_ms - before_ms < self._period_ms + LATE_MS_MIN:
            return 0
        return now_ms - before_ms
