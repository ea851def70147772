"""The coordinator: all groups that this broker coordinates; routes requests and events to them, drops groups
that another broker took over, and limits their number.

It is a state machine: requests, events and times in, effects out. Times are monotonic. An `Answer` replies to
a request, in the same call or a later one. The contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, InvalidName
from libramq.fencing import MODE_CLIENT, Claims, FenceGrant
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator import request as rq
from libramq.groups.coordinator import transitions
from libramq.groups.coordinator.coordinated_group import CoordinatedGroup, GroupView
from libramq.groups.coordinator.effect import Effect, Grant, ModeChanged
from libramq.groups.coordinator.shared_tables import SharedTables
from libramq.groups.coordinator.state import SELF_ALLOCATED, GroupState, MemberProfile, Record
from libramq.groups.coordinator.topics import change_of
from libramq.groups.limits import COORDINATED_GROUPS_MAX, MEMBERS_OF_ALL_MAX
from libramq.logs import get_logger
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.secret_bits import SecretBits

log = get_logger(__name__)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: From the design: 128 bits, which cannot be guessed.
MEMBER_ID_BYTES: Final = 16


class Coordinator(Generic[P, T]):
    """Groups by name. P: a connection; T: a request that is answered later.

    record: persists a group's state before any of it is published; None removes it. queues: returns the
    sorted queues of a topic across all brokers, or None; `queues_changed` takes changes, and the queues of
    restored groups. must_gather: whether another broker may have coordinated a group that is unknown here.
    fence_epoch: the epoch of a group's fence at this broker; None if there is none. due_by: called with the
    time of the next `tick` whenever it may have become earlier.
    """

    def __init__(
        self,
        *,
        secret_bits: SecretBits,
        record: Record = lambda *_: None,
        queues: Callable[[str], Sequence[MessageQueue] | None] = lambda _: None,
        must_gather: Callable[[str], bool] = lambda _: False,
        fence_epoch: Callable[[str], int | None] = lambda _: None,
        due_by: Callable[[MonotonicMs], None] = lambda _: None,
    ) -> None:
        self._secret_bits = secret_bits
        self._must_gather, self._fence_epoch = must_gather, fence_epoch
        self._shared: SharedTables[P] = SharedTables(record)
        self._groups: dict[str, CoordinatedGroup[P, T]] = {}
        #: By group given up to another broker: its last epoch here and its members at that time.
        self._former: dict[str, tuple[int, list[str]]] = {}
        self._shared.topics.find = queues
        self._shared.timers.due_by = due_by

    def restore(self, states: Mapping[str, GroupState], *, now_ms: MonotonicMs) -> None:
        """Restore recorded groups; the sessions of their members begin now."""
        for name, state in states.items():
            group = self._groups[name] = CoordinatedGroup(name, shared=self._shared, state=state)
            transitions.handle(group, ev.Begun(), now_ms=now_ms)

    # Requests of members and operators.

    def ask(
        self, ticket: T, peer: P, request: rq.Request, *, is_alone: bool = False, now_ms: MonotonicMs
    ) -> list[Effect[T]]:
        """Handle a request of a member or an operator; one of these effects or a later one answers it.

        is_alone: no other client of the group is connected here and about to join.
        """
        try:
            match request:
                case rq.Join():
                    group, event = self._join(ticket, peer, request, is_alone=is_alone, now_ms=now_ms)
                case rq.Remove():
                    group, event = self._remove(ticket, request)
                case _:
                    group, event = self._member_request(ticket, peer, request)
            transitions.handle(group, event, now_ms=now_ms)
        except (BrokerError, InvalidName) as error:
            return [rq.refusal(ticket, error)]
        return group.publish(now_ms=now_ms)

    def _join(
        self, ticket: T, peer: P, join: rq.Join, *, is_alone: bool, now_ms: MonotonicMs
    ) -> tuple[CoordinatedGroup[P, T], ev.Event]:
        names.validate_group(join.group)
        if join.held:
            known = self._groups.get(join.group)
            self._shared.check_listed(join.held, known.members.held_count if known is not None else 0)
        profile = rq.member_profile(join, self._secret_bits.token_hex(MEMBER_ID_BYTES))
        if self._shared.member_count >= MEMBERS_OF_ALL_MAX:
            raise rq.at_limit(f"{MEMBERS_OF_ALL_MAX} members are here")
        name, group = join.group, self._groups.get(join.group)
        if group is None:
            if len(self._groups) >= COORDINATED_GROUPS_MAX:
                raise rq.at_limit(f"{COORDINATED_GROUPS_MAX} groups are coordinated here")
            group = self._groups[name] = CoordinatedGroup(name, shared=self._shared)
            if name in self._shared.stock:
                transitions.handle(group, ev.StockMembersJoined(self._shared.stock[name]), now_ms=now_ms)
            elif name in self._former or self._must_gather(name):
                transitions.handle(group, ev.FencesInDoubt(), now_ms=now_ms)
        if group.cannot_persist:
            raise rq.busy(group.name)
        return group, ev.Joined(ticket, peer, profile, join, is_alone)

    def _member_request(
        self, ticket: T, peer: P, request: rq.Poll | rq.Release | rq.Leave
    ) -> tuple[CoordinatedGroup[P, T], ev.Event]:
        group = self._groups.get(request.group)
        if group is None:
            raise rq.no_members(request.group)
        member = group.members.require(request.member)
        match request:
            case rq.Poll():
                self._shared.check_listed(request.held, group.members.held_count, len(member.held))
                return group, ev.Polled(ticket, peer, member, request)
            case rq.Release():
                rq.check_listed(request.queues)
                return group, ev.Released(ticket, peer, member, request)
            case rq.Leave():
                rq.check_listed(request.committed)
                return group, ev.Left(ticket, member, request)

    def _remove(self, ticket: T, remove: rq.Remove) -> tuple[CoordinatedGroup[P, T], ev.Event]:
        operator = rq.operator_of(remove)
        group = self._groups.get(remove.group)
        if group is None:
            stock = self._shared.stock.get(remove.group)
            raise rq.allocates_itself(remove.group, stock) if stock else rq.no_members(remove.group)
        if group.cannot_persist and group.state not in SELF_ALLOCATED:
            raise rq.busy(remove.group)
        return group, ev.Removed(ticket, remove.name, operator)

    # Events.

    def happened(self, event: ev.Event, *groups: str, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Handle an event of these groups, ignoring groups that are not coordinated here."""
        effects: list[Effect[T]] = []
        for name in groups:
            known = self._groups.get(name)
            if known is None:
                continue
            try:
                transitions.handle(known, event, now_ms=now_ms)
            except BrokerError as error:  # The state does not allow it; other effects are still published.
                log.error("an event of a group failed", group=name, reason=str(error))
            effects += known.publish(now_ms=now_ms)
        return effects

    def closed(self, peer: P, *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Handle the end of a connection: its members have a grace period to reconnect."""
        effects: list[Effect[T]] = []
        for key in self._shared.connections.of(peer):
            member = self._groups[key.group].members.require(key.member)
            effects += self.happened(ev.ConnectionClosed(member), key.group, now_ms=now_ms)
        return effects

    def queues_changed(
        self, topic: str, queues: Sequence[MessageQueue] | None, *, now_ms: MonotonicMs
    ) -> list[Effect[T]]:
        """Take a topic's queues across all brokers; an empty list means that the topic does not exist.

        None means that the queues are unknown, for example because another broker was found. The group then
        keeps its queues until they are reported or the wait in `GroupTopics` ends.
        """
        topics = self._shared.topics
        if queues is None:
            topics.queues.pop(topic, None)
            return []
        before = topics.queues.get(topic)
        if not topics.update(topic, queues):
            return []
        reason = change_of(before, queues) if before is not None else None
        return self.happened(ev.QueuesChanged(topic, reason), *topics.groups(topic), now_ms=now_ms)

    def masters_absent(self, broker_names: frozenset[str]) -> None:
        """Take the brokers whose master is gone while a slave serves; their queues do not move.

        When such a master returns, the fences are in doubt, and its queues may move.
        """
        self._shared.topics.absent = broker_names

    def stock_members(self, group: str, client_ids: Sequence[str], *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Take the complete list of a group's stock members, which allocate queues for themselves."""
        if client_ids and self._shared.stock.get(group) == tuple(client_ids):
            return []
        if client_ids and len(self._shared.stock) < COORDINATED_GROUPS_MAX:
            self._shared.stock[group] = tuple(client_ids)
        else:
            self._shared.stock.pop(group, None)
        if client_ids and group not in self._groups and (epoch := self._fence_epoch(group)) is not None:
            # A fence remains from an earlier life of the group that no other broker remembers.
            return [ModeChanged(group, MODE_CLIENT, epoch)]
        event = ev.StockMembersJoined(client_ids) if client_ids else ev.StockMembersLeft()
        return self.happened(event, group, now_ms=now_ms)

    def refused(self, grant: FenceGrant, epoch: int, *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Handle a fence's refusal of a grant; the fence has seen epochs up to `epoch`.

        Another broker has coordinated the group meanwhile. If it still does, call `drop`; otherwise the
        fences are queried again, and the group continues above that epoch.
        """
        group = grant.group
        if grant.mode == MODE_CLIENT and group not in self._groups and group in self._shared.stock:
            # The fence remains from a coordinator that owned the group without our knowledge.
            return [ModeChanged(group, MODE_CLIENT, epoch)]
        return self.happened(ev.GrantRefused(grant.epoch, epoch), group, now_ms=now_ms)

    def drop(self, group: str, address: str = "", *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Give up a group that another broker coordinates now. address: that broker's; empty if unknown."""
        self._shared.stock.pop(group, None)
        known = self._groups.get(group)
        if known is not None:
            self._former[group] = (known.balance.queues.epoch, list(known.members.members))
        return self._dissolve(group, address, now_ms)

    def removed(self, group: str, *, may_return: bool, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Handle the deletion of a group at this broker and its fence; members may be alive.

        may_return: the group is recreated on use. Members then keep their queues and reopen them; otherwise
        they are refused.
        """
        self._former.pop(group, None)
        known = self._groups.get(group)
        if known is None or not may_return or not len(known.members):
            return self._dissolve(group, "", now_ms)
        return self.happened(ev.FencesInDoubt(), group, now_ms=now_ms)

    def _dissolve(self, group: str, address: str, now_ms: MonotonicMs) -> list[Effect[T]]:
        known = self._groups.pop(group, None)
        if known is None:
            return []
        transitions.handle(known, ev.Dissolved(address), now_ms=now_ms)
        try:
            self._shared.record(group, None)
        except OSError as error:  # A restart restores the group and drops it again.
            log.error("group state cannot be removed", group=group, reason=str(error))
        return known.effects

    def tick(self, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Handle due sessions, grace periods, polls, revocations and collected changes."""
        effects: list[Effect[T]] = []
        touched: dict[str, None] = {}
        for key in self._shared.timers.take_due(now_ms):
            group = self._groups.get(key.group)
            if group is None:
                continue
            touched[key.group] = None
            try:
                if not key.member:
                    transitions.look(group, now_ms=now_ms)
                elif (member := group.members.members.get(key.member)) is not None:
                    transitions.look_at(group, member, now_ms=now_ms)
            except Exception:  # A fault in one group must not stop the timers of the others.
                log.exception("a group's timer failed", group=key.group)
        for name in touched:
            effects += self._groups[name].publish(now_ms=now_ms)
        return effects

    @property
    def next_due_ms(self) -> MonotonicMs | None:
        """Return the earliest time at which `tick` may have something to do."""
        return self._shared.timers.next_due_ms

    # Statistics.

    def names(self) -> list[str]:
        """Return the names of the groups coordinated here."""
        return list(self._groups)

    def subscribers(self, topic: str) -> list[str]:
        """Return the groups coordinated here that subscribe to a topic."""
        return self._shared.topics.groups(topic)

    def topics(self) -> list[str]:
        """Return the topics whose queues must be reported."""
        return list(self._shared.topics)

    def grants_for(self, broker_name: str) -> list[Grant]:
        """Return the full state of every group for a broker's fence, over a new link."""
        grants = (group.grants(broker_name) for group in self._groups.values())
        return [Grant(broker_name, grant) for grant in grants if grant is not None]

    def group(self, name: str) -> GroupView | None:
        """Return a view of the group as it is now."""
        return self._groups[name].view() if name in self._groups else None

    def profiles(self, name: str) -> Sequence[MemberProfile]:
        """Return the profiles of a group's members; none if it is not coordinated here."""
        group = self._groups.get(name)
        return group.members.profiles if group is not None else ()

    def forget_former(self, leave: rq.Leave) -> None:
        """Note that a member has left a group given up to another broker, which need not await it."""
        _, members = self.former(leave.group)
        if members is not None and leave.member in members:
            members.remove(leave.member)

    def members_of(self, group: str) -> tuple[int, list[str] | None]:
        """Return a group's epoch and members; the last known ones if another broker has the group."""
        if group in self._groups and (known := self._groups[group]).balance.queues.epoch:
            return known.balance.queues.epoch, list(known.members.members)
        return self.former(group)

    def former(self, group: str) -> tuple[int, list[str] | None]:
        """Return the epoch and members that a group had when it was given up to another broker."""
        return self._former.get(group, (0, None))

    def opened(self, group_name: str, claims: Claims) -> None:
        """Note queues that are opened with the answer that grants them, before their members list them.

        Else an inquiry would take openings for remnants, even while the answer waits for the disk.
        """
        if group_name in self._groups:
            self._groups[group_name].members.opened(claims)

    def client_of(self, group_name: str, member_id: str) -> str | None:
        """Return the client id of a member."""
        members = self._groups[group_name].members.members if group_name in self._groups else {}
        return members[member_id].profile.client_id if member_id in members else None
