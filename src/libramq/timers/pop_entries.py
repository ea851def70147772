"""POP's entries in the timers' topic: check points and acknowledgements, which only Apache's broker delivers.

Apache's broker writes them as timer messages, and moves them to its revive topic when they are due. Ours
writes the same, so that either continues with what is in flight at the other; but it acts on a table of its
own, so its timers leave them out.
"""

from typing import Protocol


class PopEntries(Protocol):
    """The part of POP that the timers use."""

    @property
    def place(self) -> int:
        """Return the position in the timers' topic at which the next start begins to read the journal."""
        ...

    @property
    def oldest_place(self) -> int | None:
        """Return the offset of the oldest check point in flight; None if there is none."""
        ...

    def skip(self, offset: int) -> int:
        """Return the offset after the entries that this process wrote at an offset."""
        ...

    def owns(self, real_topic: str | None) -> bool:
        """Return whether timer messages for a topic are entries, which no timer delivers."""
        ...
