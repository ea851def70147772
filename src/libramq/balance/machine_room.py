"""Machine room, and machine room nearby: clients share the queues of brokers in some rooms, or each room's
clients those of their own.

    broker name = room@name

Upstream: AllocateMessageQueueByMachineRoom.java (MACHINE_ROOM).
"""

from collections.abc import Callable, Iterable, Sequence

from libramq.balance.averagely import averagely
from libramq.balance.strategy import TopicRule, TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


def machine_room(rooms: Iterable[str]) -> TopicStrategy:
    """Return the strategy that consumes the queues in these rooms."""
    wanted = frozenset(rooms)
    if not wanted:
        raise ConfigError("MACHINE_ROOM needs at least one room")

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        return _run(near(queues), client_ids.index(client_id), len(client_ids))

    def deal(queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        some = near(queues)
        return {client_id: _run(some, place, len(client_ids)) for place, client_id in enumerate(client_ids)}

    def near(queues: Sequence[MessageQueue]) -> list[MessageQueue]:
        return [queue for queue in queues if room_of(queue) in wanted]

    return TopicStrategy(rule, deal)


def _run(queues: list[MessageQueue], position: int, count: int) -> list[MessageQueue]:
    """Return one run of neighbours; the remainder follows all runs."""
    share = len(queues) // count
    last = share * count + position
    return queues[share * position : share * (position + 1)] + queues[last : last + 1]


def room_of(queue: MessageQueue) -> str | None:
    """Return the room in the broker's name, if it names one."""
    # Java's split drops empty strings at the end: "room@" has one part, and "room@name@" two.
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

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        return share_of(client_id, rooms_of(queues, client_ids), client_ids)

    def deal(queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> dict[str, list[MessageQueue]]:
        rooms = rooms_of(queues, client_ids)
        return {client_id: share_of(client_id, rooms, client_ids) for client_id in client_ids}

    def rooms_of(queues: Sequence[MessageQueue], client_ids: Sequence[str]) -> _Rooms:
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
