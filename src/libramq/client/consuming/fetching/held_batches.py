"""The held batches of a queue: pulled, and not finished by a program that fetches. Each ends whole."""

from collections.abc import Sequence

from libramq.client.consuming.ownership.held_messages import HeldMessages
from libramq.client.consuming.pulling.pulled_records import PulledRecords, queue_offset_at
from libramq.message.message import MessageExt


class HeldBatches(HeldMessages):
    """Batches by their first offset. Each costs the same, however many messages it has."""

    __slots__ = ("_batches", "_count")

    def __init__(self) -> None:
        super().__init__()
        self._batches: dict[int, tuple[int, int, int]] = {}  # Last offset, number of messages, bytes.
        self._count = 0

    def __len__(self) -> int:
        return self._count

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first and the last message's offset; zeros if there is none."""
        if not self._batches:
            return 0, 0
        return min(self._batches), max(last for last, _, _ in self._batches.values())

    @property
    def span(self) -> int:
        """Return the distance from the first message's offset to the last one's."""
        first, last = self.bounds
        return last - first

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add the messages of a pull; a pull that begins with the same one is replaced."""
        first, last = queue_offset_at(messages, 0), queue_offset_at(messages, -1)
        self.remove_batch(first)
        size = messages.size if isinstance(messages, PulledRecords) else sum([len(m.body) for m in messages])
        self._batches[first] = last, len(messages), size
        self._count += len(messages)
        self.size += size
        self._highest = max(self._highest, last)

    def remove(self, messages: Sequence[MessageExt]) -> int | None:
        """Remove a whole batch; return the offset to commit."""
        self.remove_batch(queue_offset_at(messages, 0))
        return self.commit_offset

    def remove_batch(self, first: int) -> None:
        """Remove the batch that begins with an offset."""
        _, count, size = self._batches.pop(first, (0, 0, 0))
        self._count -= count
        self.size -= size

    @property
    def commit_offset(self) -> int | None:
        """Return the first offset of the batches; one past the highest if there is none left."""
        if self._batches:
            return min(self._batches)
        return self._highest + 1 if self._highest >= 0 else None
