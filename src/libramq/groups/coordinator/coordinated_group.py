"""The coordinated group: its parts (members, balance, topics, inquiry) and its mode; after each event it
first records its state, then publishes grants to fences and answers to members.

members        the members, when each was last seen, and the queues each reports
balance        the queues: their holders, their targets, the rebalance under way
topics         the topics that members subscribe to
inquiry        what must be found out before any queue is granted

A queue's holder is published only after it is recorded. While the disk refuses (`cannot_persist`), no queue
is granted, and members that join or poll get SYSTEM_BUSY. While the holders are unknown, nothing is recorded,
so no request waits for the disk.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS, Claim, Claims, FenceGrant
from libramq.groups.coordinator.balance import GroupBalance
from libramq.groups.coordinator.effect import Answer, Effect, Grant, ModeChanged
from libramq.groups.coordinator.inquiry import GroupInquiry
from libramq.groups.coordinator.member import GroupMember, Sent
from libramq.groups.coordinator.membership import GroupMembership
from libramq.groups.coordinator.queue_handover import Assignment, QueueHandover
from libramq.groups.coordinator.request import busy, refusal
from libramq.groups.coordinator.shared_tables import MemberKey, SharedTables
from libramq.groups.coordinator.state import SELF_ALLOCATED, UNKNOWN, GroupState, State, StoredHolding
from libramq.groups.coordinator.topics import GroupTopics
from libramq.groups.queue_holdings import Holding
from libramq.groups.rebalance_event import Reason
from libramq.groups.tag_conflict import tag_conflict
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: Ours: a failed record is retried after this time.
RECORD_AGAIN_MS: Final = 1_000
#: Ours: one publication answers at most this many members, each in up to 0.2 ms including the opening of its
#: queues. The others are due at once, because a group does not know how long the turn has lasted.
ANSWERED_AT_ONCE: Final = 8

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. owned: its queues and their epochs; revoked: the owned queues that it must release."""

    client_id: str
    member: str
    instance: str | None
    session_ms: int
    owned: dict[MessageQueue, int]
    revoked: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A snapshot of a group. owners: each queue's holder. strategy: the one that most members name."""

    name: str
    epoch: int
    mode: str
    strategy: str | None
    is_settled: bool
    members: tuple[MemberView, ...]
    owners: dict[MessageQueue, Holding]


class WaitingJoin(NamedTuple, Generic[T]):
    """A member's join, to be answered by `until_ms`."""

    ticket: T
    member: GroupMember[Any, T]
    until_ms: MonotonicMs


