"""The pull offset: up to where a group was sent the messages of each queue, since this process began.

Upstream: ConsumerOffsetManager.java, pullOffsetTable, which no file has either.
"""

from typing import Final

#: Ours: queues of groups that are remembered; of one that was pulled first so long ago nobody knows it.
PULL_OFFSETS_MAX: Final = 100_000


class PullOffsets:
    """The pull offsets of all groups."""

    def __init__(self) -> None:
        self._offsets: dict[tuple[str, str, int], int] = {}

    def set(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note that a pull of a group was answered up to an offset; called for every pull."""
        self._offsets[group, topic, queue_id] = offset
        if len(self._offsets) > PULL_OFFSETS_MAX:
            del self._offsets[next(iter(self._offsets))]

    def get(self, group: str, topic: str, queue_id: int) -> int | None:
        """Return up to where a group was sent a queue's messages; None: not by this process."""
        return self._offsets.get((group, topic, queue_id))

    def remove_group(self, group: str) -> None:
        """Forget a group that is deleted."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[0] != group}

    def remove_topic(self, topic: str) -> None:
        """Forget a topic that is deleted: one of its name begins anew."""
        self._offsets = {key: offset for key, offset in self._offsets.items() if key[1] != topic}
