"""The parts of a coordinated group, which all of its actions share.

members        who is a member, when it was last heard from, which queues it reports
balance        the queues: their holders, their targets, the rebalance that is under way
topics         the topics that members subscribe to
inquiry        what has to be found out before any queue is granted
publication    what has to be recorded, granted and answered
"""

from collections.abc import Hashable, Mapping
from dataclasses import replace
from typing import Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS
from libramq.groups.coordinator.effect import ModeChanged
from libramq.groups.coordinator.group.balance import GroupBalance
from libramq.groups.coordinator.group.inquiry import GroupInquiry
from libramq.groups.coordinator.group.member import GroupMember
from libramq.groups.coordinator.group.membership import GroupMembership
from libramq.groups.coordinator.group.publication import GroupPublication
from libramq.groups.coordinator.group.queue_handover import Assignment, QueueHandover, assignment_by
from libramq.groups.coordinator.group.saved_state import GroupState
from libramq.groups.coordinator.group.topics import GroupTopics
from libramq.groups.coordinator.shared_tables import SharedTables
from libramq.groups.coordinator.state import SELF_ALLOCATED, UNKNOWN, State
from libramq.groups.handover_ledger import Holding
from libramq.groups.rebalance_event import Reason
from libramq.groups.tag_conflict import tag_conflict
from libramq.message.queue import MessageQueue

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")


class GroupCore(Generic[P, T]):
    """The parts of one group. Times are monotonic; sessions of restored members begin with `Begun`.

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
        self.inquiry = GroupInquiry(state, until_ms, epoch)

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
            self.resume(queues, inquiry.openings | holdings)
            if inquiry.epoch:
                rebalance.add(Reason.BROKER_CHANGED, self.name)
        self.assign(now_ms)
