"""Machine room: the queues of brokers in some rooms are shared by all clients, the others left alone.

    broker name = room@name

Upstream: AllocateMessageQueueByMachineRoom.java (MACHINE_ROOM).
"""

from collections.abc import Iterable, Sequence

from libramq.balance.strategy import TopicStrategy
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


def machine_room(rooms: Iterable[str]) -> TopicStrategy:
    """The strategy that consumes what lies in these rooms."""
    wanted = frozenset(rooms)
    if not wanted:
        raise ConfigError("MACHINE_ROOM needs at least one room")

    def rule(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        if client_id not in client_ids:
            return ()
        near = [queue for queue in queues if room_of(queue) in wanted]
        position, count = client_ids.index(client_id), len(client_ids)
        share = len(near) // count
        # One run of neighbours each; what is left over lies behind all runs.
        last = share * count + position
        return near[share * position : share * (position + 1)] + near[last : last + 1]

    return TopicStrategy(rule)


def room_of(queue: MessageQueue) -> str | None:
    """The room in the broker's name, if it names one."""
    # Java's split drops empty strings at the end: "room@" has one part, and "room@name@" two.
    parts = queue.broker_name.rstrip("@").split("@")
    return parts[0] if len(parts) == 2 else None
