"""The coordinated group: its members, how they share queues, and what has to be said to whom.

    a request or an event changes what is so    (join, poll, release, leave, expel, queues_changed …)
    `publish` says what follows from it         (record, grants, answers to polls that waited, events)

A change of members or queues is acted upon COLLECT_MS later, with all others that came meanwhile. Nothing is
said that has not been recorded: while the disk refuses, members are held and grants wait.
"""

from collections.abc import Hashable, Iterable, Sequence
from typing import Final, Generic, TypeVar

from libramq.balance import Strategy
from libramq.codes import ResponseCode
from libramq.groups.coordinated_rebalance import CoordinatedRebalance
from libramq.groups.coordinator_effect import Answer, Effect, Gather, Grant, ModeChanged, WatchTopic
from libramq.groups.group_inquiry import GATHER_MS_MAX, RETURN_MS_MAX, GroupInquiry, InquiryKind
from libramq.groups.group_member import GroupMember, Told
from libramq.groups.group_membership import GroupMembership
from libramq.groups.group_state import GroupState, MemberProfile
from libramq.groups.member_connections import MemberKey
from libramq.groups.queue_handover import QueueHandover
from libramq.groups.rebalance_event import Reason
from libramq.groups.shared_tables import SharedTables
from libramq.groups.target_assignment import (
    BALANCED_STICKY,
    find_strategy,
    strategy_wanted,
    target_assignment,
)
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import (
    MODE_CLIENT,
    MODE_EPOCHS,
    GroupAssignment,
    PeerGathered,
    PeerGrantBody,
    QueueGrant,
)

log = get_logger(__name__)

P = TypeVar("P", bound=Hashable)
T = TypeVar("T")

#: The design's: changes come in swarms.
COLLECT_MS: Final = 20
#: Ours: a topic that nobody has told of by then is left as it is held.
TOPIC_WAIT_MS_MAX: Final = 1_000
#: Ours: how soon a record that the disk refused is tried again.
RECORD_AGAIN_MS: Final = 1_000
#: Ours: a larger group's state is not written for every single queue that is given up.
GRANTED_SINGLY_MAX: Final = 500


