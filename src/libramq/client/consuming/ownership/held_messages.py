"""The held messages of a queue: pulled and not done. The smallest of their offsets is what is committed."""

from collections.abc import Sequence
from operator import lt

from libramq.message.message import MessageExt


class HeldMessages:
    """Messages by queue offset. size: of their bodies."""

    __slots__ = ("_highest", "_is_ascending", "_sizes", "size")

    def __init__(self) -> None:
        #: Sizes by offset: a handler that replaces a body changes nothing here.
        self._sizes: dict[int, int] = {}
        self.size = 0
        self._highest = -1
        self._is_ascending = True

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first and the last message's offset; zeros if there is none."""
        return (min(self._sizes), max(self._sizes)) if self._sizes else (0, 0)

    @property
    def span(self) -> int:
        """Return the distance from the first message's offset to the last one's."""
        return next(reversed(self._sizes)) - next(iter(self._sizes)) if self._sizes else 0

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add pulled messages; one that is here already is replaced."""
        offsets = [message.queue_offset for message in messages]
        sizes = [len(message.body) for message in messages]
        if offsets and offsets[0] > self._highest and all(map(lt, offsets, offsets[1:])):
            # True of nearly every pull: 0.1 µs a message instead of 0.25.
            self._sizes.update(zip(offsets, sizes, strict=True))
            self.size += sum(sizes)
            self._highest = offsets[-1]
            return
        for offset, size in zip(offsets, sizes, strict=True):
            replaced = self._sizes.get(offset)
            if replaced is not None:
                self.size -= replaced
            elif offset < self._highest:
                self._is_ascending = False
            self._sizes[offset] = size
            self.size += size
            self._highest = max(self._highest, offset)

    def remove(self, messages: Sequence[MessageExt]) -> int | None:
        """Remove messages that are done; return the offset to commit, None if nothing was here."""
        if not self._sizes:
            return None
        pop, freed_bytes = self._sizes.pop, 0
        for message in messages:
            freed_bytes += pop(message.queue_offset, 0)
        self.size -= freed_bytes
        return self.commit_offset

    @property
    def commit_offset(self) -> int | None:
        """Return the smallest offset not done; one past the highest if all are; None before the first."""
        if self._sizes:
            # A dict keeps the order of arrival, which is ascending unless a broker went back.
            return next(iter(self._sizes)) if self._is_ascending else min(self._sizes)
        return self._highest + 1 if self._highest >= 0 else None
