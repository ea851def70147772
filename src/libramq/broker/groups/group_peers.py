"""The other brokers of the cluster, as coordinated groups need them: requests of a coordinator to them.

`PeerBrokers` is the only implementation; for a broker that is alone it has nobody to ask.
"""

from collections.abc import Callable, Sequence
from typing import Protocol

from libramq.fencing import FenceGrant, FenceReport
from libramq.groups.cluster_view import ClusterView
from libramq.groups.coordinator.effect import Replaced, Settled, Started
from libramq.message.queue import MessageQueue

#: Called with a grant that a fence refused, and the higher epoch that the fence has seen.
Refused = Callable[[FenceGrant, int], None]
#: Called with a group, the reports of all fences including ours, and the members that allocate for
#: themselves, wherever connected.
Gathered = Callable[[str, Sequence[FenceReport], Sequence[str]], None]


class GroupPeers(Protocol):
    """The other brokers of the cluster. view: which there are."""

    view: ClusterView

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """Return the queues of a topic at other brokers; None if unknown: `topic_changed` will follow."""
        ...

    def grant(self, broker_name: str, grant: FenceGrant, refused: Refused) -> None:
        """Send another broker's fence the owners of its queues."""
        ...

    def change_mode(self, grant: FenceGrant, refused: Refused) -> None:
        """Send all other fences a group's new mode."""
        ...

    def gather(self, group: str, own: FenceReport, gathered: Gathered) -> None:
        """Query all other fences about a group."""
        ...

    def started(self, started: Started, who: str | None) -> None:
        """Report the start of a group's rebalance to all others. who: its cause, in short."""
        ...

    def settled(self, effect: Settled) -> None:
        """Report to all others that every queue of a group is granted to its target."""
        ...

    def replaced(self, effect: Replaced) -> None:
        """Report to all others that a client has taken another's place in a group."""
        ...

    def removed(self, *, topic: str = "", group: str = "") -> None:
        """Report a deletion of a topic or group to all others; both: the group's offsets were set."""
        ...
