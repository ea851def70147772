"""The account of a delay level: what an acting slave has delivered beyond the level's offset.

    level      ✓ ✓ ○ ✓ ✓ ○ ✓ │ …
    offset ────────┘         └── until          waiting: both ○

Apache's broker knows the offset alone, and delivers again what lies behind it.
"""

from bisect import bisect_left
from typing import Final

from libramq.formats.document import Document

#: Ours: messages of a level that others pass; with more of them, those behind wait, too.
WAITING_MAX: Final = 4_096


class LevelAccount(Document, frozen=True, kw_only=True):
    """Everything before `until` is delivered but for what is waiting, in ascending order."""

    until: int = 0
    waiting: tuple[int, ...] = ()

    def first_undelivered(self, offset: int) -> int:
        """Return the first offset, from one on, that is not delivered."""
        if offset >= self.until:
            return offset
        place = bisect_left(self.waiting, offset)
        return self.waiting[place] if place < len(self.waiting) else self.until

    def is_ahead_of(self, other: "LevelAccount") -> bool:
        """Return whether more is delivered by this account than by another one."""
        if self.until == other.until:
            return len(self.waiting) < len(other.waiting)
        return self.until > other.until

    def bounded(self, end: int) -> "LevelAccount":
        """Return what holds before an offset, and in order; whoever wrote it may be another version."""
        until = max(0, min(self.until, end))
        waiting = sorted({each for each in self.waiting if 0 <= each < until})
        if len(waiting) > WAITING_MAX:
            until = waiting[WAITING_MAX]
        return LevelAccount(until=until, waiting=tuple(waiting[:WAITING_MAX]))
