"""The share of a member that pops (QUERY_ASSIGNMENT): which queues or brokers it pops from, as several
members share a queue.

Upstream: QueryAssignmentProcessor.allocate4Pop.
"""

from collections.abc import Callable, Sequence
from typing import Final

from libramq.message.queue import MessageQueue

#: The queue that stands for all of a broker's.
ANY_QUEUE: Final = -1

Allocate = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]


def pop_share(
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    share: int,
    allocate: Allocate,
) -> list[MessageQueue]:
    """Return the queues from which a member pops, each once.

    share: with how many of the next members it shares queues; with all of them, it pops from whole brokers.
    """
    if not 0 < share < len(client_ids) - 1:
        brokers = dict.fromkeys((queue.topic, queue.broker_name) for queue in queues)
        return [MessageQueue(topic, broker, ANY_QUEUE) for topic, broker in brokers]
    if client_id not in client_ids or not queues:
        return []
    first = client_ids.index(client_id)
    if len(client_ids) > len(queues):
        return [queues[first % len(queues)]]
    members = [client_ids[(first + step) % len(client_ids)] for step in range(share + 1)]
    return list(dict.fromkeys(queue for member in members for queue in allocate(member, queues, client_ids)))
