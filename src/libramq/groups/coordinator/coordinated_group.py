"""The coordinated group: its members, how they share queues, and what has to be said to whom.

a request or an event changes what is so    (join, poll, release, leave, expel, queues_changed …)
`publish` says what follows from it         (record, grants, answers to polls that waited, events)
"""

from collections.abc import Container, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Generic, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS, FenceGrant, FenceReport
from libramq.groups.coordinator import group_assignment
from libramq.groups.coordinator.effect import Answer, Effect, Gather, ModeChanged, Replaced, WatchTopic
from libramq.groups.coordinator.fence_grants import complete_grant
from libramq.groups.coordinator.group_assignment import Assignment
from libramq.groups.coordinator.group_balance import GroupBalance
from libramq.groups.coordinator.group_inquiry import (
    EPOCHS_LOST_MAX,
    GATHER_MS_MAX,
    PARTING_MS,
    RETURN_MS_MAX,
    GroupInquiry,
    InquiryKind,
)
from libramq.groups.coordinator.group_member import GroupMember, Told
from libramq.groups.coordinator.group_membership import GroupMembership
from libramq.groups.coordinator.group_publication import GroupPublication
from libramq.groups.coordinator.group_request import Held
from libramq.groups.coordinator.group_state import GroupState, MemberProfile, stored_holdings
from libramq.groups.coordinator.group_topics import GroupTopics
from libramq.groups.coordinator.member_connections import MemberKey
from libramq.groups.coordinator.queue_handover import Holding, QueueHandover
from libramq.groups.coordinator.shared_tables import SharedTables
from libramq.groups.rebalance_event import Reason
from libramq.groups.tag_conflict import tag_conflict
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")


