"""The consumer group: its connected members and its subscriptions; resolves differing subscriptions, limits
their memory, tracks the members that allocate for themselves, and probes and removes members that are silent
for 75 s.

Members are identified by their connections: a member exists from its first heartbeat until it unregisters,
its connection ends or it has been silent too long.

    heartbeat, pull, commit ──► seen
        75 s of silence       ──► one probe ──► an answer: seen
                                             └─► "no such group here", or none for 3 s: expired

Upstream waits 120 s and sends no probe (ClientHousekeepingService, BrokerConfig.channelExpiredTimeout).
Members of a coordinated group also have a session at their coordinator.
Upstream: broker/client/ConsumerGroupInfo.java, ConsumerManager.java.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, TypeVar

import msgspec

from libramq.clock import MonotonicMs
from libramq.filter.subscription import (
    BROADCASTING,
    CLUSTERING,
    CONSUME_FROM_LAST_OFFSET,
    CONSUME_PASSIVELY,
    SubscriptionData,
    named_expression,
)
from libramq.groups.limits import SUBSCRIPTION_BYTES_MAX, SUBSCRIPTIONS_MAX, has_share
from libramq.groups.memberships import Memberships
from libramq.groups.pending_notifications import AreYouThere, Notice
from libramq.groups.roster import ServerAssignedMembers
from libramq.kernel.connection import ANONYMOUS, Principal
from libramq.message.names import RETRY_PREFIX

#: CPython: a string's memory besides its characters, and its slot in a tuple.
STRING_BYTES: Final = 57
#: CPython: the memory of a hash, and its slot in a tuple.
INTEGER_BYTES: Final = 36

#: The shell's handle of a connection.
P = TypeVar("P", bound=Hashable)
#: From the design: two and a half of the Java client's heartbeat intervals (heartbeatBrokerInterval, 30 s).
SILENCE_MS_MAX: Final = 75_000
#: NettyClientConfig.timeoutMillis: clients wait just as long for answers.
ANSWER_MS_MAX: Final = 3_000


class Session(msgspec.Struct, gc=False):
    """One member's session. probe_number: the open probe's. Times are monotonic."""

    seen_at_ms: MonotonicMs
    probe_number: int | None = None
    probed_at_ms: MonotonicMs = MonotonicMs(0)

    def seen(self, *, now_ms: MonotonicMs) -> None:
        """Note a sign of life, which also answers an open probe."""
        self.seen_at_ms = now_ms
        self.probe_number = None

    def probe(self, number: int, *, now_ms: MonotonicMs) -> None:
        """Note that the member is probed."""
        self.probe_number, self.probed_at_ms = number, now_ms

    def answered(self, *, knows_group: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to the probe; a client that no longer knows the group is no longer a member."""
        if knows_group:
            self.seen(now_ms=now_ms)
        else:
            self.probed_at_ms = now_ms - ANSWER_MS_MAX

    def is_silent(self, *, now_ms: MonotonicMs) -> bool:
        """Return whether the member has been silent for too long and must be probed."""
        return self.probe_number is None and now_ms - self.seen_at_ms >= SILENCE_MS_MAX

    def has_expired(self, *, now_ms: MonotonicMs) -> bool:
        """Return whether the member was probed and has not answered in time."""
        return self.probe_number is not None and now_ms - self.probed_at_ms >= ANSWER_MS_MAX


