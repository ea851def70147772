"""Consistent hash: clients and queues lie on a ring of hashes, and a queue goes to the next client on it; how
many places a client has there.

    hash = first 4 bytes of MD5, big-endian
    client at hash("<client id>-0") … hash("<client id>-9")
    queue at hash("MessageQueue [topic=T, brokerName=B, queueId=0]")

Few queues move when a client joins or leaves, but the shares are uneven.
Upstream: AllocateMessageQueueConsistentHash.java, ConsistentHashRouter.java (CONSISTENT_HASH).
"""

from bisect import bisect_left
from collections.abc import Sequence
from functools import lru_cache
from hashlib import md5
from typing import Final

from libramq.balance.strategy import TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue

VIRTUAL_NODES: Final = 10  # AllocateMessageQueueConsistentHash.virtualNodeCnt
#: Ours: a ring of 1,000 clients takes a second or two to build then.
VIRTUAL_NODES_MAX: Final = 1_000
#: Ours: a coordinator uses the same ring for every member and topic.
_RINGS_KEPT: Final = 8
_HASHES_KEPT: Final = 100_000


def consistent_hash(
    client_id: str,
    queues: Sequence[MessageQueue],
    client_ids: Sequence[str],
    *,
    virtual_nodes: int = VIRTUAL_NODES,
) -> Sequence[MessageQueue]:
    """Return the queues whose next client on the ring is this one."""
    if client_id not in client_ids:
        return ()
    hashes, owners = _ring(tuple(client_ids), virtual_nodes)
    return [
        queue
        for queue in queues
        if owners[bisect_left(hashes, _hash_of_queue(queue)) % len(hashes)] == client_id
    ]


def consistent_hash_of(virtual_nodes: int = VIRTUAL_NODES) -> TopicStrategy:
    """Return the strategy with that many places on the ring for each client."""
    if not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
        raise ConfigError(f"virtual_nodes is between 1 and {VIRTUAL_NODES_MAX}, not {virtual_nodes}")

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return consistent_hash(client_id, queues, client_ids, virtual_nodes=virtual_nodes)

    def deal(queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in client_ids}
        if shares:
            hashes, owners = _ring(tuple(client_ids), virtual_nodes)
            for queue in queues:
                shares[owners[bisect_left(hashes, _hash_of_queue(queue)) % len(hashes)]].append(queue)
        return shares

    return TopicStrategy(rule, deal)


@lru_cache(_RINGS_KEPT)
def _ring(client_ids: tuple[str, ...], virtual_nodes: int) -> tuple[list[int], list[str]]:
    """Return the hashes in order, with their clients. Of equal hashes the later client's counts."""
    places = {
        _hash(f"{client_id}-{number}"): client_id
        for client_id in client_ids
        for number in range(virtual_nodes)
    }
    hashes = sorted(places)
    return hashes, [places[each] for each in hashes]


@lru_cache(_HASHES_KEPT)
def _hash_of_queue(queue: MessageQueue) -> int:
    return _hash(
        f"MessageQueue [topic={queue.topic}, brokerName={queue.broker_name}, queueId={queue.queue_id}]"
    )


def _hash(key: str) -> int:
    return int.from_bytes(md5(key.encode(), usedforsecurity=False).digest()[:4])
