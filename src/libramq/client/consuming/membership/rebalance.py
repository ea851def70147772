"""The rebalance: which queues of a topic are ours now, and what that changes.

Upstream: impl/consumer/RebalanceImpl.java (rebalanceByTopic, updateProcessQueueTableInRebalance).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from libramq.balance import TopicRule
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class Change:
    """The queues that a rebalance adds and removes."""

    take: tuple[MessageQueue, ...]
    give: tuple[MessageQueue, ...]


def allocate(
    strategy: TopicRule, client_id: str, queues: Iterable[MessageQueue], client_ids: Iterable[str]
) -> tuple[MessageQueue, ...]:
    """Return our queues of a topic. All members sort alike, so all compute the same.

    Queues of other topics in a strategy's result (CONFIG returns its whole list for every topic) are ignored.
    """
    readable = dict.fromkeys(sorted(queues))
    share = strategy(client_id, list(readable), sorted(client_ids))
    return tuple(queue for queue in dict.fromkeys(share) if queue in readable)


def change(owned: Iterable[MessageQueue], allocated: Sequence[MessageQueue]) -> Change:
    """Return the change from the owned queues to the allocated ones."""
    owned = set(owned)
    wanted = set(allocated)
    return Change(
        take=tuple(queue for queue in allocated if queue not in owned),
        give=tuple(sorted(owned - wanted)),
    )