class CoordinatedGroup(Generic[P, T]):
    """One group. Times are monotonic; sessions of restored members begin with `Begun`.

    mode_epoch: the epoch of the last change of mode; a member with an earlier epoch does not know the mode.
    effects: published but not yet taken. is_changed: the state must be recorded. to_all: the fences need the
    full state, not only changes. joins, acknowledged: joins and removals to be answered once their change is
    recorded. While the holders are unknown, joins do not wait for a record, because their members keep the
    queues they have.
    """

    def __init__(self, name: str, *, shared: SharedTables[P], state: GroupState | None = None) -> None:
        self.name, self.mode, self.mode_epoch = name, MODE_EPOCHS, 0
        self.is_dead = False
        self.members: GroupMembership[P, T] = GroupMembership(name, shared)
        self.topics = GroupTopics(name, shared.topics)
        queues = self._restored(state) if state is not None else QueueHandover()
        self.balance = GroupBalance(name, self.members, self.topics, queues)
        self.timers, self.stock, self._record_state = shared.timers, shared.stock, shared.record
        self.effects: list[Effect[T]] = []
        self.is_changed, self.to_all = False, True
        self._record_again_at_ms: MonotonicMs | None = None
        self.joins: list[WaitingJoin[T]] = []
        self.acknowledged: list[T] = []
        self.inquiry: GroupInquiry | None = None
        self._remnants: dict[MessageQueue, Holding] = {}
        self.warning = self._tag_conflict()

    def _restored(self, state: GroupState) -> QueueHandover:
        """Restore the members and their topics from a recorded state; return their queues."""
        self.mode = state.mode
        self.mode_epoch = state.epoch if state.mode == MODE_CLIENT else 0
        for profile in state.members:
            self.members.restore(profile, now_ms=MonotonicMs(0))
        self.topics.restore(topic for each in state.members for topic in each.subscriptions)
        here = {queue: claim for queue, claim in state.claims.items() if claim.member in self.members}
        return QueueHandover(state.epoch, here)

    @property
    def state(self) -> State:
        """Return the group's state, derived from its parts."""
        if self.is_dead:
            return State.DEAD
        if self.inquiry is not None:
            return self.inquiry.state
        if self.mode == MODE_CLIENT:
            return State.SELF_ALLOCATING
        if self.balance.is_assigning:
            return State.ASSIGNING
        if not self.members.members:
            return State.EMPTY
        return State.STABLE if self.balance.queues.is_complete else State.RECONCILING

    @property
    def cannot_persist(self) -> bool:
        """Return whether the disk has refused the last record."""
        return self._record_again_at_ms is not None

    @property
    def epoch(self) -> int:
        """Return the highest known epoch."""
        epoch = self.balance.queues.epoch
        return epoch if self.inquiry is None else max(epoch, self.inquiry.epoch)

    def assignment(self, member: GroupMember[P, T]) -> Assignment:
        """Return the queues that a member may hold now, and those it must release."""
        queues, state = self.balance.queues, self.state
        if state in SELF_ALLOCATED:
            assigned = Assignment(epoch=queues.epoch, mode=MODE_CLIENT)
        elif state in UNKNOWN:  # The member keeps the queues it reports.
            assigned = Assignment(epoch=queues.epoch, queues=dict(sorted(member.held.items())))
        else:
            owned = queues.of(member.id)
            keep = {queue: holding.epoch for queue, holding in owned.items() if queue not in queues.revoked}
            # The member must also release queues that it lists but does not own.
            drop = {queue: epoch for queue, epoch in member.held.items() if queue not in keep}
            drop |= {queue: holding.epoch for queue, holding in owned.items() if queue not in keep}
            assigned = Assignment(
                epoch=queues.epoch, queues=dict(sorted(keep.items())), revoke=dict(sorted(drop.items()))
            )
        return replace(assigned, warning=self.warning) if self.warning else assigned

    def answer(self, member: GroupMember[P, T], now_ms: MonotonicMs) -> None:
        """Answer the held poll."""
        assert member.poll is not None
        if self.cannot_persist:
            self.refuse(member, ResponseCode.SYSTEM_BUSY, "the group's state cannot be written; poll again")
            return
        member.last_sent = Sent(self.assignment(member), now_ms, member.peer)
        self.effects.append(Answer(member.poll.ticket, assignment=member.last_sent.assignment))
        member.poll = None

    def refuse(self, member: GroupMember[P, T], code: ResponseCode, remark: str) -> None:
        """Answer the member's held poll and waiting joins with an error."""
        if member.poll is not None:
            self.effects.append(Answer(member.poll.ticket, code, remark))
            member.poll = None
        self.effects += [Answer(join.ticket, code, remark) for join in self.joins if join.member is member]
        self.joins = [join for join in self.joins if join.member is not member]

    def begin_inquiry(self, state: State, until_ms: MonotonicMs, epoch: int) -> None:
        """Start an inquiry, or replace the one under way, and wait for its answers."""
        self.inquiry = GroupInquiry(
            state, until_ms, epoch, gone=set(self.members.left), remnants=self._remnants
        )

    def change_mode(self, mode: str, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Change the way in which queues are assigned."""
        self.mode, self.inquiry, self.mode_epoch = mode, None, queues.epoch
        self.effects.append(ModeChanged(self.name, mode, queues.epoch))
        self.resume(queues, before)

    def resume(self, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Continue with these queues, and send them to every member and every fence."""
        self.balance.resume(queues, before)
        queues.to_notify.update(dict.fromkeys(self.members.members))
        self.to_all = self.is_changed = True

    def assign(self, now_ms: MonotonicMs) -> None:
        """Apply the collected changes."""
        self.note_changes()
        self.effects += self.balance.flush(now_ms=now_ms)

    def note_changes(self) -> None:
        """Update the watched topics to the members' subscriptions; warn the members of a new problem."""
        self.topics.keep({topic for profile in self.members.profiles for topic in profile.subscriptions})
        before, self.warning = self.warning, self._tag_conflict()
        if self.warning != before:
            self.balance.queues.to_notify.update(dict.fromkeys(self.members.members))
        self.is_changed = True

    def _tag_conflict(self) -> str:
        profiles = self.members.staying
        if len(profiles) < 2:  # A single member cannot conflict.
            return ""
        return tag_conflict((each.client_id, each.subscriptions) for each in profiles)

    def conclude(self, now_ms: MonotonicMs) -> None:
        """End the inquiry once no member is awaited: holders keep their queues, and the rest is assigned."""
        inquiry = self.inquiry
        if inquiry is None or inquiry.awaited or inquiry.state not in (State.AWAITING, State.RETURNING):
            return
        inquiry.epoch = self.epoch
        self.inquiry = None
        holdings = inquiry.holdings({member.id: member.held for member in self.members})
        queues = QueueHandover.resumed(inquiry.epoch + 1, holdings)
        rebalance = self.balance.touch(None, "", now_ms=now_ms)
        if inquiry.state is State.RETURNING:
            self.change_mode(MODE_EPOCHS, queues, holdings)
            rebalance.add(Reason.MODE_CHANGED, self.name)
        else:
            absent = (
                (queue, each) for queue, each in inquiry.openings.items() if each.member not in self.members
            )
            self._remnants = dict(absent)
            self.resume(queues, inquiry.openings | holdings)
            if inquiry.epoch:
                rebalance.add(Reason.BROKER_CHANGED, self.name)
        self.assign(now_ms)

    def publish(self, *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Record the changes, and return the effects for others."""
        queues, state = self.balance.queues, self.state
        if state in UNKNOWN:
            if self.cannot_persist:  # The next record includes the refused one.
                self._record_again_at_ms, self.is_changed = None, True
        elif queues.granted or self.is_changed or self.cannot_persist:
            self._record(now_ms)
        names = list(queues.to_notify)
        if not self.cannot_persist:
            self._grant()
            names = names[:ANSWERED_AT_ONCE]
            for name in names:
                del queues.to_notify[name]
            if queues.to_notify:
                self.timers.wake_by(MemberKey(self.name), now_ms)
        changed = [member for name in names if (member := self.members.members.get(name)) is not None]
        for member in changed:
            if member.poll is not None and self._is_to_answer(member, now_ms):
                self.answer(member, now_ms)
        if not self.cannot_persist:
            settled = self.balance.settle() if self.inquiry is None else None
            if settled is not None:
                self.effects.append(settled)
        for member in changed:
            self.timers.wake_by(MemberKey(self.name, member.id), member.due_ms)
        if self.joins:
            self._answer_joins(state, now_ms)
        until_ms = self.inquiry.until_ms if self.inquiry is not None else None
        joins_due_ms = min((join.until_ms for join in self.joins), default=None)
        for due_ms in (self.balance.due_ms, joins_due_ms, self._record_again_at_ms, until_ms):
            self.timers.wake_by(MemberKey(self.name), due_ms)
        if self.acknowledged and state not in UNKNOWN:
            self._acknowledge()
        effects, self.effects = self.effects, []
        return effects

    def _record(self, now_ms: MonotonicMs) -> None:
        """Write the group's state, unless the disk has just refused it."""
        if self._record_again_at_ms is not None and now_ms < self._record_again_at_ms:
            return
        queues = self.balance.queues
        holdings = [
            StoredHolding(
                topic=queue.topic,
                broker_name=queue.broker_name,
                queue_id=queue.queue_id,
                epoch=holding.epoch,
                member=holding.member,
            )
            for queue, holding in queues.holdings.items()
        ]
        profiles = self.members.profiles
        state = GroupState(epoch=queues.epoch, mode=self.mode, members=profiles, holdings=holdings)
        try:
            self._record_state(self.name, state)
        except OSError as error:
            if not self.cannot_persist:  # Log once: log files may be on the same disk.
                log.error(
                    "group state not written; no queue is granted until it is",
                    group=self.name,
                    reason=str(error),
                )
            self._record_again_at_ms = now_ms + RECORD_AGAIN_MS
            return
        self._record_again_at_ms, self.is_changed = None, False

    def _grant(self) -> None:
        """Send new grants to their fences, or the full state to all fences if due."""
        queues = self.balance.queues
        if self.to_all and (queues.granted or self.mode == MODE_CLIENT):
            existing = self.topics.queues(queues)
            names = sorted({queue.broker_name for queue in (*existing, *queues.granted)})
            self.effects += [Grant(name, self._fence_grant(name)) for name in names]
            self.to_all = not names
        elif queues.granted:
            by_broker: dict[str, dict[MessageQueue, Claim]] = {}
            for queue in queues.granted:
                holding = queues.holdings.get(queue)
                if holding is not None:
                    claims = by_broker.setdefault(queue.broker_name, {})
                    claims[queue] = Claim(holding.member, holding.epoch)
            self.effects += [Grant(name, self._fence_grant(name, each)) for name, each in by_broker.items()]
        queues.granted.clear()

    def _fence_grant(self, broker_name: str, claims: Claims | None = None) -> FenceGrant:
        """Return a grant of these queues of a broker; None: of all of them, the full state for its fence."""
        queues, is_complete = self.balance.queues, claims is None
        if claims is None:
            claims = {
                queue: Claim(holding.member, holding.epoch)
                for queue, holding in queues.holdings.items()
                if queue.broker_name == broker_name
            }
        attempts = {queue: queues.attempts[queue] for queue in claims if queue in queues.attempts}
        return FenceGrant(
            group=self.name,
            epoch=queues.epoch,
            mode=self.mode,
            claims=claims,
            complete=is_complete,
            attempts=attempts,
        )

    def _answer_joins(self, state: State, now_ms: MonotonicMs) -> None:
        """Answer joined members, at most ANSWERED_AT_ONCE; the others are due at once.

        Joins with `waits` are held while changes are collected or the fences are queried.
        """
        is_assigned_soon = state is State.ASSIGNING and not self.balance.awaits_topics
        is_assigned_soon = is_assigned_soon or state is State.GATHERING
        joins, self.joins = self.joins, []
        count = 0
        for join in joins:
            if self.cannot_persist:
                self.effects.append(refusal(join.ticket, busy(self.name)))
            elif is_assigned_soon and now_ms < join.until_ms:
                self.joins.append(join)
            elif count == ANSWERED_AT_ONCE:
                self.joins.append(join._replace(until_ms=now_ms))
            else:
                count += 1
                assigned = self.assignment(join.member)
                join.member.last_sent = Sent(assigned, now_ms, join.member.peer)
                self.effects.append(Answer(join.ticket, member=join.member.id, assignment=assigned))

    def _acknowledge(self) -> None:
        """Answer removals, now that they are recorded."""
        for ticket in self.acknowledged:
            refused = self.cannot_persist
            self.effects.append(refusal(ticket, busy(self.name)) if refused else Answer(ticket))
        self.acknowledged.clear()

    def _is_to_answer(self, member: GroupMember[P, T], now_ms: MonotonicMs) -> bool:
        """Return whether a held poll has news to deliver or was held for its full time."""
        assert member.poll is not None
        if now_ms >= member.poll.until_ms:
            return True
        return not self.cannot_persist and member.is_news(
            self.assignment(member), self.mode_epoch, now_ms=now_ms
        )

    @property
    def is_settled(self) -> bool:
        """Return whether no rebalance, inquiry or change is under way."""
        return self.inquiry is None and self.balance.is_settled

    def grants(self, broker_name: str) -> FenceGrant | None:
        """Return the full state for a broker's fence; None while it is unknown."""
        if self.cannot_persist or self.state in UNKNOWN:
            return None
        return self._fence_grant(broker_name)

    def view(self) -> GroupView:
        """Return a snapshot of the group."""
        revoked = self.balance.queues.revoked
        return GroupView(
            name=self.name,
            epoch=self.balance.queues.epoch,
            mode=self.mode,
            strategy=self.balance.strategy.name,
            is_settled=self.is_settled,
            members=tuple(
                MemberView(
                    client_id=member.profile.client_id,
                    member=member.id,
                    instance=member.profile.instance,
                    session_ms=member.profile.session_ms,
                    owned={
                        queue: holding.epoch for queue, holding in self.balance.queues.of(member.id).items()
                    },
                    revoked=tuple(queue for queue in self.balance.queues.of(member.id) if queue in revoked),
                )
                for member in self.members
            ),
            owners=dict(self.balance.queues.holdings),
        )
