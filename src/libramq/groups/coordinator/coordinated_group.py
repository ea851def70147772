"""The coordinated group: a state machine whose table is in `transitions`.

handle    apply an event: the table has the action, and the states that may follow
publish   return what follows for others: records, grants, answers to held polls, events
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Final, TypeVar

from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.fencing import FenceGrant
from libramq.groups.coordinator import event as ev
from libramq.groups.coordinator.effect import Effect
from libramq.groups.coordinator.group.core import GroupCore
from libramq.groups.coordinator.group.member import GroupMember
from libramq.groups.coordinator.group.publication import complete_grant
from libramq.groups.coordinator.group.saved_state import GroupState, StoredHolding
from libramq.groups.coordinator.shared_tables import MemberKey
from libramq.groups.coordinator.state import UNKNOWN, State
from libramq.groups.coordinator.transitions import TABLE
from libramq.groups.handover_ledger import Holding
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)

#: Ours: members that are answered before others are served, each in up to 0.2 ms, with the queues that are
#: opened for it.
ANSWERED_AT_ONCE: Final = 32

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


class CoordinatedGroup(GroupCore[P, T]):
    """A coordinated group: handles its events and publishes their effects."""

    def handle(self, event: ev.Event, *, now_ms: MonotonicMs) -> None:
        """Run the action that the table has for an event in the group's state; raises BrokerError if refused.

        A combination that the table lacks is a bug of ours. It is logged, the event is refused (or the
        unexpected state kept), and the broker continues.
        """
        before = self.state
        cell = TABLE[type(event)].get(before)
        if cell is None:
            name = type(event).__name__
            log.error("impossible event in this state", group=self.name, happened=name, state=before.name)
            raise broker_error(
                ResponseCode.SYSTEM_ERROR,
                f"{name} cannot happen while group {self.name} is {before.name}: an error of the broker,"
                " please report it with its log",
            )
        cell.action(self, event, now_ms)
        after = self.state
        if after not in cell.then:
            log.error(
                "impossible transition",
                group=self.name, happened=type(event).__name__, before=before.name, after=after.name,
            )  # fmt: skip

    def look(self, *, now_ms: MonotonicMs) -> None:
        """Handle the group's timers that are due."""
        if self.inquiry is not None and now_ms >= self.inquiry.until_ms:
            self.handle(ev.InquiryTimedOut(), now_ms=now_ms)
        if self.balance.flush_at_ms is not None and now_ms >= self.balance.flush_at_ms:
            self.handle(ev.ChangesCollected(), now_ms=now_ms)
        if not self.balance.queues.is_complete:
            self.handle(ev.HandoverDue(), now_ms=now_ms)

    def look_at(self, member: GroupMember[P, T], *, now_ms: MonotonicMs) -> None:
        """Handle the end of a member's session; a poll held for its full time is answered by `publish`."""
        reason = member.ended(now_ms=now_ms)
        if reason is not None:
            self.handle(ev.SessionEnded(member, reason), now_ms=now_ms)
        elif member.due_ms > now_ms:  # It has moved; a publication would come to it later if there are many.
            self.timers.wake_by(MemberKey(self.name, member.id), member.due_ms)
        self.balance.queues.to_notify[member.id] = None

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