class CoordinatedGroup(Generic[P, T]):
    """One group. Times are monotonic; restored members count as heard of at `now_ms`."""

    def __init__(
        self,
        name: str,
        *,
        shared: SharedTables[P],
        state: GroupState | None = None,
        now_ms: int = 0,
    ) -> None:
        state = state or GroupState()
        self.name = name
        self.mode = state.mode
        self.strategy: str | None = None
        self.members: GroupMembership[P, T] = GroupMembership(name, shared.connections)
        for profile in state.members:
            self.members.restore(profile, now_ms=now_ms)
        here = [grant for grant in state.holdings if grant.member in self.members]
        self.queues = QueueHandover(state.epoch, here)
        if state.members:
            self.strategy = strategy_wanted(state.members)
        self._topics = shared.topics
        self._timers = shared.timers
        self._record = shared.record
        self._mode_epoch = state.epoch if state.mode == MODE_CLIENT else 0
        self._subscribed: set[str] = set()
        self._inquiry: GroupInquiry | None = None
        self._rebalance: CoordinatedRebalance | None = None
        self._flush_at_ms: int | None = None
        self._grant_at_ms: int | None = None
        self._record_at_ms: int | None = None
        self._recorded_at_ms = now_ms - COLLECT_MS
        self._has_changed = False
        self._says_all = True
        self._effects: list[Effect[T]] = []
        self._watch(topic for profile in state.members for topic in profile.subscriptions)

    # What others see.

    @property
    def is_settled(self) -> bool:
        """Whether nothing is under way."""
        return self._flush_at_ms is None and self._inquiry is None and self.queues.is_complete

    @property
    def is_mute(self) -> bool:
        """Whether there is something that could not be recorded, and so may not be said."""
        return self._record_at_ms is not None

    @property
    def due_ms(self) -> int | None:
        """When the group is to be looked at, if nothing happens before; members have times of their own."""
        times = (
            self._flush_at_ms,
            self._grant_at_ms,
            self._record_at_ms,
            self._inquiry.until_ms if self._inquiry is not None else None,
            self.queues.overdue_at_ms,
        )
        return min((time for time in times if time is not None), default=None)

    def assignment(self, member: GroupMember[P, T]) -> GroupAssignment:
        """What a member may hold now, and what it is to give up."""
        epoch = self.queues.epoch
        if self.mode == MODE_CLIENT:
            return GroupAssignment(epoch=epoch, mode=MODE_CLIENT)
        if self._inquiry is not None:
            held = [QueueGrant.of(queue, epoch) for queue, epoch in sorted(member.held.items())]
            return GroupAssignment(epoch=epoch, queues=held)
        owned = self.queues.of(member.id)
        keep = {queue: holding.epoch for queue, holding in owned.items() if queue not in self.queues.revoked}
        drop = {queue: epoch for queue, epoch in member.held.items() if queue not in keep}
        drop |= {queue: holding.epoch for queue, holding in owned.items() if queue not in keep}
        return GroupAssignment(
            epoch=epoch,
            queues=[QueueGrant.of(queue, epoch) for queue, epoch in sorted(keep.items())],
            revoke=[QueueGrant.of(queue, epoch) for queue, epoch in sorted(drop.items())],
        )

    def grants(self, broker_name: str) -> PeerGrantBody | None:
        """All that a broker's fence is to know; None while we do not know it ourselves."""
        if self.is_mute or (self._inquiry is not None and self.mode == MODE_EPOCHS):
            return None
        return PeerGrantBody(
            group=self.name,
            epoch=self.queues.epoch,
            mode=self.mode,
            grants=[
                QueueGrant.of(queue, holding.epoch, holding.member)
                for queue, holding in self.queues.holdings.items()
                if queue.broker_name == broker_name
            ],
            complete=True,
        )

    def existing_queues(self) -> list[MessageQueue]:
        """The queues of all topics subscribed to; of a topic that nobody has told of, those that are held."""
        queues: list[MessageQueue] = []
        for topic in sorted(self._subscribed):
            told = self._topics.queues(topic)
            queues += sorted(q for q in self.queues.holdings if q.topic == topic) if told is None else told
        return queues

    # What members ask.

    def welcome(self, ticket: T, member: GroupMember[P, T], *, now_ms: int) -> Answer[T]:
        """The answer to a join."""
        assignment = self.assignment(member)
        member.told = Told(assignment, now_ms, member.peer)
        return Answer(ticket, member=member.id, assignment=assignment)

    def join(
        self,
        profile: MemberProfile,
        wanted: str | None,
        held: dict[MessageQueue, int],
        peer: P,
        *,
        now_ms: int,
    ) -> GroupMember[P, T]:
        """A client joins, or a member comes back; see GroupMembership.admit for what it raises."""
        admission = self.members.admit(profile, wanted, peer, now_ms=now_ms)
        member, earlier, replaced = admission
        self._watch(profile.subscriptions)
        if replaced is not None:
            self._replace(replaced, member, now_ms)
            earlier = replaced.profile
        if earlier is None:
            is_awaited = self._inquiry is not None and bool(held)
            self._touch(None if is_awaited else Reason.MEMBER_JOINED, profile.client_id, now_ms=now_ms)
        elif earlier.strategy != profile.strategy:
            self._touch(None, "", now_ms=now_ms)
        if earlier is not None and (
            earlier.subscriptions.keys() != profile.subscriptions.keys()
            or earlier.capacity != profile.capacity
        ):
            self._touch(Reason.SUBSCRIPTION_CHANGED, profile.client_id, now_ms=now_ms)
        self._heard_of(member, held, now_ms)
        return member

    def poll(
        self,
        ticket: T,
        member: GroupMember[P, T],
        epoch: int,
        held: dict[MessageQueue, int],
        peer: P,
        *,
        duplicates: int = 0,
        now_ms: int,
    ) -> None:
        """A member polls; `publish` answers, now or later."""
        if member.poll is not None:
            self._answer(member, now_ms)
        self.members.heard(member, peer, now_ms=now_ms)
        member.hold(ticket, epoch, now_ms=now_ms)
        self.queues.stirred[member.id] = None
        if self._rebalance is not None:
            self._rebalance.duplicates += max(0, duplicates)
        self._heard_of(member, held, now_ms)

    def release(
        self, member: GroupMember[P, T], queues: dict[MessageQueue, int], peer: P, *, now_ms: int
    ) -> None:
        """A member has given up queues."""
        self.members.heard(member, peer, now_ms=now_ms)
        for queue in queues:
            member.held.pop(queue, None)
        self.queues.release(member.id, queues, now_ms=now_ms)
        self._grant_free(now_ms)

    def expel(self, member: GroupMember[P, T], reason: Reason, *, now_ms: int) -> None:
        """It is no member any more; its queues are free at once."""
        self._touch(reason, member.profile.client_id, now_ms=now_ms)
        self.members.remove(member)
        self.queues.expel(member.id, now_ms=now_ms)
        if member.poll is not None:
            remark = f"no member of group {self.name} any more: {reason}"
            self._effects.append(Answer(member.poll.ticket, ResponseCode.UNKNOWN_MEMBER, remark))
        if self._inquiry is not None:
            self._inquiry.awaited.pop(member.id, None)
            self._conclude(now_ms)

    # What else happens.

    def begin(self, *, now_ms: int) -> None:
        """Restored members have a session to be heard of from now on."""
        for member in self.members:
            member.heard(now_ms=now_ms)
            self._timers.wake_by(MemberKey(self.name, member.id), member.due_ms)

    def closed(self, member: GroupMember[P, T], *, now_ms: int) -> None:
        """The connection of a member ended."""
        self.members.closed(member, now_ms=now_ms)
        self.queues.stirred[member.id] = None

    def queues_changed(self, reason: Reason | None, topic: str, *, now_ms: int) -> None:
        """A topic has other queues than before; None: nobody had told of it."""
        self._touch(reason, topic, now_ms=now_ms)
        self._flush_at_ms = now_ms + COLLECT_MS

    def stock_members(self, client_ids: Sequence[str], *, now_ms: int) -> None:
        """These members allocate for themselves; none: the coordinator may assign."""
        if client_ids and self.mode == MODE_EPOCHS:
            seen = self._inquiry.epoch if self._inquiry is not None else 0
            rebalance = self._touch(Reason.MODE_CHANGED, client_ids[0], now_ms=now_ms)
            self._change_mode(MODE_CLIENT, QueueHandover.resumed(max(seen, self.queues.epoch) + 1, {}))
            self._effects += rebalance.take_started(self.name, self.queues.epoch, self.members.client_ids)
        elif client_ids:
            self._inquiry = None
        elif self.mode == MODE_CLIENT and self._inquiry is None:
            awaited = dict.fromkeys(member.id for member in self.members)
            self._inquiry = GroupInquiry(
                InquiryKind.RETURNING, now_ms + RETURN_MS_MAX, self.queues.epoch, awaited
            )
            for member in self.members:  # Their next polls say what they have by now.
                if member.poll is not None:
                    self._answer(member, now_ms)
            self._conclude(now_ms)

    def gather(self, epoch: int, *, now_ms: int) -> None:
        """Somebody else had the group, up to that epoch at least: find out from the fences who holds what."""
        if self.mode == MODE_CLIENT:  # Nobody holds anything; it only has to be said under a higher epoch.
            self._resume(QueueHandover.resumed(epoch + 1, {}))
            return
        self._touch(None, "", now_ms=now_ms)
        self.queues = QueueHandover(self.queues.epoch)
        self._inquiry = GroupInquiry(InquiryKind.GATHERING, now_ms + GATHER_MS_MAX, epoch)
        self._effects.append(Gather(self.name))

    def gathered(self, answers: Sequence[PeerGathered], *, now_ms: int) -> None:
        """What the fences know."""
        if self._inquiry is not None and self._inquiry.kind is InquiryKind.GATHERING:
            self._inquiry.gathered(answers, [member.id for member in self.members], now_ms=now_ms)
            self._conclude(now_ms)

    def due(self, *, now_ms: int) -> None:
        """Time has passed."""
        if self._inquiry is not None and now_ms >= self._inquiry.until_ms:
            if self._inquiry.kind is InquiryKind.GATHERING:
                log.warning("no answer from the fences, going on without", group=self.name)
                self.gathered([], now_ms=now_ms)
            else:
                self._inquiry.awaited.clear()
                self._conclude(now_ms)
        if self._flush_at_ms is not None and now_ms >= self._flush_at_ms:
            self._flush(now_ms)
        overdue = self.queues.take_overdue(now_ms=now_ms)
        for queue, holding in overdue:
            log.warning(
                "queue taken from a member that does not give it up",
                group=self.name, queue=str(queue), member=holding.member,
            )  # fmt: skip
        if overdue or (self._grant_at_ms is not None and now_ms >= self._grant_at_ms):
            self._grant_free(now_ms)

    def member_due(self, member: GroupMember[P, T], *, now_ms: int) -> None:
        """Time has passed for a member."""
        reason = member.ended(now_ms=now_ms)
        if reason is not None:
            self.expel(member, reason, now_ms=now_ms)
        elif member.poll is not None and now_ms >= member.poll.until_ms:
            if self.is_mute:
                member.poll.until_ms = now_ms + RECORD_AGAIN_MS
            else:
                self._answer(member, now_ms)
        self.queues.stirred[member.id] = None

    def dissolve(self, remark: str) -> list[Effect[T]]:
        """The group lives elsewhere: polls that wait are sent there."""
        effects = self._effects
        for member in list(self.members):
            if member.poll is not None:
                effects.append(Answer(member.poll.ticket, ResponseCode.NOT_COORDINATOR, remark))
            self.members.remove(member)
        self._topics.unwatch(self.name, self._subscribed)
        return effects

    # What follows.

    def publish(self, *, now_ms: int) -> list[Effect[T]]:
        """Record what has changed, and say it."""
        if (self.queues.granted or self._has_changed) and now_ms >= (self._record_at_ms or now_ms):
            self._save(now_ms)
        stirred = [member for name in self.queues.stirred if (member := self.members.get(name)) is not None]
        if not self.is_mute:
            self._effects += self._take_grants()
            self.queues.stirred.clear()
            for member in stirred:
                if member.poll is not None and member.is_news(self.assignment(member), self._mode_epoch):
                    self._answer(member, now_ms)
            self._settle(now_ms)
        for member in stirred:
            self._timers.wake_by(MemberKey(self.name, member.id), member.due_ms)
        self._timers.wake_by(MemberKey(self.name), self.due_ms)
        effects, self._effects = self._effects, []
        return effects

    def _save(self, now_ms: int) -> None:
        state = GroupState(
            epoch=self.queues.epoch,
            mode=self.mode,
            members=self.members.profiles,
            holdings=[
                QueueGrant.of(queue, holding.epoch, holding.member)
                for queue, holding in self.queues.holdings.items()
            ],
        )
        try:
            self._record(self.name, state)
        except OSError as error:
            log.error("group state cannot be written, nothing is granted", group=self.name, reason=str(error))
            self._record_at_ms = now_ms + RECORD_AGAIN_MS
            return
        self._record_at_ms, self._recorded_at_ms, self._has_changed = None, now_ms, False

    def _take_grants(self) -> list[Grant]:
        granted, self.queues.granted = self.queues.granted, {}
        if self._says_all and (granted or self.mode == MODE_CLIENT):
            brokers = {queue.broker_name for queue in (*self.existing_queues(), *granted)}
            self._says_all = not brokers
            whole = [(name, self.grants(name)) for name in sorted(brokers)]
            return [Grant(name, body) for name, body in whole if body is not None]
        by_broker: dict[str, list[QueueGrant]] = {}
        for queue in granted:
            holding = self.queues.holdings.get(queue)
            if holding is not None:
                grant = QueueGrant.of(queue, holding.epoch, holding.member)
                by_broker.setdefault(queue.broker_name, []).append(grant)
        return [
            Grant(
                name, PeerGrantBody(group=self.name, epoch=self.queues.epoch, mode=self.mode, grants=grants)
            )
            for name, grants in by_broker.items()
        ]

    def _answer(self, member: GroupMember[P, T], now_ms: int) -> None:
        """Answer the poll that waits."""
        assert member.poll is not None
        assignment = self.assignment(member)
        member.told = Told(assignment, now_ms, member.peer)
        self._effects.append(Answer(member.poll.ticket, assignment=assignment))
        member.poll = None

    def _settle(self, now_ms: int) -> None:
        if self._rebalance is not None and self._rebalance.is_started and self.is_settled:
            self._rebalance.know({profile.member: profile.client_id for profile in self.members.profiles})
            self._effects.append(
                self._rebalance.settled(
                    self.name, self.members.profiles, self.existing_queues(), self.queues, now_ms=now_ms
                )
            )
            self._rebalance = None

    def _touch(self, reason: Reason | None, who: str, *, now_ms: int) -> CoordinatedRebalance:
        """Something changed that may ask for another target; it is looked at soon."""
        if self._rebalance is None:
            before = {queue: holding.member for queue, holding in self.queues.holdings.items()}
            self._rebalance = CoordinatedRebalance(now_ms, before)
            self._rebalance.know({profile.member: profile.client_id for profile in self.members.profiles})
        if reason is not None:
            self._rebalance.add(reason, who)
        if self._flush_at_ms is None:
            self._flush_at_ms = now_ms + COLLECT_MS
        return self._rebalance

    def _flush(self, now_ms: int) -> None:
        """Act upon all changes since the last time."""
        self._flush_at_ms = None
        self._has_changed = True
        subscribed = {topic for profile in self.members.profiles for topic in profile.subscriptions}
        self._topics.unwatch(self.name, self._subscribed - subscribed)
        self._subscribed &= subscribed
        if self.mode == MODE_CLIENT:  # What becomes of it is for those to see whom members pull from.
            self._rebalance = None
        if self._inquiry is not None or self._rebalance is None:
            return
        wait_until_ms = self._rebalance.started_at_ms + TOPIC_WAIT_MS_MAX
        if now_ms < wait_until_ms and any(self._topics.queues(topic) is None for topic in subscribed):
            self._flush_at_ms = wait_until_ms
            return
        queues = self.existing_queues()
        self.queues.vanish(self.queues.holdings.keys() - set(queues))
        target = target_assignment(
            self.name, self._choose_strategy(), self.members.profiles, queues, self.queues.owned
        )
        if self.queues.retarget(target, now_ms=now_ms) and not self._rebalance.causes:
            self._rebalance.add(Reason.QUEUE_COUNT_CHANGED, self.name)
        self._effects += self._rebalance.take_started(self.name, self.queues.epoch, self.members.client_ids)
        if not self._rebalance.is_started:
            self._rebalance = None

    def _choose_strategy(self) -> Strategy:
        name = strategy_wanted(self.members.profiles)
        strategy = find_strategy(name)
        if name != self.strategy:
            if strategy is None:
                log.warning("strategy not known, balanced_sticky instead", group=self.name, strategy=name)
            if self.strategy is not None and self._rebalance is not None:
                self._rebalance.add(Reason.STRATEGY_CHANGED, name)
            self.strategy = name
        return strategy or BALANCED_STICKY

    def _grant_free(self, now_ms: int) -> None:
        """Grant what is free, in a large group not more often than COLLECT_MS."""
        soonest_ms = self._recorded_at_ms + COLLECT_MS
        if len(self.queues.holdings) > GRANTED_SINGLY_MAX and now_ms < soonest_ms:
            self._grant_at_ms = soonest_ms
            return
        self._grant_at_ms = None
        self.queues.grant_free(now_ms=now_ms)

    def _watch(self, topics: Iterable[str]) -> None:
        new = [topic for topic in topics if topic not in self._subscribed]
        self._subscribed.update(new)
        self._effects += [WatchTopic(topic) for topic in self._topics.watch(self.name, new)]

    def _replace(self, former: GroupMember[P, T], member: GroupMember[P, T], now_ms: int) -> None:
        """A static member has begun a new life."""
        self.queues.rename(former.id, member.id, now_ms=now_ms)
        self._has_changed = True
        if self._rebalance is not None:
            self._rebalance.rename(former.id, member.id)
        if former.poll is not None:
            refusal = self.members.fenced(former.profile.instance or "")
            self._effects.append(Answer(former.poll.ticket, ResponseCode.FENCED, refusal.remark))

    def _heard_of(self, member: GroupMember[P, T], held: dict[MessageQueue, int], now_ms: int) -> None:
        """What a member says it holds is the truth: revoked queues that it does not list are free."""
        member.held = held
        self.queues.stirred[member.id] = None
        if self._inquiry is not None:
            self._inquiry.awaited.pop(member.id, None)
            self._conclude(now_ms)
            return
        gone = {
            queue: holding.epoch
            for queue, holding in self.queues.of(member.id).items()
            if queue in self.queues.revoked and queue not in held
        }
        if self.queues.release(member.id, gone, now_ms=now_ms):
            self._grant_free(now_ms)

    def _conclude(self, now_ms: int) -> None:
        """End the inquiry if all is known: who holds what goes on so, and the rest is assigned."""
        inquiry = self._inquiry
        if inquiry is None or not inquiry.is_over:
            return
        self._inquiry = None
        holdings = inquiry.holdings({member.id: member.held for member in self.members})
        queues = QueueHandover.resumed(max(inquiry.epoch, self.queues.epoch) + 1, holdings)
        rebalance = self._touch(None, "", now_ms=now_ms)
        if not rebalance.before:
            known = inquiry.openings | holdings
            rebalance.before = {queue: holding.member for queue, holding in known.items()}
        if inquiry.kind is InquiryKind.RETURNING:
            self._change_mode(MODE_EPOCHS, queues)
            rebalance.add(Reason.MODE_CHANGED, self.name)
        else:
            self._resume(queues)
            if inquiry.epoch:
                rebalance.add(Reason.BROKER_CHANGED, self.name)
        self._flush(now_ms)

    def _change_mode(self, mode: str, queues: QueueHandover) -> None:
        self.mode = mode
        self._inquiry = None
        self._mode_epoch = queues.epoch
        self._effects.append(ModeChanged(self.name, mode, queues.epoch))
        self._resume(queues)

    def _resume(self, queues: QueueHandover) -> None:
        """Go on with these, which everybody is told."""
        self.queues = queues
        self.queues.stirred.update(dict.fromkeys(member.id for member in self.members))
        self._says_all = self._has_changed = True
