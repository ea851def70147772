"""The actions of a coordinated group, which carry out its events (joins, polls, releases, ...); `transitions`
selects the action.

Each action takes a group, an event and the time, and changes the group; the effects on others are published
afterwards. An action that raises BrokerError has changed nothing, and the request is refused.
"""

from typing import Any

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.fencing import MODE_CLIENT
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.balance import COLLECT_MS, JOINS_MS_MAX
from libramq.groups.coordinator.coordinated_group import CoordinatedGroup, WaitingJoin
from libramq.groups.coordinator.effect import Answer, Gather, Replaced
from libramq.groups.coordinator.inquiry import (
    EPOCHS_LOST_MAX,
    GATHER_MS_MAX,
    PARTING_MS,
    RETURN_MS_MAX,
)
from libramq.groups.coordinator.member import GroupMember
from libramq.groups.coordinator.membership import Admission
from libramq.groups.coordinator.queue_handover import QueueHandover
from libramq.groups.coordinator.request import Held, allocates_itself
from libramq.groups.coordinator.shared_tables import MemberKey
from libramq.groups.coordinator.state import State
from libramq.groups.rebalance_event import Reason
from libramq.logs import get_logger

log = get_logger(__name__)

Group = CoordinatedGroup[Any, Any]
Member = GroupMember[Any, Any]


