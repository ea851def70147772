"""The group: a strategy's knowledge of members and queues: subscriptions, owners, capacities, lag; and which
topics carry no load.

        members     by client id: subscription, queues it holds, capacity
        queues      by topic, each topic's in order
        lag         how many messages wait in a queue, if known

A client that allocates for itself knows less than a coordinator: one topic, and the ids listed by the broker.
That is also a group, of members without queues.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final, Self

from libramq.errors import ConfigError
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue

#: Ours: products of capacities and queue counts stay small integers.
CAPACITY_MAX: Final = 1_000_000

#: The queues of each member; members without queues may be missing.
Assignment = Mapping[str, Sequence[MessageQueue]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One consumer of the group.

    owned: the queues it reports to hold, without duplicates. epoch: that of its assignment; if two members
    claim a queue, the one with the higher epoch is right. instance_id: its name if it is a static member.
    capacity: relative to the others.
    """

    client_id: str
    topics: frozenset[str]
    owned: Sequence[MessageQueue] = ()
    epoch: int = -1
    instance_id: str | None = None
    capacity: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.capacity <= CAPACITY_MAX:
            raise ConfigError(
                f"the capacity of {self.client_id} is between 1 and {CAPACITY_MAX}, not {self.capacity}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Members sorted by client id, and the queues of the topics they subscribe to, each topic's sorted."""

    members: Sequence[Member]
    queues: Mapping[str, Sequence[MessageQueue]]
    lag: Mapping[MessageQueue, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        members: Iterable[Member],
        queues: Iterable[MessageQueue],
        lag: Mapping[MessageQueue, int] | None = None,
    ) -> Self:
        """Sort members and queues; queues of topics without subscribers are left out."""
        ordered = sorted(members, key=lambda member: member.client_id)
        topics = frozenset().union(*{member.topics for member in ordered})
        by_topic: dict[str, list[MessageQueue]] = {topic: [] for topic in sorted(topics)}
        for queue in sorted(queues):
            if (queues_of_topic := by_topic.get(queue.topic)) is not None:
                queues_of_topic.append(queue)
        return cls(members=ordered, queues=by_topic, lag=lag or {})

    @classmethod
    def of_topic(cls, queues: Sequence[MessageQueue], client_ids: Iterable[str]) -> Self:
        """Return the group of one topic as every client sees it: sorted queues and their consumers."""
        topic = queues[0].topic if queues else ""
        return cls(
            members=[
                Member(client_id=client_id, topics=frozenset({topic})) for client_id in sorted(client_ids)
            ],
            queues={topic: queues},
        )

    def subscribers(self, topic: str) -> list[Member]:
        """Return the members that subscribe to a topic, in order."""
        return [member for member in self.members if topic in member.topics]


def counts(topic: str) -> bool:
    """Return whether a topic's queues carry load; those of retry topics hardly do."""
    return not topic.startswith(RETRY_PREFIX)


@dataclass(frozen=True, slots=True)
class Ownership:
    """owners: the index of each queue's owner among the members.

    disputed: some queue was claimed twice. contested: queues without an owner, since equal claims cancel out.
    """

    owners: Mapping[MessageQueue, int]
    disputed: bool = False
    contested: frozenset[MessageQueue] = frozenset()


def ownership(group: Group) -> Ownership:
    """Decide who owns what, without checking subscriptions or the existence of queues."""
    owners: dict[MessageQueue, int] = {}
    contested: set[MessageQueue] = set()
    claims = 0
    for place, member in enumerate(group.members):
        owners |= dict.fromkeys(member.owned, place)
        claims += len(member.owned)
    if claims == len(owners):
        return Ownership(owners)
    owners.clear()
    for place, member in enumerate(group.members):
        for queue in dict.fromkeys(member.owned):
            rival = owners.setdefault(queue, place)
            if rival == place:
                continue
            if member.epoch > group.members[rival].epoch:
                owners[queue] = place
                contested.discard(queue)
            elif member.epoch == group.members[rival].epoch:
                contested.add(queue)
    for queue in contested:
        del owners[queue]
    return Ownership(owners, True, frozenset(contested))


def holdings(group: Group) -> list[Sequence[MessageQueue]]:
    """Return the queues each member may keep: existing ones it subscribes to and alone owns.

    Usually everything is consistent, and queues need not be checked one by one.
    """
    known = ownership(group)
    existing = set(chain.from_iterable(group.queues.values()))
    strange = known.disputed or not known.owners.keys() <= existing
    everything: dict[frozenset[str], bool] = {}
    kept: list[Sequence[MessageQueue]] = []
    for place, member in enumerate(group.members):
        subscribed = everything.get(member.topics)
        if subscribed is None:
            subscribed = everything[member.topics] = member.topics >= group.queues.keys()
        owned = member.owned
        if strange:
            owned = [q for q in dict.fromkeys(member.owned) if q in existing and known.owners.get(q) == place]
        kept.append(owned if subscribed else [queue for queue in owned if queue[0] in member.topics])
    return kept
