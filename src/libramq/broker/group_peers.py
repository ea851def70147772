"""The other brokers of the cluster, as coordinated groups need them: what a coordinator has them do.

`Cluster` is the one there is; a broker that is alone has none.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from libramq.fencing import FenceGrant, FenceReport
from libramq.groups.coordinator.effect import Replaced, Settled, Started
from libramq.message.queue import MessageQueue

#: Called with a grant that a fence has not taken, and the higher epoch that it has seen.
Refused = Callable[[FenceGrant, int], None]
#: Called with a group, what all fences know of it, ours among them, and those of its members that allocate
#: for themselves, wherever connected; None: as they were.
Gathered = Callable[[str, Sequence[FenceReport], Sequence[str] | None], None]


class GroupPeers(Protocol):
    """The other brokers of the cluster."""

    @property
    def is_alone(self) -> bool:
        """Return whether there is no other broker."""
        ...

    def coordinator_of(self, group: str) -> str | None:
        """The address of the broker where a group lives; None while nobody knows."""
        ...

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic at other brokers; None: not known yet, `topic_changed` will say."""
        ...

    def grant(self, broker_name: str, grant: FenceGrant, refused: Refused) -> None:
        """Tell another broker's fence whose its queues are."""
        ...

    def change_mode(self, grant: FenceGrant, refused: Refused) -> None:
        """Tell all other fences that a group shares its queues in another way."""
        ...

    def gather(self, group: str, own: FenceReport, gathered: Gathered) -> None:
        """Ask all other fences what they know of a group."""
        ...

    def started(self, started: Started, who: str | None) -> None:
        """Tell all others that a rebalance of a group has begun. who: brought it about, in short."""
        ...

    def settled(self, effect: Settled) -> None:
        """Tell all others that every queue of a group is granted to the member it is meant for."""
        ...

    def replaced(self, effect: Replaced) -> None:
        """Tell all others that a client has taken another's place in a group."""
        ...

    def removed(self, *, topic: str = "", group: str = "") -> None:
        """Tell all others that a topic or a group was deleted here; both: the group's offsets were set."""
        ...