def ignore(group: Group, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Do nothing."""


def begin(group: Group, event: ev.Begun, now_ms: MonotonicMs) -> None:
    """Start the sessions of restored members, and the time in which brokers report the topics' queues."""
    group.topics.begin(now_ms=now_ms)
    for member in group.members:
        member.seen(now_ms=now_ms)
        group.timers.wake_by(MemberKey(group.name, member.id), member.due_ms)


# Requests of members.


def join(group: Group, event: ev.Joined, now_ms: MonotonicMs) -> None:
    """Admit a client; raises the errors of GroupMembership.admit."""
    admission = _admit(group, event, now_ms)
    if admission.earlier is None and not event.join.member and not event.join.held:
        return  # A new client holds no queues.
    if not _claims_later_epoch(group, admission.member, event.join.held, 0, now_ms):
        _hand_over_unlisted(group, admission.member, now_ms)


def join_first(group: Group, event: ev.Joined, now_ms: MonotonicMs) -> None:
    """Admit a group's first member, and assign it the queues at once if no other is known to follow.

    A client that joins with queues was a member before, so other members may be about to return.
    """
    join(group, event, now_ms)
    if event.join.waits and event.is_alone and not event.join.held:
        group.assign(now_ms)


def join_inquiry(group: Group, event: ev.Joined, now_ms: MonotonicMs) -> None:
    """Admit a client during an inquiry; if it holds queues it was a member before and causes no rebalance."""
    member = _admit(group, event, now_ms, is_known=bool(event.join.held)).member
    _claims_later_epoch(group, member, event.join.held, 0, now_ms)
    _awaited_reported(group, member, now_ms)


def _admit(
    group: Group, event: ev.Joined, now_ms: MonotonicMs, *, is_known: bool = False
) -> Admission[Any, Any]:
    """Admit a client, and note whether that may move queues.

    is_known: the client was a member before, so its join is no reason for a rebalance.
    """
    admission = group.members.admit(
        event.profile, event.join.member, event.peer, if_free=event.join.if_free, now_ms=now_ms
    )
    member, earlier = admission.member, admission.earlier
    profile = member.profile
    group.topics.add(profile.subscriptions, now_ms=now_ms)
    if admission.replaced is not None:  # A static member has restarted.
        group.balance.rename(admission.replaced.id, member.id)
        group.is_changed = True
        instance = admission.replaced.profile.instance or ""
        remark = group.members.fenced(instance).remark
        group.refuse(admission.replaced, ResponseCode.FENCED, remark)
        former = admission.replaced.profile.client_id
        group.effects.append(Replaced(group.name, former, profile.client_id, instance))
    reason, is_changed = None, False
    if earlier is None:
        reason = Reason.MEMBER_JOINED
    else:
        if earlier != profile:
            group.is_changed = True  # A long-standing member will not join again to repeat it.
        topics, topics_before = profile.subscriptions.keys(), earlier.subscriptions.keys()
        if topics != topics_before or earlier.capacity != profile.capacity:
            reason = Reason.SUBSCRIPTION_CHANGED
        is_changed = earlier.strategy != profile.strategy or earlier.subscriptions != profile.subscriptions
    if member.id in group.members.leaving:
        group.members.leaving.discard(member.id)
        reason = Reason.MEMBER_JOINED  # It was leaving but stays after all.
    if is_known and reason is Reason.MEMBER_JOINED:
        reason = None
    if reason is not None or is_changed:
        group.balance.touch(reason, profile.client_id, now_ms=now_ms)
    # A member may use its queues while its session lasts, so answer a member that holds some soon.
    wait_ms = 0 if not event.join.waits else COLLECT_MS if event.join.held else JOINS_MS_MAX
    group.joins.append(WaitingJoin(event.ticket, member, now_ms + wait_ms))
    return admission


def poll(group: Group, event: ev.Polled, now_ms: MonotonicMs) -> None:
    """Hold a poll; it is answered with the next publication, or later."""
    _hold_poll(group, event, now_ms)
    if not _claims_later_epoch(group, event.member, event.poll.held, event.poll.epoch, now_ms):
        _hand_over_unlisted(group, event.member, now_ms)


def poll_inquiry(group: Group, event: ev.Polled, now_ms: MonotonicMs) -> None:
    """Hold a poll, and note the queues that its member reports."""
    _hold_poll(group, event, now_ms)
    _claims_later_epoch(group, event.member, event.poll.held, event.poll.epoch, now_ms)
    _awaited_reported(group, event.member, now_ms)


def _hold_poll(group: Group, event: ev.Polled, now_ms: MonotonicMs) -> None:
    member, poll = event.member, event.poll
    group.balance.add_duplicates(poll.duplicates)
    _note_pace(group, member, is_leaving=poll.is_leaving, is_slow=poll.is_slow, now_ms=now_ms)
    if member.poll is not None:
        group.answer(member, now_ms)
    group.members.seen(member, event.peer, now_ms=now_ms)
    member.hold(event.ticket, poll.epoch, poll.hold_ms, now_ms=now_ms)


def release(group: Group, event: ev.Released, now_ms: MonotonicMs) -> None:
    """Free the queues that a member released; ignore those that are not its own."""
    member, sent = event.member, event.release
    group.effects.append(Answer(event.ticket))
    _note_pace(group, member, is_leaving=sent.is_leaving, is_slow=sent.is_slow, now_ms=now_ms)
    group.members.seen(member, event.peer, now_ms=now_ms)
    group.members.released(member, sent.queues)
    group.balance.queues.release(member.id, sent.queues, sent.committed, sent.attempts)
    group.balance.hand_over(now_ms=now_ms)


def _note_pace(group: Group, member: Member, *, is_leaving: bool, is_slow: bool, now_ms: MonotonicMs) -> None:
    if is_leaving:
        group.balance.depart(member.profile, now_ms=now_ms)
    if is_slow != (member.id in group.members.slow):
        reason = Reason.PROCESSING_TIMEOUT if is_slow else Reason.MEMBER_JOINED
        group.balance.touch(reason, member.profile.client_id, now_ms=now_ms)
        group.members.slow ^= {member.id}


def leave(group: Group, event: ev.Left, now_ms: MonotonicMs) -> None:
    """Remove a member that leaves; its queues are free at once."""
    group.effects.append(Answer(event.ticket))
    committed = event.leave.committed
    group.balance.queues.release(event.member.id, committed, committed, event.leave.attempts)
    is_timeout = event.leave.reason == Reason.PROCESSING_TIMEOUT
    reason = Reason.PROCESSING_TIMEOUT if is_timeout else Reason.MEMBER_LEFT
    if not is_timeout:  # Otherwise it rejoins, perhaps at another coordinator.
        group.members.note_left(event.member.id)
    _expel(group, event.member, reason, event.member.profile.client_id, now_ms)


def end_session(group: Group, event: ev.SessionEnded, now_ms: MonotonicMs) -> None:
    """Remove a member whose session has expired."""
    _expel(group, event.member, event.reason, event.member.profile.client_id, now_ms)


def remove(group: Group, event: ev.Removed, now_ms: MonotonicMs) -> None:
    """Remove a member at an operator's request; raises UnknownMember."""
    for member in group.members.named(event.name):
        who = f"{event.operator} removed {member.profile.client_id}"
        _expel(group, member, Reason.OPERATOR, who, now_ms)
    group.is_changed = True  # A restart must not restore the member.
    group.acknowledged.append(event.ticket)


def refuse_removal(group: Group, event: ev.Removed, now_ms: MonotonicMs) -> None:
    """Refuse a removal: while members allocate queues themselves, the coordinator cannot remove one."""
    raise allocates_itself(group.name, group.stock.get(group.name, ()))


def _expel(group: Group, member: Member, reason: Reason, who: str, now_ms: MonotonicMs) -> None:
    """Remove a member from the group. who: the client that caused it."""
    is_known = reason is Reason.MEMBER_LEFT and member.id in group.members.leaving
    group.balance.touch(None if is_known else reason, who, now_ms=now_ms)
    group.members.remove(member)
    group.balance.queues.expel(member.id)
    remark = f"no member of {group.name} any more: {reason}"
    group.refuse(member, ResponseCode.UNKNOWN_MEMBER, remark)
    if group.inquiry is not None:
        group.inquiry.left(member.id)
        group.conclude(now_ms)


# Reports of members.


def _claims_later_epoch(group: Group, member: Member, held: Held, epoch: int, now_ms: MonotonicMs) -> bool:
    """Record the queues that a member reports, and return whether the fences must be queried first.

    epoch: that of the member's assignment. An epoch above the group's means that the disk lost the last ones.
    """
    group.members.holds(member, held)
    group.balance.queues.to_notify[member.id] = None
    highest = max(epoch, max(held.values(), default=0))
    ours = group.epoch
    if highest <= ours:
        return False
    if highest > ours + EPOCHS_LOST_MAX:
        log.warning("a member reports an implausible epoch", group=group.name, epoch=highest, ours=ours)
        return False
    log.info("a member reports a later epoch", group=group.name, epoch=highest, ours=ours)
    if group.inquiry is not None:
        group.inquiry.epoch = highest
        return False
    _gather_above(group, highest, now_ms)
    return True


def _hand_over_unlisted(group: Group, member: Member, now_ms: MonotonicMs) -> None:
    """Free the revoked queues that a member no longer lists."""
    if not group.balance.queues.is_complete:
        group.balance.queues.release_unlisted(member.id, member.held)
        group.balance.hand_over(now_ms=now_ms)


def _awaited_reported(group: Group, member: Member, now_ms: MonotonicMs) -> None:
    """Stop waiting for a member that has reported its queues."""
    assert group.inquiry is not None
    group.inquiry.awaited.pop(member.id, None)
    group.conclude(now_ms)


# Silent members.


def close(group: Group, event: ev.ConnectionClosed, now_ms: MonotonicMs) -> None:
    """Begin the grace period in which a member may reconnect."""
    group.members.closed(event.member, now_ms=now_ms)
    group.balance.queues.to_notify[event.member.id] = None


# Topics.


def change_queues(group: Group, event: ev.QueuesChanged, now_ms: MonotonicMs) -> None:
    """Schedule a new target assignment."""
    group.balance.touch(event.reason, event.topic, now_ms=now_ms)


def remove_queues(group: Group, event: ev.QueuesRemoved, now_ms: MonotonicMs) -> None:
    """Take removed queues from their holders; recreated queues are granted again."""
    group.balance.touch(event.reason, event.topic, now_ms=now_ms)
    group.balance.queues.vanish_at(event.topic, event.broker_name)
    group.is_changed = True


# Stock members.


def hand_to_members(group: Group, event: ev.StockMembersJoined, now_ms: MonotonicMs) -> None:
    """Hand the assignment over to the members themselves."""
    rebalance = group.balance.touch(Reason.MODE_CHANGED, event.client_ids[0], now_ms=now_ms)
    group.change_mode(MODE_CLIENT, QueueHandover.resumed(group.epoch + 1, {}), {})
    members = group.members.client_ids
    epoch = group.balance.queues.epoch
    group.effects += rebalance.take_started(group.name, epoch, members)


def leave_to_members(group: Group, event: ev.StockMembersJoined, now_ms: MonotonicMs) -> None:
    """Leave the assignment to the members, and end an inquiry that was under way."""
    group.inquiry = None


def await_last_commits(group: Group, event: ev.StockMembersLeft, now_ms: MonotonicMs) -> None:
    """Wait for the last commits of the departed stock member."""
    group.begin_inquiry(State.PARTING, now_ms + PARTING_MS, group.balance.queues.epoch)


def ask_members(group: Group, event: ev.InquiryTimedOut, now_ms: MonotonicMs) -> None:
    """Query the members' queues: answer each held poll, because the next poll reports them."""
    group.begin_inquiry(State.RETURNING, now_ms + RETURN_MS_MAX, group.epoch)
    assert group.inquiry is not None
    group.inquiry.awaited = dict.fromkeys(group.members.members)
    for member in group.members:
        if member.poll is not None:
            group.answer(member, now_ms)
    group.conclude(now_ms)


# Fences.


def gather(group: Group, event: ev.FencesInDoubt, now_ms: MonotonicMs) -> None:
    """Query the fences for the holders of queues."""
    _gather_above(group, group.epoch, now_ms)


def gather_refused(group: Group, event: ev.GrantRefused, now_ms: MonotonicMs) -> None:
    """Query the fences, unless they were queried after the refused grant."""
    if event.granted >= group.balance.queues.first_epoch:
        _gather_above(group, max(event.epoch, group.epoch), now_ms)


def raise_epoch(group: Group, event: ev.GrantRefused, now_ms: MonotonicMs) -> None:
    """Note an epoch that the group's next epoch must exceed."""
    assert group.inquiry is not None
    group.inquiry.epoch = max(group.inquiry.epoch, event.epoch)


def _gather_above(group: Group, epoch: int, now_ms: MonotonicMs) -> None:
    """Query the fences because another coordinator had the group, at least up to `epoch`."""
    if group.mode == MODE_CLIENT:  # No queue is held; publish the mode under a higher epoch.
        group.resume(QueueHandover.resumed(epoch + 1, {}), {})
        group.mode_epoch = group.balance.queues.epoch
        return
    group.topics.begin(now_ms=now_ms)
    group.balance.touch(None, "", now_ms=now_ms)
    group.balance.resume(QueueHandover(group.balance.queues.epoch), {})
    group.begin_inquiry(State.GATHERING, now_ms + GATHER_MS_MAX, epoch)
    group.effects.append(Gather(group.name))


def take_reports(group: Group, event: ev.FencesReported, now_ms: MonotonicMs) -> None:
    """Take the fences' reports, and wait for named members that have not returned."""
    assert group.inquiry is not None
    sessions = {member.id: member.profile.session_ms for member in group.members}
    unseen = [member.id for member in group.members if not member.was_seen]
    group.inquiry.gathered(event.reports, sessions, unseen, now_ms=now_ms)
    group.conclude(now_ms)


def continue_without(group: Group, event: ev.InquiryTimedOut, now_ms: MonotonicMs) -> None:
    """Continue without the fences that have not answered."""
    log.warning("the fences did not answer in time; continuing without them", group=group.name)
    take_reports(group, ev.FencesReported(()), now_ms)


def stop_waiting(group: Group, event: ev.InquiryTimedOut, now_ms: MonotonicMs) -> None:
    """Stop waiting for absent members."""
    assert group.inquiry is not None
    group.inquiry.awaited.clear()
    group.conclude(now_ms)


# Time.


def assign(group: Group, event: ev.ChangesCollected, now_ms: MonotonicMs) -> None:
    """Compute the target assignment and start moving queues towards it."""
    group.assign(now_ms)


def take_assignment(group: Group, event: ev.Assigned, now_ms: MonotonicMs) -> None:
    """Start moving queues towards the assignment that a thread has computed, unless it is obsolete."""
    if group.balance.awaits(event.work):
        group.effects += group.balance.assigned(event.made, now_ms=now_ms)
        group.is_changed = True


def postpone(group: Group, event: ev.ChangesCollected, now_ms: MonotonicMs) -> None:
    """Keep the collected changes until the holders are known."""
    group.note_changes()
    group.balance.flush_at_ms = None


def forget_changes(group: Group, event: ev.ChangesCollected, now_ms: MonotonicMs) -> None:
    """Drop the collected changes: the members deal with them."""
    group.note_changes()
    group.balance.forget_changes()


def hand_over(group: Group, event: ev.HandoverDue, now_ms: MonotonicMs) -> None:
    """Take overdue queues from their holders, and grant free ones."""
    group.balance.hand_over(now_ms=now_ms)


def extend_deadlines(group: Group, event: ev.Stalled, now_ms: MonotonicMs) -> None:
    """Extend all deadlines by the time that the process was stalled."""
    for member in group.members:
        member.stalled(event.stall_ms, now_ms=now_ms)
    group.balance.queues.postpone(event.stall_ms)
    if group.inquiry is not None:
        group.inquiry.until_ms = group.inquiry.until_ms + event.stall_ms


def dissolve(group: Group, event: ev.Dissolved, now_ms: MonotonicMs) -> None:
    """Redirect held polls to the group's new coordinator, and drop the members."""
    for member in list(group.members):
        group.refuse(member, ResponseCode.NOT_COORDINATOR, event.address)
        group.members.remove(member)
    # Refuse unrecorded removals.
    refused = [Answer(each, ResponseCode.NOT_COORDINATOR, event.address) for each in group.acknowledged]
    group.effects += refused
    group.acknowledged.clear()
    group.topics.keep(())
    group.is_dead = True
