"""The other brokers of the cluster, as coordinated groups need them: what a coordinator has them do.

`Cluster` is the one there is; a broker that is alone has none.
"""

from collections.abc import Sequence
from typing import Protocol

from libramq.fencing import FenceGrant, FenceReport
from libramq.groups.coordinator.effect import Replaced, Settled, Started
from libramq.message.queue import MessageQueue


class GroupPeers(Protocol):
    """The other brokers of the cluster. What they have to say comes back by Coordination's methods."""

    def coordinator_of(self, group: str) -> str | None:
        """The address of the broker where a group lives; None while nobody knows."""
        ...

    def queues(self, topic: str) -> Sequence[MessageQueue] | None:
        """The queues of a topic at other brokers; None: not known yet, `topic_changed` will say."""
        ...

    def grant(self, broker_name: str, grant: FenceGrant) -> None:
        """Tell another broker's fence whose its queues are; `refused` where it has seen a higher epoch."""
        ...

    def change_mode(self, grant: FenceGrant) -> None:
        """Tell all other fences that a group shares its queues in another way."""
        ...

    def gather(self, group: str, own: FenceReport) -> None:
        """Ask all other fences; `gathered` with what they know, and what ours does."""
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

    def stock_changed(self, group: str, client_ids: Sequence[str]) -> None:
        """Clients of our own connections allocate for themselves; `stock_members` with those of all edges."""
        ...
