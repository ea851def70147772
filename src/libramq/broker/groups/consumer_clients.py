"""The consumers connected to this broker: which members join and leave a group, when others are notified, and
when a silent member is removed.

Upstream: broker/client/ConsumerManager.java, DefaultConsumerIdsChangeListener.java.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from libramq.broker.files.tables import Tables
from libramq.broker.groups.observed_rebalances import ObservedRebalances
from libramq.broker.groups.offset_commits import OffsetCommits
from libramq.clock import Clock, MonotonicMs, Now, read_clock
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import MODE_CLIENT
from libramq.filter.subscription import BROADCASTING, SubscriptionData
from libramq.groups.consumer_group import Consumer, ConsumerGroup, ConsumerGroups, Member
from libramq.groups.limits import MEMBERS_MAX, SUBSCRIPTION_BYTES_MAX
from libramq.groups.pending_notifications import (
    REPEAT_MS,
    AreYouThere,
    GroupChanged,
    Notice,
    PendingNotifications,
)
from libramq.groups.protocol_groups import ForeignGroups
from libramq.groups.queue_lock import QueueLocks
from libramq.groups.rebalance_event import Reason, RebalanceEvent, named
from libramq.groups.roster import MemberList, Roster
from libramq.kernel.connection import Connection, Principal
from libramq.kernel.parts import Kernel, Phase
from libramq.kernel.work import PORTION
from libramq.logs import get_logger

log = get_logger(__name__)

#: Ours: groups of one connection.
GROUPS_PER_PEER_MAX: Final = 1_000
#: Ours: time in which name servers usually learn a topic's queues; members that ask earlier see the old ones.
QUEUES_ANNOUNCED_MS: Final = 200


@dataclass(slots=True)
class _Departures:
    """The members that leave a group in one event, for one reason; the others are notified once.

    clients: those without another connection. grace_ms: how long their locks last.
    """

    group: ConsumerGroup[Connection]
    clients: list[str] = field(default_factory=list)
    is_stock: bool = False
    is_other_stock: bool = False
    grace_ms: int = 0


class ConsumerClients:
    """Groups and members, with the observed `rebalances`; `record` takes their events.

    Changes of members of a coordinated group are announced and recorded by the coordinator
    (`ObservedRebalances.started`), unless the group's members allocate for themselves.
    roster: the members of groups, here and at other brokers. notifications: members to notify again.
    foreign: the groups of other protocols.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        offsets: OffsetCommits,
        locks: QueueLocks,
        kernel: Kernel,
        record: Callable[[RebalanceEvent], None],
    ) -> None:
        self._stock_observers: list[Callable[[str, list[str]], None]] = []
        self._member_observers: list[Callable[[str], None]] = []
        self.roster = Roster()
        self.foreign = ForeignGroups()
        clock, self._work, self._soon = kernel.clock, kernel.work, kernel.soon
        self._departures: dict[tuple[str, Reason], _Departures] = {}
        self.notifications = Notifications(clock)
        self.broker_name = tables.topics.broker_name
        self._configs = tables.groups
        self._groups: ConsumerGroups[Connection] = ConsumerGroups()
        #: Returns the group of a name, or None if no member is connected.
        self.group = self._groups.get
        self.groups_of = self._groups.subscribers_of
        self.answered_question = self._groups.answered
        self.rebalances = ObservedRebalances(
            self._groups,
            tables=tables,
            offsets=offsets,
            kernel=kernel,
            record=record,
            allocates=self.allocates,
        )
        self._locks = locks
        self._clock = clock
        self._fences = tables.fences

    def observe_stock(self, observer: Callable[[str, list[str]], None]) -> None:
        """Set a function to be called with a group and its members here that allocate for themselves."""
        self._stock_observers.append(observer)

    def observe_members(self, observer: Callable[[str], None]) -> None:
        """Set a function to be called with a group whose members here, or their kinds, have changed."""
        self._member_observers.append(observer)

    def groups(self) -> Iterable[ConsumerGroup[Connection]]:
        """Return all groups with connected members."""
        return self._groups

    def client_ids(self, group: ConsumerGroup[Connection]) -> Sequence[str]:
        """Return the members of a group, wherever they are connected."""
        listed = self.roster.listed(group.name)
        return group.client_ids if listed is None else listed

    def receive_list(self, group_name: str, members: MemberList) -> None:
        """Take a coordinator's list of a group; if it differs, notify the group's members here."""
        group = self._groups.get(group_name)
        if group is None:
            self.roster.forget_list(group_name)
            return
        before = set(self.client_ids(group))
        if self.roster.take_list(group_name, members) and before != set(self.client_ids(group)):
            self._notify(group)

    @property
    def is_busy(self) -> bool:
        """Return whether there are members, or rebalances that have not settled."""
        return len(self._groups) > 0 or self.rebalances.are_unsettled

    def server_assigned_topics(self) -> set[str]:
        """Return the topics of groups with server-side assignment."""
        return {topic for group in self._groups if group.is_server_assigned for topic in group.subscriptions}

    def is_member(self, peer: Connection) -> bool:
        """Return whether a connection is a member of any group."""
        return self._groups.group_count(peer) > 0

    def reads_committed(self, peer: Connection, group_name: str) -> bool:
        """Return whether a connection is a member of a group that commits here; broadcasting ones do not."""
        group = self._groups.get(group_name)
        return group is not None and peer in group.members and not group.is_broadcasting

    def require_room(
        self, group_name: str, peer: Connection, subscriptions: Sequence[SubscriptionData]
    ) -> None:
        """Raise SystemBusy if a member's subscriptions exceed the memory limit, together with all others."""
        if not self._groups.have_room(group_name, peer, subscriptions):
            raise broker_error(
                ResponseCode.SYSTEM_BUSY,
                f"group {group_name}: its members' subscriptions may take what all groups leave free of"
                f" {SUBSCRIPTION_BYTES_MAX} bytes; use shorter expressions or fewer groups",
            )

    def beat(
        self, member: Member[Connection], consumer: Consumer, *, without_subscriptions: bool, now: Now
    ) -> None:
        """Apply one group of a heartbeat; its members are notified if the group changed."""
        group = self._groups.get(consumer.group)
        if group is None or member.peer not in group.members:
            self._announce_departures()  # Perhaps its own, in the same read: it leaves before it joins.
            member_count = len(group.members) if group is not None else 0
            if member_count >= MEMBERS_MAX or self._groups.group_count(member.peer) >= GROUPS_PER_PEER_MAX:
                log.warning("member refused", group=consumer.group, client=member.client_id)
                return
            group = self._groups.get_or_create(consumer)
        is_new_client = not group.has_client(member.client_id)
        version = group.version
        if is_new_client:
            self._locks.returned(group.name, member.client_id)
        known = group.members.get(member.peer)
        is_same_model = group.message_model == consumer.message_model
        is_same = known is not None and known.is_same(member) and is_same_model
        stock = group.stock_client_ids if not is_same else []
        is_new = self._groups.beat(group, member, consumer)
        if not is_same:
            self._membership_changed(group, is_other_stock=stock != group.stock_client_ids)
        resubscribed = not without_subscriptions and self._groups.subscribe(
            group, member.peer, consumer.subscriptions
        )
        if member.is_stock and group.version != version:
            self._members_changed(group.name)
        if not is_new and not resubscribed:
            return
        if is_new_client or resubscribed:
            reason = Reason.MEMBER_JOINED if is_new_client else Reason.SUBSCRIPTION_CHANGED
            self._changed(group.name, reason, member.client_id, now, is_stock=member.is_stock)
        if not resubscribed and self.roster.listed(group.name) is not None:
            return  # Its coordinator will send the new list; then the members are notified.
        self._notify(group)

    def leave(self, group_name: str, peer: Connection, reason: Reason, *, now: Now) -> None:
        """Remove a member from its group, and notify the others."""
        group = self._groups.get(group_name)
        member = self._groups.remove(group_name, peer)
        if group is not None and member is not None:
            self._gone(group, member, reason, now)

    def closed(self, peer: Connection, *, groups_max: int | None = None, now: Now) -> None:
        """Remove memberships of a connection that has ended, at most `groups_max`."""
        self._unknown_clients_gone(peer, now)
        for group_name in self._groups.groups_of(peer, groups_max):
            self.leave(group_name, peer, Reason.CONNECTION_CLOSED, now=now)

    def expire(self) -> Iterator[None]:
        """Probe silent members, and remove those that did not answer; yields to let others run."""
        for group in list(self._groups):
            probes, expired = self._groups.look(group, now_ms=self._clock.monotonic_ms())
            self.notifications.outbox.probe(probes)
            yield
            for peer in expired:
                self.leave(group.name, peer, Reason.SESSION_EXPIRED, now=read_clock(self._clock))
                yield

    def remove_disabled(self, is_known: Callable[[Principal], bool]) -> Iterator[None]:
        """Remove members whose user is no longer known; yields to let others run."""
        for group in list(self._groups):
            for peer, member in list(group.members.items()):
                if not is_known(member.principal) and group.members.get(peer) is member:
                    self.leave(group.name, peer, Reason.OPERATOR, now=read_clock(self._clock))
                yield

    def committed(self, peer: Connection, group_name: str) -> None:
        """Note that a member commits an offset."""
        member = self._groups.member(group_name, peer)
        if member is not None:
            member.session.seen(now_ms=self._clock.monotonic_ms())

    def queue_count_changed(self, topic: str, *, now: Now) -> None:
        """Handle a change of a topic's queues, and notify the members of its groups."""
        for name in self._groups.subscribers_of(topic):
            self._changed(name, Reason.QUEUE_COUNT_CHANGED, topic, now, is_stock=False)
            group = self._groups.get(name)
            if group is not None:
                self._notify(group, wait_ms=QUEUES_ANNOUNCED_MS)

    def fetched(self, peer: Connection, group_name: str) -> None:
        """Note that a member fetches its group's member list."""
        group = self._groups.get(group_name)
        if group is not None:
            self._looked(peer, group, asks=False)

    def queried(self, peer: Connection, group: ConsumerGroup[Connection]) -> None:
        """Note that a member queries its queues of a topic."""
        self._looked(peer, group, asks=True)

    def _looked(self, peer: Connection, group: ConsumerGroup[Connection], *, asks: bool) -> None:
        allocated = group.allocates
        concerns_others = group.looked(peer, asks=asks)
        if group.allocates is not allocated:
            self._members_changed(group.name)
        self.notifications.looked(group, peer, concerns_others=concerns_others)

    def send_notices(self) -> None:
        """Send the next notices to the members that are still connected, each in its protocol."""
        for notice in self.notifications.outbox.take():
            member = self._groups.member(notice.group, notice.peer)
            if member is not None and member.notify is not None and notice.peer.is_open:
                member.notify(notice)

    def repeat_notifications(self) -> None:
        """Notify again the members that have not fetched the list since their last notification."""
        if not self.notifications.are_repeated:
            self._work(self.notifications.repeat(self.allocates))

    def _gone(
        self, group: ConsumerGroup[Connection], member: Member[Connection], reason: Reason, now: Now
    ) -> None:
        """Note that a member has left. Thousands may leave together; none may cost a scan of the others."""
        departures = self._departures.setdefault((group.name, reason), _Departures(group))
        departures.is_stock = departures.is_stock or member.is_stock
        if member.is_stock and not group.is_broadcasting and not group.has_stock(member.client_id):
            departures.is_other_stock = True
        if not group.has_client(member.client_id):
            self.rebalances.gone(group.name, member.client_id, now)
            grace_ms = self._locks.vanished(group.name, member.client_id, now_ms=now.monotonic_ms)
            departures.grace_ms = max(departures.grace_ms, grace_ms)
            departures.clients.append(member.client_id)
        self._soon(Phase.JOURNAL, self._announce_departures)

    def _announce_departures(self) -> None:
        """Notify observers and members of all departures in this event."""
        now = read_clock(self._clock)
        try:
            while self._departures:
                (name, reason), left = next(iter(self._departures.items()))
                del self._departures[name, reason]
                group = left.group
                self._membership_changed(group, is_other_stock=left.is_other_stock)
                if left.clients:
                    self._changed(name, reason, named(left.clients), now, is_stock=left.is_stock)
                if not group.members:
                    self.notifications.forget(name)
                    self.roster.forget_list(name)
                elif self.roster.listed(name) is None:
                    self._notify(group, wait_ms=left.grace_ms)
        finally:
            if self._departures:  # An observer failed; announce the others in any case.
                self._soon(Phase.JOURNAL, self._announce_departures)

    def locked(self, peer: Connection, group_name: str, client_id: str) -> None:
        """Note that a client has locked queues; its first heartbeat may still be on its way."""
        group = self._groups.get(group_name)
        if group is None or not group.has_client(client_id):
            self._locks.note_unknown_client(peer, group_name, client_id)

    def _unknown_clients_gone(self, peer: Connection, now: Now) -> None:
        for group_name, client_id in self._locks.take_unknown_clients(peer):
            group = self._groups.get(group_name)
            if group is None or not group.has_client(client_id):
                grace_ms = self._locks.vanished(group_name, client_id, now_ms=now.monotonic_ms)
                if group is not None and grace_ms:
                    self._notify(group, wait_ms=grace_ms)

    def _changed(self, group_name: str, reason: Reason, who: str | None, now: Now, *, is_stock: bool) -> None:
        group = self._groups.get(group_name)
        if group is not None and group.message_model == BROADCASTING:
            return
        if is_stock or self.allocates(group_name):
            members = group.client_ids if group is not None else []
            self.rebalances.started(group_name, reason, who, members, now=now)

    def allocates(self, group_name: str) -> bool:
        """Return whether the members of a group, including ours, allocate for themselves."""
        group = self._groups.get(group_name)
        return (group is not None and group.has_stock()) or self._fences.mode(group_name) == MODE_CLIENT

    def _membership_changed(self, group: ConsumerGroup[Connection], *, is_other_stock: bool) -> None:
        """Notify observers that a group's members, or those that allocate for themselves, have changed."""
        if is_other_stock:
            for observer in self._stock_observers:
                observer(group.name, group.stock_client_ids)
        self._members_changed(group.name)

    def _members_changed(self, group_name: str) -> None:
        for observer in self._member_observers:
            observer(group_name)

    def _notify(self, group: ConsumerGroup[Connection], *, wait_ms: int = 0) -> None:
        config = self._configs.get(group.name)  # None for a group that was deleted under its members.
        is_wanted = config is None or config.notify_consumer_ids_changed_enable
        if is_wanted and group.message_model != BROADCASTING and self.allocates(group.name):
            self.notifications.changed(group, wait_ms=wait_ms)


