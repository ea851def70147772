"""The strategy: the interface of allocation rules, for one topic as a client knows it or for a whole group as
a coordinator does.

    topic rule      (own client id, a topic's queues, the group's client ids) -> own queues
        group rule      group -> all members' queues

A topic rule is RocketMQ's: every client computes its share alone. A group rule sees subscriptions, current
owners and weights. Further input of a rule (rooms, addresses, a fixed list) is set when it is made. Both
become the same strategy: a client calls it for its share of a topic, a coordinator calls `assign` for all.

Upstream: AllocateMessageQueueStrategy.java; Kafka's ConsumerPartitionAssignor.java.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libramq.balance.group import Assignment, Group
from libramq.message.queue import MessageQueue

Queues = Sequence[MessageQueue]
TopicRule = Callable[[str, Queues, Sequence[str]], Queues]
GroupRule = Callable[[Group], Assignment]
#: A topic rule for all client ids at once: each one's queues; clients without queues may be missing.
TopicDeal = Callable[[Queues, Sequence[str]], Mapping[str, Queues]]


class Strategy(Protocol):
    """A strategy as clients and coordinators use it. All members of a group must use the same one."""

    def __call__(self, client_id: str, queues: Queues, client_ids: Sequence[str], /) -> Queues:
        """Return a client's share of a topic, computed by the client alone; queues and ids are sorted."""

    def assign(self, group: Group) -> Assignment:
        """Return all members' queues."""


@dataclass(frozen=True, slots=True)
class TopicStrategy:
    """A topic rule; a coordinator applies it to each topic and each of its subscribers.

    deal: a faster rule for all clients at once, if the rule examines every queue to find one client's.
    """

    rule: TopicRule
    deal: TopicDeal | None = None

    def __call__(self, client_id: str, queues: Queues, client_ids: Sequence[str], /) -> Queues:
        return self.rule(client_id, queues, client_ids)

    def assign(self, group: Group) -> Assignment:
        shares: dict[str, list[MessageQueue]] = {member.client_id: [] for member in group.members}
        for topic, queues in group.queues.items():
            client_ids = _ClientIds(member.client_id for member in group.subscribers(topic))
            dealt = self.deal(queues, client_ids) if self.deal is not None else None
            for client_id in client_ids:
                if dealt is not None:
                    shares[client_id] += dealt.get(client_id, ())
                else:
                    shares[client_id] += self.rule(client_id, queues, client_ids)
        return shares


class _ClientIds(tuple[str, ...]):
    """Client ids with their indexes: every rule begins by looking for its own."""

    def __init__(self, client_ids: Iterable[str]) -> None:
        self._places = {client_id: place for place, client_id in enumerate(self)}

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._places

    def index(self, client_id: str, /, *_: object) -> int:
        return self._places[client_id]


@dataclass(frozen=True, slots=True)
class GroupStrategy:
    """A group rule; a client alone uses its result for a topic without current owners."""

    rule: GroupRule

    def __call__(self, client_id: str, queues: Queues, client_ids: Sequence[str], /) -> Queues:
        return self.rule(Group.of_topic(queues, client_ids)).get(client_id, ())

    def assign(self, group: Group) -> Assignment:
        return self.rule(group)
