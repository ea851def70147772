"""The coordinated group: its parts (members, balance, topics, inquiry, publication), its mode, and what it
publishes after each event.

members        who is a member, when it was last heard from, which queues it reports
balance        the queues: their holders, their targets, the rebalance that is under way
topics         the topics that members subscribe to
inquiry        what has to be found out before any queue is granted
publication    what has to be recorded, granted and answered
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Final, Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS, FenceGrant
from libramq.groups.coordinator.balance import GroupBalance
from libramq.groups.coordinator.effect import Effect, ModeChanged
from libramq.groups.coordinator.inquiry import GroupInquiry
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.membership import GroupMembership
from libramq.groups.coordinator.publication import GroupPublication, complete_grant
from libramq.groups.coordinator.queue_handover import Assignment, QueueHandover, assignment_by
from libramq.groups.coordinator.shared_tables import MemberKey, SharedTables
from libramq.groups.coordinator.state import SELF_ALLOCATED, UNKNOWN, GroupState, State, StoredHolding
from libramq.groups.coordinator.topics import GroupTopics
from libramq.groups.queue_holdings import Holding
from libramq.groups.rebalance_event import Reason
from libramq.groups.tag_conflict import tag_conflict
from libramq.message.queue import MessageQueue

#: Ours: members that one publication answers, each in up to 0.2 ms with the queues that are opened for it.
#: The others are due at once: a group does not know how long a turn has lasted.
ANSWERED_AT_ONCE: Final = 8

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberView:
    """One member. owned: its queues and their epochs; revoked: those of them that it has to release."""

    client_id: str
    member: str
    instance: str | None
    session_ms: int
    owned: dict[MessageQueue, int]
    revoked: tuple[MessageQueue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupView:
    """A group at one moment. owners: each queue's holder. strategy: the one most members name."""

    name: str
    epoch: int
    mode: str
    strategy: str | None
    is_settled: bool
    members: tuple[MemberView, ...]
    owners: dict[MessageQueue, Holding]


