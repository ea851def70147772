"""The removed openings: who had which queues open when a group's configuration was deleted under its members.

The group continues with its next heartbeat, and a member that opens its queue again has read it without a
break. They are in memory only: after a restart members begin again at what they had committed.
"""

from typing import Final

from libramq.fencing import Claim

#: Ours: groups; the oldest are forgotten first.
GROUPS_MAX: Final = 1_000

QueueKey = tuple[str, int]


class RemovedOpenings:
    """The last openings of groups that were deleted, by topic and queue id."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[QueueKey, Claim]] = {}

    def keep(self, group: str, openings: dict[QueueKey, Claim]) -> None:
        """Keep the openings of a group that is deleted."""
        self._groups.pop(group, None)
        self._groups[group] = dict(openings)
        if len(self._groups) > GROUPS_MAX:
            del self._groups[next(iter(self._groups))]

    def take(self, group: str, key: QueueKey) -> Claim | None:
        """Return the last opening of a queue that is opened again, and forget it."""
        openings = self._groups.get(group)
        return openings.pop(key, None) if openings is not None else None

    def remove_topic(self, topic: str) -> None:
        """Forget a topic's queues: a topic made again has other messages."""
        for openings in self._groups.values():
            for key in [key for key in openings if key[0] == topic]:
                del openings[key]
