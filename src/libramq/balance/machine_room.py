"""Machine room: all clients share the queues of brokers in some rooms; other queues are not consumed.

    broker name = room@name

Upstream: AllocateMessageQueueByMachineRoom.java (MACHINE_ROOM).
"""

from collections.abc import Iterable, Sequence

from libramq.balance.strategy import TopicStrategy
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