class Consumer(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """One group of a client; a Struct, as a client may have 1,000.

    Upstream: remoting/protocol/heartbeat/ConsumerData.java.
    """

    group: str
    subscriptions: Sequence[SubscriptionData] = ()
    consume_type: str = CONSUME_PASSIVELY
    message_model: str = CLUSTERING
    consume_from_where: str = CONSUME_FROM_LAST_OFFSET


@dataclass(slots=True)
class Member(Generic[P]):
    """One connected member.

    is_stock: the member knows no coordinator. lease_ended: it reports that its lease has ended. asks: True if
    it last queried its queues (QUERY_ASSIGNMENT), False if it last fetched the member list, None before
    either. subscriptions: its expressions by topic. subscription_bytes: their memory. heartbeat_gaps_ms: the
    gaps between its last three heartbeats. notify: sends it notices in its protocol; None if the protocol has
    none. principal: the sender of its last heartbeat.
    """

    peer: P
    client_id: str
    language: str
    version: int
    heartbeat_at_ms: MonotonicMs
    is_stock: bool = True
    lease_ended: bool = False
    asks: bool | None = None
    subscriptions: Mapping[str, str] = field(default_factory=dict)
    subscription_bytes: int = 0
    joined_at_ms: MonotonicMs = MonotonicMs(0)
    heartbeat_gaps_ms: tuple[int, int] = (0, 0)
    notify: Callable[[Notice[P]], None] | None = None
    principal: Principal = ANONYMOUS
    session: Session = field(init=False)

    def __post_init__(self) -> None:
        self.session = Session(self.heartbeat_at_ms)

    def is_same(self, other: "Member[P]") -> bool:
        """Return whether this is the same client, as seen by other members."""
        return self.client_id == other.client_id and self.is_stock is other.is_stock

    def follow(self, known: "Member[P] | None") -> None:
        """Take over the state of the same client on the same connection."""
        if known is None:
            self.joined_at_ms = self.heartbeat_at_ms
            return
        self.asks = known.asks
        self.subscriptions = known.subscriptions
        self.subscription_bytes = known.subscription_bytes
        self.joined_at_ms = known.joined_at_ms
        self.session = known.session
        self.session.seen(now_ms=self.heartbeat_at_ms)
        self.heartbeat_gaps_ms = (known.heartbeat_gaps_ms[1], self.heartbeat_at_ms - known.heartbeat_at_ms)


@dataclass(slots=True)
class ConsumerGroup(Generic[P]):
    """One group at this broker.

    version: grows with every change of members or subscriptions. is_server_assigned: a member has queried its
    queues (QUERY_ASSIGNMENT). subscription_bytes: the memory of all members' subscriptions.
    """

    name: str
    consume_type: str
    message_model: str
    consume_from_where: str
    fingerprint: int | None = None
    version: int = 0
    is_server_assigned: bool = False
    members: dict[P, Member[P]] = field(default_factory=dict)
    subscriptions: dict[str, SubscriptionData] = field(default_factory=dict)
    subscription_bytes: int = 0
    _connections: dict[str, int] = field(default_factory=dict)
    _stock: dict[str, int] = field(default_factory=dict)
    _looking: set[P] = field(default_factory=set)
    _server_assigned: ServerAssignedMembers | None = None

    @property
    def client_ids(self) -> list[str]:
        """Return the members' client ids, without duplicates."""
        return list(self._connections)

    @property
    def is_broadcasting(self) -> bool:
        """Return whether every member receives every message."""
        return self.message_model == BROADCASTING

    @property
    def stock_client_ids(self) -> list[str]:
        """Return the client ids of stock members, without duplicates; none if the group is broadcasting."""
        return [] if self.is_broadcasting else list(self._stock)

    def has_stock(self, client_id: str | None = None) -> bool:
        """Return whether a client (None: any) is in `stock_client_ids`."""
        known = bool(self._stock) if client_id is None else client_id in self._stock
        return known and not self.is_broadcasting

    @property
    def allocates(self) -> bool:
        """Return whether a member allocates for itself: it has fetched the member list or is LibraMQ's.

        LibraMQ's clients do so beside stock ones, which is the only case in which it matters.
        """
        return bool(self._looking) or len(self._stock) < len(self._connections)

    def server_assigned_members(self) -> ServerAssignedMembers:
        """Return the members in the form the assigner needs."""
        version = ("connected", self.version)
        if self._server_assigned is None or (
            self._server_assigned.version,
            self._server_assigned.allocates,
        ) != (version, self.allocates):
            members = ((member.client_id, member.subscriptions) for member in self.members.values())
            self._server_assigned = ServerAssignedMembers.of(version, members, allocates=self.allocates)
        return self._server_assigned

    @property
    def allocating_client_ids(self) -> set[str]:
        """Return the client ids of members that have fetched the member list."""
        return {self.members[peer].client_id for peer in self._looking}

    def has_client(self, client_id: str) -> bool:
        """Return whether a member with this client id is connected."""
        return client_id in self._connections

    def beat(self, member: Member[P], consumer: Consumer) -> bool:
        """Apply a heartbeat; return whether the member is new."""
        known = self.members.get(member.peer)
        self.consume_type = consumer.consume_type
        self.message_model = consumer.message_model
        self.consume_from_where = consumer.consume_from_where
        is_same_client = known is not None and known.client_id == member.client_id
        if known is None or not is_same_client or known.is_stock is not member.is_stock:
            self._remove(member.peer)
            self._count(member, 1)
        member.follow(known if is_same_client else None)
        self.members[member.peer] = member
        if known is not None and not is_same_client:
            self._unsubscribe(known.subscriptions)
        return not is_same_client

    def drop(self, peer: P) -> Member[P] | None:
        """Remove the member of a connection."""
        member = self._remove(peer)
        if member is not None:
            self._unsubscribe(member.subscriptions)
        return member

    def _remove(self, peer: P) -> Member[P] | None:
        member = self.members.pop(peer, None)
        if member is not None:
            self._count(member, -1)
            self._looking.discard(peer)
        return member

    def _count(self, member: Member[P], change: int) -> None:
        self.version += 1
        for connections in (self._connections, self._stock) if member.is_stock else (self._connections,):
            connections[member.client_id] = connections.get(member.client_id, 0) + change
            if not connections[member.client_id]:
                del connections[member.client_id]

    def member_of(self, peer: P, client_id: str) -> Member[P] | None:
        """Return the member at a connection if it has this client id."""
        member = self.members.get(peer)
        return member if member is not None and member.client_id == client_id else None

    def looked(self, peer: P, *, asks: bool) -> bool:
        """Note a member's assignment query or list fetch; return whether to notify other brokers.

        A member that has done neither yet counts like the others.
        """
        member = self.members.get(peer)
        if member is None or member.asks is asks:
            return False
        allocated = self.allocates
        member.asks = asks
        self.is_server_assigned = self.is_server_assigned or asks
        if asks:
            self._looking.discard(peer)
        else:
            self._looking.add(peer)
        return self.allocates is not allocated and any(
            other.asks for other in self.members.values() if other is not member
        )

    def subscribe(self, peer: P, subscriptions: Sequence[SubscriptionData]) -> bool:
        """Apply a member's subscriptions; return whether the group's subscriptions changed.

        A topic's subscription is replaced only by a newer one (larger subVersion). A topic is removed when no
        member subscribes to it any more; upstream removes it at the next heartbeat of any member without it.
        Retry topics come and go without counting as a change, because Java's client subscribes to some only
        while it has queues.
        """
        changed = False
        wanted = {data.topic: data for data in subscriptions[:SUBSCRIPTIONS_MAX]}
        for topic, data in wanted.items():
            known = self.subscriptions.get(topic)
            if known is None or data.sub_version > known.sub_version:
                self.subscriptions[topic] = data
                is_change = known is None or known.sub_string != data.sub_string
                changed = changed or (is_change and not topic.startswith(RETRY_PREFIX))
        member = self.members[peer]
        before = member.subscriptions
        expressions = {
            topic: named_expression(data.sub_string, data.expression_type) for topic, data in wanted.items()
        }
        if before == expressions:
            return changed
        self.version += 1
        member.subscriptions = self._shared(expressions)
        return self._unsubscribe(topic for topic in before if topic not in wanted) or changed

    def _unsubscribe(self, topics: Iterable[str]) -> bool:
        """Remove topics that no member subscribes to; return whether one of them was not a retry topic."""
        changed = False
        for topic in topics:
            if not any(topic in member.subscriptions for member in self.members.values()):
                gone = self.subscriptions.pop(topic, None)
                changed = changed or (gone is not None and not topic.startswith(RETRY_PREFIX))
        return changed

    def _shared(self, expressions: Mapping[str, str]) -> Mapping[str, str]:
        """Return another member's mapping if it is equal, because most members have the same subscriptions.

        Only the oldest member and the two newest are compared, one of which is the member itself.
        """
        members = self.members.values()
        for other in (next(iter(members)), *islice(reversed(members), 2)):
            if other.subscriptions == expressions:
                return other.subscriptions
        return expressions


def _cost_bytes(subscriptions: Iterable[SubscriptionData]) -> int:
    """Return the approximate memory of subscriptions, whose expressions the group and the member keep."""
    return sum(
        2 * (len(data.topic) + len(data.sub_string))
        + sum(STRING_BYTES + len(tag) for tag in data.tags_set)
        + INTEGER_BYTES * len(data.code_set)
        for data in subscriptions
    )


class ConsumerGroups(Generic[P]):
    """All groups with connected members. subscription_bytes: the memory of their subscriptions."""

    def __init__(self) -> None:
        self._groups: dict[str, ConsumerGroup[P]] = {}
        self._memberships: Memberships[P, str] = Memberships()
        self._last_probe = 0
        self.subscription_bytes = 0

    def __iter__(self) -> Iterator[ConsumerGroup[P]]:
        return iter(self._groups.values())

    def __len__(self) -> int:
        return len(self._groups)

    def get(self, group: str) -> ConsumerGroup[P] | None:
        """Return the group, or None if no member is connected."""
        return self._groups.get(group)

    def get_or_create(self, consumer: Consumer) -> ConsumerGroup[P]:
        """Return the group that a heartbeat names."""
        group = self._groups.get(consumer.group)
        if group is None:
            group = ConsumerGroup(
                consumer.group, consumer.consume_type, consumer.message_model, consumer.consume_from_where
            )
            self._groups[consumer.group] = group
        return group

    def beat(self, group: ConsumerGroup[P], member: Member[P], consumer: Consumer) -> bool:
        """Apply a heartbeat; return whether the member is new."""
        self._memberships.add(member.peer, group.name)
        known = group.members.get(member.peer)
        before = known.subscription_bytes if known is not None else 0
        is_new = group.beat(member, consumer)
        self._count_bytes(group, member.subscription_bytes - before)
        return is_new

    def _count_bytes(self, group: ConsumerGroup[P], more: int) -> None:
        group.subscription_bytes += more
        self.subscription_bytes += more

    def have_room(self, group_name: str, peer: P, subscriptions: Iterable[SubscriptionData]) -> bool:
        """Return whether there is room for a member's subscriptions in place of its former ones."""
        group, known = self._groups.get(group_name), self.member(group_name, peer)
        more = _cost_bytes(subscriptions) - (known.subscription_bytes if known is not None else 0)
        of_group = (group.subscription_bytes if group is not None else 0) + more
        of_all = self.subscription_bytes + more
        return more <= 0 or has_share(of_group, of_all, SUBSCRIPTION_BYTES_MAX)

    def subscribe(self, group: ConsumerGroup[P], peer: P, subscriptions: Sequence[SubscriptionData]) -> bool:
        """Apply a member's subscriptions; return whether the group's subscriptions changed."""
        member = group.members[peer]
        cost_bytes = _cost_bytes(subscriptions)
        self._count_bytes(group, cost_bytes - member.subscription_bytes)
        member.subscription_bytes = cost_bytes
        return group.subscribe(peer, subscriptions)

    def member(self, group_name: str, peer: P) -> Member[P] | None:
        """Return a connection's membership of a group."""
        group = self._groups.get(group_name)
        return group.members.get(peer) if group is not None else None

    def group_count(self, peer: P) -> int:
        """Return how many groups a connection is a member of."""
        return self._memberships.count(peer)

    def groups_of(self, peer: P, count_max: int | None = None) -> list[str]:
        """Return the groups that a connection is a member of, at most `count_max`."""
        return self._memberships.of(peer, count_max)

    def remove(self, group_name: str, peer: P) -> Member[P] | None:
        """Remove a member from a group; return it, or None if there was none."""
        group = self._groups.get(group_name)
        if group is None:
            return None
        member = group.drop(peer)
        if member is not None:
            self._count_bytes(group, -member.subscription_bytes)
        if not group.members:
            del self._groups[group_name]
        self._memberships.remove(peer, group_name)
        return member

    def look(self, group: ConsumerGroup[P], *, now_ms: MonotonicMs) -> tuple[list[AreYouThere[P]], list[P]]:
        """Return the probes of a group's silent members, and the members whose sessions have expired.

        For a group of 10,000 this takes 1.5 ms, less than a turn of the loop.
        """
        probes: list[AreYouThere[P]] = []
        expired: list[P] = []
        for peer, member in group.members.items():
            if member.session.is_silent(now_ms=now_ms):
                self._last_probe += 1
                member.session.probe(self._last_probe, now_ms=now_ms)
                probes.append(AreYouThere(peer, group.name, member.client_id, self._last_probe))
            elif member.session.has_expired(now_ms=now_ms):
                expired.append(peer)
        return probes, expired

    def answered(self, peer: P, probe: int, *, knows_group: bool, now_ms: MonotonicMs) -> None:
        """Handle the answer to a probe if it is open and was sent over this connection."""
        for name in self.groups_of(peer):
            session = self._groups[name].members[peer].session
            if session.probe_number == probe:
                session.answered(knows_group=knows_group, now_ms=now_ms)

    def subscribers_of(self, topic: str) -> list[str]:
        """Return the groups that subscribe to a topic."""
        return [group.name for group in self._groups.values() if topic in group.subscriptions]
