"""Machine room nearby: who is in a room shares its queues; rooms without clients are shared by all.

Upstream: AllocateMachineRoomNearby.java (MACHINE_ROOM_NEARBY-<inner strategy>).
"""

from collections.abc import Callable, Sequence

from libramq.balance.averagely import averagely
from libramq.balance.strategy import TopicRule, TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


def machine_room_nearby(
    room_of_queue: Callable[[MessageQueue], str],
    room_of_client: Callable[[str], str],
    inner: TopicRule = averagely,
) -> TopicStrategy:
    """The strategy that applies another one room by room."""

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        queues_by_room: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            queues_by_room.setdefault(_named(room_of_queue(queue), queue), []).append(queue)
        clients_by_room: dict[str, list[str]] = {}
        for each in client_ids:
            clients_by_room.setdefault(_named(room_of_client(each), each), []).append(each)
        own_room = room_of_client(client_id)
        near = queues_by_room.pop(own_room, [])
        share = list(inner(client_id, near, clients_by_room[own_room])) if near else []
        for room in sorted(queues_by_room.keys() - clients_by_room.keys()):
            share += inner(client_id, queues_by_room[room], client_ids)
        return share

    return TopicStrategy(rule)


def _named(room: str, what: MessageQueue | str) -> str:
    if not room:
        raise ConfigError(f"MACHINE_ROOM_NEARBY: no machine room is known for {what}")
    return room
