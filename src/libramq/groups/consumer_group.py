"""The consumer group: who is connected, and what the group subscribes to.

Members are known by their connections: a member is there from its first heartbeat until it unregisters, its
connection ends or it has been silent too long.
Upstream: broker/client/ConsumerGroupInfo.java, ConsumerManager.java.
"""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from libramq.remoting.body.heartbeat import BROADCASTING, ConsumerData, SubscriptionData

#: Whatever the shell knows a connection by.
P = TypeVar("P", bound=Hashable)

#: ClientHousekeepingService, BrokerConfig.channelExpiredTimeout.
MEMBER_SILENCE_MS_MAX: Final = 120_000
#: Ours: the seeds' and the design's largest laboratory group on real sockets.
MEMBERS_MAX: Final = 10_000
#: Ours: a client subscribes to its topics, not to the world.
SUBSCRIPTIONS_MAX: Final = 2_000


@dataclass(slots=True)
class Member(Generic[P]):
    """One connected member. is_stock: it allocates queues for itself; ours leave that to a coordinator."""

    peer: P
    client_id: str
    language: str
    version: int
    heartbeat_at_ms: int
    is_stock: bool = True


@dataclass(slots=True)
class ConsumerGroup(Generic[P]):
    """One group at this broker."""

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    fingerprint: int | None = None
    members: dict[P, Member[P]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    _connections: dict[str, int] = field(default_factory=dict)
    _stock: dict[str, int] = field(default_factory=dict)

    @property
    def client_ids(self) -> list[str]:
        """The members' client ids, each once."""
        return list(self._connections)

    @property
    def stock_client_ids(self) -> list[str]:
        """Those of members that allocate for themselves, each once; who is broadcast to allocates nothing."""
        return [] if self.message_model == BROADCASTING else list(self._stock)

    def has_client(self, client_id: str) -> bool:
        """Whether a member of that id is connected."""
        return client_id in self._connections

    def beat(self, member: Member[P], data: ConsumerData) -> bool:
        """Take in a heartbeat's membership; whether a member is new."""
        known = self.members.get(member.peer)
        self.consume_type = data.consume_type
        self.message_model = data.message_model
        self.consume_from_where = data.consume_from_where
        is_same_client = known is not None and known.client_id == member.client_id
        if known is None or not is_same_client or known.is_stock is not member.is_stock:
            self.drop(member.peer)
            self._count(member, 1)
        self.members[member.peer] = member
        return not is_same_client

    def drop(self, peer: P) -> Member[P] | None:
        """A connection is no member any more."""
        member = self.members.pop(peer, None)
        if member is not None:
            self._count(member, -1)
        return member

    def _count(self, member: Member[P], change: int) -> None:
        for connections in (self._connections, self._stock) if member.is_stock else (self._connections,):
            connections[member.client_id] = connections.get(member.client_id, 0) + change
            if not connections[member.client_id]:
                del connections[member.client_id]

    def member_of(self, peer: P, client_id: str) -> Member[P] | None:
        """The member at a connection, if it is the one with that client id."""
        member = self.members.get(peer)
        return member if member is not None and member.client_id == client_id else None

    def subscribe(self, subscriptions: Sequence[SubscriptionData]) -> bool:
        """Take in what a member subscribes to; whether the group's subscriptions changed.

        A topic's subscription is replaced only by a newer one (larger subVersion); topics no longer named go.
        """
        changed = False
        wanted = {data.topic: data for data in subscriptions[:SUBSCRIPTIONS_MAX]}
        for topic, data in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or data.sub_version > known.sub_version:
                self.subscriptions[topic] = data
                changed = changed or known is None or known.sub_string != data.sub_string
        for topic in self.subscriptions.keys() - wanted.keys():
            del self.subscriptions[topic]
            changed = True
        return changed


class ConsumerGroups(Generic[P]):
    """All groups with connected members."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup[P]] = {}
        self._names: dict[P, dict[str, None]] = {}

    def __iter__(self) -> Iterator[ConsumerGroup[P]]:
        return iter(self._groups.values())

    def get(self, group: str) -> ConsumerGroup[P] | None:
        """The group, if a member is connected."""
        return self._groups.get(group)

    def get_or_create(self, data: ConsumerData) -> ConsumerGroup[P]:
        """The group a heartbeat speaks of."""
        group = self._groups.get(data.group_name)
        if group is None:
            group = ConsumerGroup(
                data.group_name, data.consume_type, data.message_model, data.consume_from_where
            )
            self._groups[data.group_name] = group
        return group

    def beat(self, group: ConsumerGroup[P], member: Member[P], data: ConsumerData) -> bool:
        """Take in a heartbeat's membership; whether a member is new."""
        self._names.setdefault(member.peer, {})[group.name] = None
        return group.beat(member, data)

    def group_count(self, peer: P) -> int:
        """How many groups a connection is a member of."""
        return len(self._names.get(peer, ()))

    def remove(self, group_name: str, peer: P) -> Member[P] | None:
        """A member leaves the group; returns it, if it was one."""
        group = self._groups.get(group_name)
        member = group.drop(peer) if group is not None else None
        if group is not None and not group.members:
            del self._groups[group_name]
        names = self._names.get(peer)
        if names is not None:
            names.pop(group_name, None)
            if not names:
                del self._names[peer]
        return member

    def remove_peer(self, peer: P) -> list[tuple[str, Member[P]]]:
        """A connection ended: its memberships, which are gone now."""
        names = list(self._names.get(peer, ()))
        return [(name, member) for name in names if (member := self.remove(name, peer)) is not None]

    def silent(self, now_ms: int) -> list[tuple[str, Member[P]]]:
        """Members that sent no heartbeat for too long."""
        oldest = now_ms - MEMBER_SILENCE_MS_MAX
        return [
            (group.name, member)
            for group in self._groups.values()
            for member in group.members.values()
            if member.heartbeat_at_ms < oldest
        ]

    def subscribers_of(self, topic: str) -> list[str]:
        """The groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]