class CoordinatedGroup(Generic[P, T]):
    """One group. Times are monotonic; sessions of restored members begin with `Begun`.

    mode_epoch: the epoch of the last change of mode; a member with an earlier epoch does not know the mode.
    """

    def __init__(self, name: str, *, shared: SharedTables[P], state: GroupState | None = None) -> None:
        self.name, self.mode, self.mode_epoch = name, MODE_EPOCHS, 0
        self.is_dead = False
        self.members: GroupMembership[P, T] = GroupMembership(name, shared)
        self.topics = GroupTopics(name, shared.topics)
        queues = self._restored(state) if state is not None else QueueHandover()
        self.balance = GroupBalance(name, self.members, self.topics, queues)
        self.publication: GroupPublication[T] = GroupPublication(name, shared.record)
        self.timers, self.stock = shared.timers, shared.stock
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
    def epoch(self) -> int:
        """Return the highest known epoch."""
        epoch = self.balance.queues.epoch
        return epoch if self.inquiry is None else max(epoch, self.inquiry.epoch)

    def assignment(self, member: GroupMember[P, T]) -> Assignment:
        """Return the queues that a member may hold now, and those it has to release."""
        queues, state = self.balance.queues, self.state
        if state in SELF_ALLOCATED:
            assigned = Assignment(epoch=queues.epoch, mode=MODE_CLIENT)
        elif state in UNKNOWN:  # It keeps the queues that it reports.
            assigned = Assignment(epoch=queues.epoch, queues=dict(sorted(member.held.items())))
        else:
            assigned = assignment_by(queues, member.id, member.held)
        return replace(assigned, warning=self.warning) if self.warning else assigned

    def answer(self, member: GroupMember[P, T], now_ms: MonotonicMs) -> None:
        """Answer the held poll."""
        self.publication.answer(member, self.assignment(member), now_ms=now_ms)

    def begin_inquiry(self, state: State, until_ms: MonotonicMs, epoch: int) -> None:
        """Start an inquiry, or replace the one under way, and wait for its answers."""
        self.inquiry = GroupInquiry(
            state, until_ms, epoch, gone=set(self.members.left), remnants=self._remnants
        )

    def change_mode(self, mode: str, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Change the way in which queues are assigned."""
        self.mode, self.inquiry, self.mode_epoch = mode, None, queues.epoch
        self.publication.effects.append(ModeChanged(self.name, mode, queues.epoch))
        self.resume(queues, before)

    def resume(self, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Continue with these queues, and send them to every member and every fence."""
        self.balance.resume(queues, before)
        queues.to_notify.update(dict.fromkeys(self.members.members))
        self.publication.to_all = self.publication.is_changed = True

    def assign(self, now_ms: MonotonicMs) -> None:
        """Act upon the collected changes, if the coordinator assigns the queues."""
        self.note_changes()
        self.publication.effects += self.balance.flush(now_ms=now_ms)

    def note_changes(self) -> None:
        """Watch the topics that members subscribe to now; warn the members of a new problem."""
        self.topics.keep({topic for profile in self.members.profiles for topic in profile.subscriptions})
        before, self.warning = self.warning, self._tag_conflict()
        if self.warning != before:
            self.balance.queues.to_notify.update(dict.fromkeys(self.members.members))
        self.publication.is_changed = True

    def _tag_conflict(self) -> str:
        profiles = self.members.staying
        if len(profiles) < 2:  # One member has each topic once.
            return ""
        return tag_conflict((each.client_id, each.subscriptions) for each in profiles)

    def conclude(self, now_ms: MonotonicMs) -> None:
        """End the inquiry once all is known: holders keep their queues, and the rest is assigned."""
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
        queues, publication, state = self.balance.queues, self.publication, self.state
        if state in UNKNOWN:
            publication.postpone_record()
        elif queues.granted or publication.is_changed or publication.cannot_persist:
            publication.record(self._stored(), now_ms=now_ms)
        names = list(queues.to_notify)
        if not publication.cannot_persist:
            publication.grant(self.mode, queues, self.topics.queues)
            names = names[:ANSWERED_AT_ONCE]
            for name in names:
                del queues.to_notify[name]
            if queues.to_notify:
                self.timers.wake_by(MemberKey(self.name), now_ms)
        changed = [member for name in names if (member := self.members.members.get(name)) is not None]
        for member in changed:
            if member.poll is not None and self._is_to_answer(member, now_ms):
                self.answer(member, now_ms)
        if not publication.cannot_persist:
            settled = self.balance.settle() if self.inquiry is None else None
            if settled is not None:
                publication.effects.append(settled)
        for member in changed:
            self.timers.wake_by(MemberKey(self.name, member.id), member.due_ms)
        if publication.joins:
            is_soon_assigned = state is State.GATHERING or (
                state is State.ASSIGNING and not self.balance.awaits_topics
            )
            publication.answer_joins(
                self.assignment, ANSWERED_AT_ONCE, is_soon_assigned=is_soon_assigned, now_ms=now_ms
            )
        for due_ms in (self.balance.due_ms, publication.due_ms):
            self.timers.wake_by(MemberKey(self.name), due_ms)
        if self.inquiry is not None:
            self.timers.wake_by(MemberKey(self.name), self.inquiry.until_ms)
        if publication.acknowledged and state not in UNKNOWN:
            publication.acknowledge()
        return publication.take()

    def _is_to_answer(self, member: GroupMember[P, T], now_ms: MonotonicMs) -> bool:
        """Return whether a held poll has an assignment to carry, or was held for its full time."""
        assert member.poll is not None
        if now_ms >= member.poll.until_ms:
            return True
        return not self.publication.cannot_persist and member.is_news(
            self.assignment(member), self.mode_epoch, now_ms=now_ms
        )

    @property
    def is_settled(self) -> bool:
        """Return whether no rebalance, inquiry or change is under way."""
        return self.inquiry is None and self.balance.is_settled

    def grants(self, broker_name: str) -> FenceGrant | None:
        """Return the full state for a broker's fence; None while it is unknown."""
        if self.publication.cannot_persist or self.state in UNKNOWN:
            return None
        return complete_grant(self.name, self.mode, self.balance.queues, broker_name)

    def _stored(self) -> GroupState:
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
        return GroupState(
            epoch=queues.epoch, mode=self.mode, members=self.members.profiles, holdings=holdings
        )

    def view(self) -> GroupView:
        """Return a view of the group as it is now."""
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
