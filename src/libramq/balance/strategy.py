"""The strategy: a pure rule of who consumes which queue.

    topic rule      (own client id, a topic's queues, the group's client ids) -> own queues
    group rule      group -> everybody's queues

A topic rule is RocketMQ's: every client computes its share alone. A group rule sees subscriptions, what
members hold, weights. Whatever else a rule needs (rooms, addresses, a fixed list) it was made with. Both
become the same strategy: a client calls it for its share of a topic, a coordinator has it `assign` for all.

Upstream: AllocateMessageQueueStrategy.java; Kafka's ConsumerPartitionAssignor.java.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from libramq.balance.group import Assignment, Group
from libramq.message.queue import MessageQueue

TopicRule = Callable[[str, Sequence[MessageQueue], Sequence[str]], Sequence[MessageQueue]]
GroupRule = Callable[[Group], Assignment]
#: A topic rule for all client ids at once: each one's queues; who gets none may be missing.
TopicDeal = Callable[[Sequence[MessageQueue], Sequence[str]], Mapping[str, Sequence[MessageQueue]]]


class Strategy(Protocol):
    """A strategy as clients and coordinators use it. All members of a group must use the same one."""

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        """A client's share of a topic, as far as it can know it; queues and ids are sorted."""

    def assign(self, group: Group) -> Assignment:
        """Everybody's queues."""


@dataclass(frozen=True, slots=True)
class TopicStrategy:
    """A topic rule; a coordinator applies it to each topic and each of its subscribers.

    deal: the same for everybody, where the rule looks at every queue to find one client's.
    """

    rule: TopicRule
    deal: TopicDeal | None = None

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> Sequence[MessageQueue]:
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
    """Client ids that know their places: every rule begins by looking for its own."""

    def __init__(self, client_ids: Iterable[str]) -> None:
        self._places = {client_id: place for place, client_id in enumerate(self)}

    def __contains__(self, client_id: object) -> bool:
        return client_id in self._places

    def index(self, client_id: str, /, *_: object) -> int:
        return self._places[client_id]


@dataclass(frozen=True, slots=True)
class GroupStrategy:
    """A group rule; a client alone takes what the rule gives it of a topic that nobody holds anything of."""

    rule: GroupRule

    def __call__(
        self, client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str], /
    ) -> Sequence[MessageQueue]:
        return self.rule(Group.of_topic(queues, client_ids)).get(client_id, ())

    def assign(self, group: Group) -> Assignment:
        return self.rule(group)
