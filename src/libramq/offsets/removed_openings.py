"""The removed openings: who had which queues open when a group's configuration, or a topic, was deleted.

A group continues with its next heartbeat, and a member that opens its queue again has read it without a
break. A topic made again has other messages, so its queues count as closed under their last epochs.
No earlier claim opens them: its member lost the queue before the deletion.

They are in memory only: after a restart members begin again at what they had committed.
"""

from collections.abc import Mapping
from typing import Final

from libramq.fencing import Claim
from libramq.offsets.group_fence import NOBODY

#: Ours: some 10 MB; the oldest are forgotten first.
OPENINGS_MAX: Final = 25_000

QueueKey = tuple[str, int]


class RemovedOpenings:
    """The last openings of queues whose group or topic was deleted, by group, topic and queue id."""

    def __init__(self) -> None:
        self._openings: dict[tuple[str, QueueKey], Claim] = {}

    def keep(self, group: str, openings: Mapping[QueueKey, Claim]) -> None:
        """Keep openings of a group that are deleted."""
        for key, claim in openings.items():
            self._openings.pop((group, key), None)
            self._openings[group, key] = claim
        while len(self._openings) > OPENINGS_MAX:
            del self._openings[next(iter(self._openings))]

    def last(self, group: str, key: QueueKey) -> Claim:
        """Return the last opening of a queue that is not open."""
        return self._openings.get((group, key), NOBODY)

    def take(self, group: str, key: QueueKey) -> Claim:
        """Return the last opening of a queue that is opened again, and forget it."""
        return self._openings.pop((group, key), NOBODY)

    def remove_topic(self, topic: str) -> None:
        """Note that nobody has read the queues of a topic that is made again."""
        for where, claim in self._openings.items():
            if where[1][0] == topic:
                self._openings[where] = Claim("", claim.epoch)