class CoordinatedGroup(Generic[P, T]):
    """One group. Times are monotonic; sessions of restored members begin with `begin`."""

    def __init__(
        self, name: str, *, shared: SharedTables[P], state: GroupState | None = None, now_ms: MonotonicMs
    ) -> None:
        state = state or GroupState()
        self.name, self.mode = name, state.mode
        self.members: GroupMembership[P, T] = GroupMembership(name, shared.connections)
        for profile in state.members:
            self.members.restore(profile, now_ms=now_ms)
        self._topics = GroupTopics(name, shared.topics)
        self._topics.add([topic for each in state.members for topic in each.subscriptions], now_ms=now_ms)
        here = {queue: claim for queue, claim in state.claims.items() if claim.member in self.members}
        self.balance = GroupBalance(name, self.members, self._topics, QueueHandover(state.epoch, here))
        self._timers = shared.timers
        self._publication: GroupPublication[T] = GroupPublication(name, shared.record)
        self._mode_epoch = state.epoch if state.mode == MODE_CLIENT else 0
        self._inquiry: GroupInquiry | None = None
        self._warning = self._tag_conflict()

    # What others see.

    @property
    def queues(self) -> QueueHandover:
        """Who holds what, and whose it is meant to be."""
        return self.balance.queues

    @property
    def epoch(self) -> int:
        """The highest that is known of."""
        return max(self.queues.epoch, self._inquiry.epoch if self._inquiry is not None else 0)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return self._inquiry is None and self.balance.is_settled

    @property
    def is_mute(self) -> bool:
        """Whether there is something that could not be recorded, and so may not be said."""
        return self._publication.is_mute

    def assignment(self, member: GroupMember[P, T]) -> Assignment:
        """What a member may hold now, and what it is to give up."""
        if self.mode == MODE_CLIENT:
            found = group_assignment.assignment_of_nothing(self.queues.epoch)
        elif self._inquiry is not None:
            found = group_assignment.assignment_as_held(self.queues.epoch, member.held)
        else:
            found = group_assignment.assignment_by(self.queues, member.id, member.held)
        return replace(found, warning=self._warning) if self._warning else found

    def grants(self, broker_name: str) -> FenceGrant | None:
        """All that a broker's fence is to know; None while we do not know it ourselves."""
        if self.is_mute or not self._is_known:
            return None
        return complete_grant(self.name, self.mode, self.queues, broker_name)

    # What members ask.

    def join(
        self,
        profile: MemberProfile,
        wanted: str | None,
        held: Held,
        peer: P,
        *,
        if_free: bool = False,
        now_ms: MonotonicMs,
    ) -> GroupMember[P, T]:
        """A client joins, or a member comes back; see GroupMembership.admit for what it raises."""
        admission = self.members.admit(profile, wanted, peer, if_free=if_free, now_ms=now_ms)
        self._watch(profile.subscriptions, now_ms)
        if admission.replaced is not None:
            self._replace(admission.replaced, admission.member, now_ms)
        if admission.earlier not in (None, admission.member.profile):
            self._publication.is_changed = True  # Who has joined long ago would not join again to say it.
        reason = admission.reason
        if admission.member.id in self.members.leaving:
            self.members.leaving.discard(admission.member.id)
            reason = Reason.MEMBER_JOINED  # It has thought better of it.
        if reason is Reason.MEMBER_JOINED and self._inquiry is not None and held:
            reason = None  # It was here before.
        if reason is not None or admission.is_new_strategy or admission.is_new_expression:
            self.balance.touch(reason, profile.client_id, now_ms=now_ms)
        self._heard_of(admission.member, held, now_ms)
        return admission.member

    def welcome(self, ticket: T, member: GroupMember[P, T], *, now_ms: MonotonicMs) -> Answer[T]:
        """The answer to a join."""
        assignment = self.assignment(member)
        member.told = Told(assignment, now_ms, member.peer)
        return Answer(ticket, member=member.id, assignment=assignment)

    def poll(
        self, ticket: T, member: GroupMember[P, T], epoch: int, held: Held, peer: P, *, now_ms: MonotonicMs
    ) -> None:
        """A member polls; `publish` answers, now or later. epoch: of the assignment it goes by."""
        if member.poll is not None:
            self._answer(member, now_ms)
        self.members.heard(member, peer, now_ms=now_ms)
        member.hold(ticket, epoch, now_ms=now_ms)
        self._heard_of(member, held, now_ms, epoch)

    def release(
        self,
        member: GroupMember[P, T],
        queues: Held,
        peer: P,
        *,
        committed: Container[MessageQueue] = (),
        now_ms: MonotonicMs,
    ) -> None:
        """A member has given up queues; committed: those of which nothing comes again."""
        self.members.heard(member, peer, now_ms=now_ms)
        for queue in queues:
            member.held.pop(queue, None)
        self.queues.release(member.id, queues, committed, now_ms=now_ms)
        self.balance.hand_over(now_ms=now_ms)

    def remove(self, name: str, operator: str, *, now_ms: MonotonicMs) -> None:
        """An operator takes a member out; raises UnknownMember."""
        for member in self.members.named(name):
            who = f"{operator} removed {member.profile.client_id}"
            self.expel(member, Reason.OPERATOR, who, now_ms=now_ms)
        self._publication.is_changed = True  # A restart must not bring it back.

    def expel(
        self, member: GroupMember[P, T], reason: Reason, who: str | None = None, *, now_ms: MonotonicMs
    ) -> None:
        """It is no member any more; its queues are free at once. who: brought it about, if not itself."""
        is_known = reason is Reason.MEMBER_LEFT and member.id in self.members.leaving
        self.balance.touch(None if is_known else reason, who or member.profile.client_id, now_ms=now_ms)
        self.members.remove(member)
        self.queues.expel(member.id, now_ms=now_ms)
        remark = f"no member of {self.name} any more: {reason}"
        self._publication.refuse(member, ResponseCode.UNKNOWN_MEMBER, remark)
        if self._inquiry is not None:
            self._inquiry.left(member.id)
            self._conclude(now_ms)

    # What else happens.

    def begin(self, *, now_ms: MonotonicMs) -> None:
        """Restored members have a session to be heard of from now on, and topics a while to be told."""
        self._topics.begin(now_ms=now_ms)
        for member in self.members:
            member.heard(now_ms=now_ms)
            self._timers.wake_by(MemberKey(self.name, member.id), member.due_ms)

    def closed(self, member: GroupMember[P, T], *, now_ms: MonotonicMs) -> None:
        """The connection of a member ended."""
        self.members.closed(member, now_ms=now_ms)
        self.queues.stirred[member.id] = None

    def queues_removed(self, topic: str, broker_name: str, reason: Reason, *, now_ms: MonotonicMs) -> None:
        """A fence has taken a topic's queues from their holders; those that exist are granted anew."""
        self.balance.told(reason, topic, now_ms=now_ms)
        self.queues.vanish_at(topic, broker_name)
        self._publication.is_changed = True

    def stock_members(self, client_ids: Sequence[str], *, now_ms: MonotonicMs) -> None:
        """These members allocate for themselves; none: the coordinator may assign."""
        if client_ids and self.mode == MODE_EPOCHS:
            rebalance = self.balance.touch(Reason.MODE_CHANGED, client_ids[0], now_ms=now_ms)
            self._change_mode(MODE_CLIENT, QueueHandover.resumed(self.epoch + 1, {}))
            members = self.members.client_ids
            self._publication.effects += rebalance.take_started(self.name, self.queues.epoch, members)
        elif client_ids:
            self._inquiry = None
        elif self.mode == MODE_CLIENT and self._inquiry is None:
            self._inquiry = GroupInquiry(InquiryKind.PARTING, now_ms + PARTING_MS, self.queues.epoch)

    def _return(self, now_ms: MonotonicMs) -> None:
        """Ask the members what they have: the answer to each poll that waits has them poll again."""
        awaited = dict.fromkeys(member.id for member in self.members)
        self._inquiry = GroupInquiry(InquiryKind.RETURNING, now_ms + RETURN_MS_MAX, self.epoch, awaited)
        for member in self.members:
            if member.poll is not None:
                self._answer(member, now_ms)
        self._conclude(now_ms)

    def refused(self, granted: int, epoch: int, *, now_ms: MonotonicMs) -> None:
        """A fence has not taken what was granted under `granted`: it knows of openings up to that epoch."""
        if self._inquiry is not None:
            self._inquiry.epoch = max(self._inquiry.epoch, epoch)
        elif granted >= self.queues.first_epoch:  # Else we have asked since.
            self.gather(max(epoch, self.epoch), now_ms=now_ms)

    def gather(self, epoch: int, *, now_ms: MonotonicMs) -> None:
        """Somebody else had the group, up to that epoch at least: find out from the fences who holds what."""
        if self.mode == MODE_CLIENT:  # Nobody holds anything; it only has to be said under a higher epoch.
            self._resume(QueueHandover.resumed(epoch + 1, {}), {})
            self._mode_epoch = self.queues.epoch
            return
        self._topics.begin(now_ms=now_ms)
        self.balance.touch(None, "", now_ms=now_ms)
        self.balance.resume(QueueHandover(self.queues.epoch), {})
        self._inquiry = GroupInquiry(InquiryKind.GATHERING, now_ms + GATHER_MS_MAX, epoch)
        self._publication.effects.append(Gather(self.name))

    def gathered(self, answers: Sequence[FenceReport], *, now_ms: MonotonicMs) -> None:
        """What the fences know."""
        if self._inquiry is not None and self._inquiry.kind is InquiryKind.GATHERING:
            sessions = {member.id: member.profile.session_ms for member in self.members}
            unheard = [member.id for member in self.members if not member.was_heard]
            self._inquiry.gathered(answers, sessions, unheard, now_ms=now_ms)
            self._conclude(now_ms)

    def stood_still(self, stood_ms: int, *, now_ms: MonotonicMs) -> None:
        """Nobody listened to the members for so long."""
        for member in self.members:
            member.stood_still(stood_ms, now_ms=now_ms)
        self.queues.postpone(stood_ms)
        if self._inquiry is not None:
            self._inquiry.until_ms = self._inquiry.until_ms + stood_ms

    def due(self, *, now_ms: MonotonicMs) -> None:
        """Time has passed."""
        if self._inquiry is not None and now_ms >= self._inquiry.until_ms:
            if self._inquiry.kind is InquiryKind.GATHERING:
                log.warning("no answer from the fences, going on without", group=self.name)
                self.gathered([], now_ms=now_ms)
            elif self._inquiry.kind is InquiryKind.PARTING:
                self._return(now_ms)
            else:
                self._inquiry.awaited.clear()
                self._conclude(now_ms)
        if self.balance.is_flush_due(now_ms):
            self._flush(now_ms)
        self.balance.hand_over(now_ms=now_ms)

    def member_due(self, member: GroupMember[P, T], *, now_ms: MonotonicMs) -> None:
        """Time has passed for a member."""
        reason = member.ended(now_ms=now_ms)
        if reason is not None:
            self.expel(member, reason, now_ms=now_ms)
        elif member.poll is not None and now_ms >= member.poll.until_ms:
            self._answer(member, now_ms)
        self.queues.stirred[member.id] = None

    def dissolve(self, remark: str) -> list[Effect[T]]:
        """The group lives elsewhere: polls that wait are sent there."""
        for member in list(self.members):
            self._publication.refuse(member, ResponseCode.NOT_COORDINATOR, remark)
            self.members.remove(member)
        self._topics.keep(())
        return self._publication.take()

    # What follows.

    def publish(self, *, now_ms: MonotonicMs) -> list[Effect[T]]:
        """Record what has changed, and say it."""
        if self._is_known and (self.queues.granted or self._publication.is_changed):
            self._publication.record(self._state(), now_ms=now_ms)
        stirred = [member for name in self.queues.stirred if (member := self.members.get(name)) is not None]
        if not self.is_mute:
            self._publication.grant(self.mode, self.queues, self.balance.existing_queues)
            self.queues.stirred.clear()
            for member in stirred:
                if member.poll is not None and member.is_news(self.assignment(member), self._mode_epoch):
                    self._answer(member, now_ms)
            settled = self.balance.settle(now_ms=now_ms) if self._inquiry is None else None
            if settled is not None:
                self._publication.effects.append(settled)
        for member in stirred:
            self._timers.wake_by(MemberKey(self.name, member.id), member.due_ms)
        for due_ms in (self.balance.due_ms, self._publication.again_at_ms):
            self._timers.wake_by(MemberKey(self.name), due_ms)
        if self._inquiry is not None:
            self._timers.wake_by(MemberKey(self.name), self._inquiry.until_ms)
        return self._publication.take()

    @property
    def _is_known(self) -> bool:
        """Whether who holds what is ours to say."""
        return self._inquiry is None or self.mode == MODE_CLIENT

    def _state(self) -> GroupState:
        return GroupState(
            epoch=self.queues.epoch,
            mode=self.mode,
            members=self.members.profiles,
            holdings=stored_holdings(self.queues.claims()),
        )

    def _answer(self, member: GroupMember[P, T], now_ms: MonotonicMs) -> None:
        self._publication.answer(member, self.assignment(member), now_ms=now_ms)

    def _flush(self, now_ms: MonotonicMs) -> None:
        """Act upon the changes that were collected."""
        self._topics.keep({topic for profile in self.members.profiles for topic in profile.subscriptions})
        self._warn()
        self._publication.is_changed = True
        if self.mode == MODE_CLIENT:
            self.balance.forget_changes()
        elif self._inquiry is not None:
            self.balance.postpone()
        else:
            self._publication.effects += self.balance.flush(now_ms=now_ms)

    def _warn(self) -> None:
        """Have all members told when what is wrong with the group is another thing than before."""
        before, self._warning = self._warning, self._tag_conflict()
        if self._warning != before:
            self.queues.stirred.update(dict.fromkeys(member.id for member in self.members))

    def _tag_conflict(self) -> str:
        return tag_conflict((each.client_id, each.subscriptions) for each in self.members.staying)

    def _watch(self, topics: Iterable[str], now_ms: MonotonicMs) -> None:
        self._publication.effects += map(WatchTopic, self._topics.add(topics, now_ms=now_ms))

    def _replace(self, former: GroupMember[P, T], member: GroupMember[P, T], now_ms: MonotonicMs) -> None:
        """A static member has begun a new life."""
        self.balance.rename(former.id, member.id, now_ms=now_ms)
        self._publication.is_changed = True
        remark = self.members.fenced(former.profile.instance or "").remark
        self._publication.refuse(former, ResponseCode.FENCED, remark)
        if former.profile.client_id != member.profile.client_id:
            replaced = Replaced(self.name, former.profile.client_id, member.profile.client_id)
            self._publication.effects.append(replaced)

    def _heard_of(self, member: GroupMember[P, T], held: Held, now_ms: MonotonicMs, epoch: int = 0) -> None:
        """What a member says it holds is the truth: revoked queues that it does not list are free.

        epoch: of the assignment it goes by. One above ours the disk has lost.
        """
        member.held = held
        self.queues.stirred[member.id] = None
        highest = max(epoch, max(held.values(), default=0))
        if self.epoch < highest <= self.epoch + EPOCHS_LOST_MAX:
            log.warning("a member knows a later epoch", group=self.name, epoch=highest, ours=self.epoch)
            self.refused(self.epoch, highest, now_ms=now_ms)
        elif highest > self.epoch:
            log.warning(
                "a member names an epoch that cannot be", group=self.name, epoch=highest, ours=self.epoch
            )
        if self._inquiry is not None:
            self._inquiry.awaited.pop(member.id, None)
            self._conclude(now_ms)
            return
        self.queues.release_unlisted(member.id, held, now_ms=now_ms)
        self.balance.hand_over(now_ms=now_ms)

    def _conclude(self, now_ms: MonotonicMs) -> None:
        """End the inquiry if all is known: who holds what goes on so, and the rest is assigned."""
        inquiry = self._inquiry
        if inquiry is None or not inquiry.is_over:
            return
        inquiry.epoch = self.epoch
        self._inquiry = None
        holdings = inquiry.holdings({member.id: member.held for member in self.members})
        queues = QueueHandover.resumed(inquiry.epoch + 1, holdings)
        rebalance = self.balance.touch(None, "", now_ms=now_ms)
        if inquiry.kind is InquiryKind.RETURNING:
            self._change_mode(MODE_EPOCHS, queues, holdings)
            rebalance.add(Reason.MODE_CHANGED, self.name)
        else:
            self._resume(queues, inquiry.openings | holdings)
            if inquiry.epoch:
                rebalance.add(Reason.BROKER_CHANGED, self.name)
        self._flush(now_ms)

    def _change_mode(
        self, mode: str, queues: QueueHandover, before: Mapping[MessageQueue, Holding] | None = None
    ) -> None:
        self.mode = mode
        self._inquiry = None
        self._mode_epoch = queues.epoch
        self._publication.effects.append(ModeChanged(self.name, mode, queues.epoch))
        self._resume(queues, before or {})

    def _resume(self, queues: QueueHandover, before: Mapping[MessageQueue, Holding]) -> None:
        """Go on with these queues, of which everybody is told."""
        self.balance.resume(queues, before)
        self.queues.stirred.update(dict.fromkeys(member.id for member in self.members))
        self._publication.says_all = self._publication.is_changed = True
