"""Topic rules: RocketMQ's strategies, each of which divides the queues of one topic among the members.

    averagely         AVG               one run of neighbouring queues each, the first members the remainder
    by_circle         AVG_BY_CIRCLE     dealt out one by one, like cards
    by_config         CONFIG            each client has a fixed list of queues
    consistent_hash   CONSISTENT_HASH   a queue goes to the next client on a ring of hashes
    machine_room      MACHINE_ROOM…     the queues in some machine rooms, or each room's clients its own
    on_machines       ON_MACHINES       only clients at some addresses consume; ours
    pop_share         QUERY_ASSIGNMENT  how many members that pop share a queue

    client id = address@instance[@unit]        broker name = room@name

On the ring few queues move when a client joins or leaves, but the shares are uneven:

    hash = first 4 bytes of MD5, big-endian
    client at hash("<client id>-0") … hash("<client id>-9")
    queue at hash("MessageQueue [topic=T, brokerName=B, queueId=0]")

Upstream: AllocateMessageQueueAveragely.java, ConsistentHashRouter.java, AllocateMachineRoomNearby.java and
those beside them; QueryAssignmentProcessor.allocate4Pop.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from hashlib import md5
from typing import Final, TypeVar

from libramq.balance.strategy import Queues, TopicRule, TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue

Q = TypeVar("Q")
VIRTUAL_NODES: Final = 10  # AllocateMessageQueueConsistentHash.virtualNodeCnt
#: Ours: a ring of 1,000 clients then takes a second or two to build.
VIRTUAL_NODES_MAX: Final = 1_000
#: Ours: a coordinator uses the same ring for every member and topic.
_RINGS_KEPT: Final = 8
_HASHES_KEPT: Final = 100_000
#: The queue id that stands for all of a broker's queues.
ANY_QUEUE: Final = -1


def averagely(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> Sequence[Q]:
    """Give each client one run of neighbouring queues; the first ones get the remainder."""
    if client_id not in client_ids:
        return ()
    position = client_ids.index(client_id)
    share, remainder = divmod(len(queues), len(client_ids))
    start = position * share + min(position, remainder)
    count = share + (position < remainder)
    return queues[start : start + count]


def by_circle(client_id: str, queues: Sequence[Q], client_ids: Sequence[str]) -> Sequence[Q]:
    """Deal the queues out one by one, in a circle."""
    if client_id not in client_ids:
        return ()
    return queues[client_ids.index(client_id) :: len(client_ids)]


def by_config(queues: Iterable[tuple[str, str, int]]) -> TopicStrategy:
    """Return the strategy of a client that always consumes these queues: (topic, broker name, queue id).

    As upstream, its share is the whole list for every topic.
    """
    configured = tuple(MessageQueue(*queue) for queue in queues)

    def rule(client_id: str, queues: Queues, client_ids: Sequence[str]) -> Queues:
        return configured

    return TopicStrategy(rule)


def consistent_hash(
    client_id: str, queues: Queues, client_ids: Sequence[str], *, virtual_nodes: int = VIRTUAL_NODES
) -> Queues:
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
    """Return the strategy with this many places on the ring for each client."""
    if not 1 <= virtual_nodes <= VIRTUAL_NODES_MAX:
        raise ConfigError(f"virtual_nodes is between 1 and {VIRTUAL_NODES_MAX}, not {virtual_nodes}")

    def deal(queues: Queues, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        shares: dict[str, list[MessageQueue]] = {client_id: [] for client_id in client_ids}
        if shares:
            hashes, owners = _ring(tuple(client_ids), virtual_nodes)
            for queue in queues:
                shares[owners[bisect_left(hashes, _hash_of_queue(queue)) % len(hashes)]].append(queue)
        return shares

    return TopicStrategy(partial(consistent_hash, virtual_nodes=virtual_nodes), deal)


@lru_cache(_RINGS_KEPT)
def _ring(client_ids: tuple[str, ...], virtual_nodes: int) -> tuple[list[int], list[str]]:
    """Return the hashes in order, with their clients. Of equal hashes the later client counts."""
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


def machine_room(rooms: Iterable[str]) -> TopicStrategy:
    """Return the strategy that consumes the queues in these rooms."""
    wanted = frozenset(rooms)
    if not wanted:
        raise ConfigError("MACHINE_ROOM needs at least one room")

    def rule(client_id: str, queues: Queues, client_ids: Sequence[str]) -> Queues:
        if client_id not in client_ids:
            return ()
        return _run(near(queues), client_ids.index(client_id), len(client_ids))

    def deal(queues: Queues, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        some = near(queues)
        return {client_id: _run(some, place, len(client_ids)) for place, client_id in enumerate(client_ids)}

    def near(queues: Queues) -> list[MessageQueue]:
        return [queue for queue in queues if room_of(queue) in wanted]

    return TopicStrategy(rule, deal)


def _run(queues: list[MessageQueue], position: int, count: int) -> list[MessageQueue]:
    """Return one run of neighbours; the remainder follows all runs."""
    share = len(queues) // count
    last = share * count + position
    return queues[share * position : share * (position + 1)] + queues[last : last + 1]


def room_of(queue: MessageQueue) -> str | None:
    """Return the room in a queue's broker name, or None."""
    # Java's split drops trailing empty strings: "room@" has one part, and "room@name@" two.
    parts = queue.broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None


