"""The offset store: the group's offsets in our queues, and which of them brokers have acknowledged.

Upstream: store/RemoteBrokerOffsetStore.java, ControllableOffset.java.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from libramq.message.queue import MessageQueue


@dataclass(slots=True)
class _Entry:
    offset: int
    frozen: bool = False
    persisted: int | None = None


class OffsetStore:
    """Offsets in memory, beside those that the broker has acknowledged.

    is_manual: only the program's own requests to commit change them.
    """

    def __init__(self, *, is_manual: bool = False) -> None:
        self._is_manual = is_manual
        self._entries: dict[MessageQueue, _Entry] = {}
        #: Whether an offset has changed since this was set to False.
        self.is_changed = False

    @property
    def is_acknowledged(self) -> bool:
        """Return whether brokers have acknowledged all offsets."""
        return all(entry.persisted == entry.offset for entry in self._entries.values())

    def read(self, queue: MessageQueue) -> int | None:
        """Return the offset of a queue; None if none of it was consumed."""
        entry = self._entries.get(queue)
        return None if entry is None else entry.offset

    def loaded(self, queue: MessageQueue, offset: int) -> None:
        """Set the committed offset that the broker reported."""
        self._entries[queue] = _Entry(offset, persisted=offset)

    def advance(self, queue: MessageQueue, offset: int) -> None:
        """Advance the offset; never move it back."""
        if self._is_manual:
            return
        entry = self._entries.get(queue)
        if entry is None:
            self._entries[queue] = _Entry(offset)
            self.is_changed = True
        elif not entry.frozen and offset > entry.offset:
            entry.offset = offset
            self.is_changed = True

    def sought(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, backwards if necessary, as the program has set its position."""
        if not self._is_manual:
            entry = self._entries.get(queue)
            self._entries[queue] = _Entry(offset, persisted=None if entry is None else entry.persisted)
            self.is_changed = True

    def request(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset that the program wants committed."""
        self._entries[queue] = _Entry(offset)
        self.is_changed = True

    def freeze(self, queue: MessageQueue, offset: int) -> None:
        """Set the offset, backwards if necessary, and ignore later results of handlers."""
        self._entries[queue] = _Entry(offset, frozen=True)
        self.is_changed = True

    def to_persist(
        self, queues: Iterable[MessageQueue], *, all_of_them: bool
    ) -> list[tuple[MessageQueue, int]]:
        """Return the offsets to commit: those changed since the last acknowledgement, or all."""
        found = []
        for queue in queues:
            entry = self._entries.get(queue)
            if entry is not None and (all_of_them or entry.persisted != entry.offset):
                found.append((queue, entry.offset))
        return found

    def persisted(self, queue: MessageQueue, offset: int) -> None:
        """Note that the broker acknowledged an offset."""
        entry = self._entries.get(queue)
        if entry is not None:
            entry.persisted = offset

    def acknowledged(self, queue: MessageQueue) -> int | None:
        """Return the offset last fetched from or acknowledged by the broker; None when none is known."""
        entry = self._entries.get(queue)
        return None if entry is None else entry.persisted

    def forget(self, queue: MessageQueue) -> None:
        """Remove a queue that is no longer ours."""
        self._entries.pop(queue, None)
