"""The pull offset: up to where messages of each queue were delivered to a group, since this process began.

Upstream: ConsumerOffsetManager.java, pullOffsetTable, which is not stored in a file either.
"""

from typing import Final

#: Ours: how many queues of groups are remembered; the one pulled first is forgotten.
PULL_OFFSETS_MAX: Final = 100_000


class PullOffsets:
    """The pull offsets of all groups."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str, int], int] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note the end of a pull's reply to a group; called for every pull."""
        self._offsets[group, topic, queue_id] = offset
        if len(self._offsets) > PULL_OFFSETS_MAX:
            del self._offsets[next(iter(self._offsets))]

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return up to where a queue's messages were delivered to a group; None: not by this process."""
        return self._offsets.get((group, topic, queue_id))

    def remove_group(self, group: str) -> None:
        """Remove a deleted group."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[0] != group}

    def remove_topic(self, topic: str) -> None:
        """Remove a deleted topic: a new topic of its name starts from scratch."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[1] != topic}