#: A topic's queues and the group's clients, by room.
_Rooms = tuple[dict[str, list[MessageQueue]], dict[str, list[str]]]


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    inner: TopicRule = averagely,
) -> TopicStrategy:
    """Return the strategy that applies another one room by room.

    Upstream: AllocateMachineRoomNearby.java (MACHINE_ROOM_NEARBY-<inner strategy>).
    """

    def rule(client_id: str, queues: Queues, client_ids: Sequence[str]) -> Queues:
        if client_id not in client_ids:
            return ()
        return share_of(client_id, rooms_of(queues, client_ids), client_ids)

    def deal(queues: Queues, client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        rooms = rooms_of(queues, client_ids)
        return {client_id: share_of(client_id, rooms, client_ids) for client_id in client_ids}

    def rooms_of(queues: Queues, client_ids: Sequence[str]) -> _Rooms:
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_named(room_of_queue(queue), queue), []).append(queue)
        clients_by_room: dict[str, list[str]] = {}
        for each in client_ids:
            clients_by_room.setdefault(_named(room_of_client(each), each), []).append(each)
        return queues_by_room, clients_by_room

    def share_of(client_id: str, rooms: _Rooms, client_ids: Sequence[str]) -> list[MessageQueue]:
        queues_by_room, clients_by_room = rooms
        own_room = room_of_client(client_id)
        near = queues_by_room.get(own_room)
        share = list(inner(client_id, near, clients_by_room[own_room])) if near else []
        for room in sorted(queues_by_room.keys() - clients_by_room.keys()):
            share += inner(client_id, queues_by_room[room], client_ids)
        return share

    return TopicStrategy(rule, deal)


def _named(room: str, what: MessageQueue | str) -> str:
    if not room:
        raise ConfigError(f"MACHINE_ROOM_NEARBY: no machine room is known for {what}")
    return room


def on_machines(addresses: Iterable[str], inner: TopicRule = averagely) -> TopicStrategy:
    """Return the strategy that applies another one to the clients at these addresses; others consume nothing.

    With it, a new version can be tried on one machine of many. While none of these is connected, messages
    wait.
    """
    chosen = frozenset(addresses)
    if not chosen:
        raise ConfigError("ON_MACHINES needs at least one address")

    def rule(client_id: str, queues: Queues, client_ids: Sequence[str]) -> Queues:
        there = on_them(client_ids)
        return inner(client_id, queues, there) if client_id in there else ()

    def deal(queues: Queues, client_ids: Sequence[str]) -> dict[str, Queues]:
        there = on_them(client_ids)
        return {client_id: inner(client_id, queues, there) for client_id in there}

    def on_them(client_ids: Sequence[str]) -> list[str]:
        return [each for each in client_ids if address_of(each) in chosen]

    return TopicStrategy(rule, deal)


def address_of(client_id: str) -> str:
    """Return the address with which a client id begins (ClientConfig.buildMQClientId)."""
    return client_id.partition("@")[0]


def pop_share(
    client_id: str, queues: Queues, client_ids: Sequence[str], share: int, rule: TopicRule
) -> list[MessageQueue]:
    """Return the queues from which a member pops, without duplicates.

    share: the number of next members with which it shares queues; with all of them, it pops from whole
    brokers.
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
    return list(dict.fromkeys(queue for member in members for queue in rule(member, queues, client_ids)))