class Notifications:
    """The pending notifications of all groups with members here.

    Members are notified of a change of their group until they have fetched the list; upstream notifies them
    once, and a lost notification costs 20 s. Due notifications are in the outbox, which is sent as long work.

    unfinished: groups with members that may have to be notified again. are_repeated: `repeat` is under way.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pending: dict[str, PendingNotifications[Connection]] = {}
        #: Called when a notification is due, now or later.
        self.wake: Callable[[], None] = lambda: None
        self.unfinished: set[str] = set()
        self.outbox = Outbox()
        self.are_repeated = False

    def changed(self, group: ConsumerGroup[Connection], *, wait_ms: int = 0) -> None:
        """Notify some members of a group's change now; the others are due within wait_ms.

        wait_ms: members notified sooner would be refused the locks of the member that has gone, and Java's
        client retries a second later. Longer waits than that are pointless, and ignored.
        """
        wait_ms = wait_ms if wait_ms <= REPEAT_MS else 0
        pending = self._pending.setdefault(group.name, PendingNotifications())
        peers = pending.changed(group.members, now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms)
        self.unfinished.add(group.name)
        self.outbox.change(group.name, peers)
        self.wake()

    def again(self, group: ConsumerGroup[Connection], clients: Mapping[str, int]) -> None:
        """Notify clients again, each after its delay in milliseconds."""
        pending = self._pending.get(group.name)
        if not clients or pending is None:
            return
        for peer, member in group.members.items():
            wait_ms = clients.get(member.client_id)
            if wait_ms is not None:
                pending.again(peer, now_ms=self._clock.monotonic_ms(), wait_ms=wait_ms)
                self.unfinished.add(group.name)
                self.wake()

    def looked(self, group: ConsumerGroup[Connection], peer: Connection, *, concerns_others: bool) -> None:
        """Note that a member has fetched the list; concerns_others: the way it fetches affects the others."""
        pending = self._pending.get(group.name)
        if pending is None:
            return
        now_ms = self._clock.monotonic_ms()
        if concerns_others:
            pending.changed(group.members, now_ms=now_ms, wait_ms=1)
            self.unfinished.add(group.name)
            self.wake()
        pending.fetched(peer, now_ms=now_ms)

    def looked_at_ms(self, group_name: str) -> MonotonicMs | None:
        """Return when the last member fetched the latest change (monotonic); None while any has not."""
        pending = self._pending.get(group_name)
        return pending.looked_at_ms if pending is not None else None

    def repeat(self, allocates: Callable[[str], bool]) -> Iterator[None]:
        """Send the due repetitions; yields to let others run.

        allocates: returns whether a group's members look at the list at all.
        """
        self.are_repeated = True
        try:
            for name in sorted(self.unfinished):
                pending = self._pending.get(name)
                if name not in self.unfinished or pending is None:
                    continue
                if not allocates(name):
                    self.unfinished.discard(name)
                    continue
                self.outbox.change(name, pending.due(now_ms=self._clock.monotonic_ms()))
                if pending.is_current:
                    self.unfinished.discard(name)
                self.wake()
                yield
        finally:
            self.are_repeated = False
            self.wake()

    def forget(self, group_name: str) -> None:
        """Remove a group without members here."""
        self._pending.pop(group_name, None)
        self.unfinished.discard(group_name)


class Outbox:
    """The notices waiting to be sent, each once per connection and group.

    Connections take turns, so a member of a thousand groups does not keep others waiting. A change is a name
    in its connection's table rather than an object: twenty clients with a thousand groups each have 20,000,
    and the garbage collector stopped the loop to scan them.
    """

    def __init__(self) -> None:
        self._probes: deque[AreYouThere[Connection]] = deque()
        #: Ordered, because finding the first key of a dict is slow after many were removed from its front.
        self._changed: OrderedDict[Connection, dict[str, None]] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._probes or self._changed)

    def probe(self, probes: Iterable[AreYouThere[Connection]]) -> None:
        """Add probes, which are sent before all changes."""
        self._probes.extend(probes)

    def change(self, group_name: str, peers: Iterable[Connection]) -> None:
        """Add a change of a group for some of its members."""
        for peer in peers:
            self._changed.setdefault(peer, {})[group_name] = None

    def take(self) -> Sequence[Notice[Connection]]:
        """Take the next notices: probes, or changes for the connection whose turn it is."""
        if self._probes:
            return [self._probes.popleft() for _ in range(min(len(self._probes), PORTION))]
        peer, groups = self._changed.popitem(last=False)
        taken = list(islice(groups, PORTION))
        for group_name in taken:
            del groups[group_name]
        if groups:
            self._changed[peer] = groups  # It is now the last in turn.
        return [GroupChanged(peer, group_name) for group_name in taken]
