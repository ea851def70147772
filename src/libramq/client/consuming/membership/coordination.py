"""The coordination of a member: whether the coordinator or the member allocates queues, which queues it
reports as held, when the end of the lease stops handlers, and when a slow handler costs the member its
queues.

        mode      who allocates      queues                                   handlers and commits
        none      we do              as with Apache's brokers                 while the queue is ours
        epochs    the coordinator    opened; released when drained            also only while the lease holds
        client    we do, since the   as with Apache's brokers; our queues     while the queue is ours
                  group has a        stay
                  stock member

The protocol is LibraMQ's own; its contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS
from libramq.client.consuming.life import Troubles
from libramq.client.consuming.membership.membership import CoordinatorAnswer, CoordinatorRequest, Membership
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.claims import Claims
from libramq.client.consuming.ownership.locks import Locks
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.pulling.pulling import Duplicates
from libramq.client.consuming.queues.owned_queue import FOREVER, Delivery, QueueState
from libramq.clock import MonotonicMs
from libramq.errors import (
    HandlerTooSlow,
    LibraError,
    MemberReplaced,
    RequestCodeNotSupported,
    RequestTimeout,
    SubscriptionsDiffer,
    VersionNotSupported,
)
from libramq.fencing import MODE_CLIENT, MODE_EPOCHS, Claim
from libramq.kernel.deadlines import Deadline
from libramq.logs import get_logger
from libramq.remoting.body.coordination import GroupAssignment, QueueGrant
from libramq.rpc.group_calls import Joined, leave_group, release_queues
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: how often changed offsets are committed under epochs. LibraMQ's brokers journal all commits of a read
#: in one write, so frequent commits are cheap, and little is redelivered when a member is killed.
COMMIT_MS: Final = 100
#: Ours: how long a released queue waits for the last commits of others, to be reported together.
RELEASE_LINGER_MS: Final = 5
#: Ours: a lost release is requested again by the response to the next poll.
RELEASE_TIMEOUT_MS: Final = 3_000
#: Ours: how often to check for slow handlers within max_processing_ms.
CHECKS: Final = 10
#: Ours: the longest time between two checks.
CHECK_MS_MAX: Final = 5_000


class MemberCoordination:
    """A member's part in coordination.

    For handlers that run longer than allowed (max_processing_ms):

        overdue ─► the coordinator hears of it ─┬► others get our queues: the message is sent back from them
                                                └► there are no others: a success counts, however late

    Kafka's client leaves its group for the same reason (max.poll.interval.ms).
    """

    def __init__(
        self,
        membership: Membership,
        rebalancing: Rebalancing,
        duplicates: Duplicates,
        own: Ownership,
        locks: Locks,
        claims: Claims,
        troubles: Troubles,
        commits_due: Deadline,
    ) -> None:
        self._settings = own.settings
        self._membership = membership
        membership.answers = self
        self._known_brokers = own.known_brokers
        self._rebalancing = rebalancing
        self._table = own.table
        self._lease = own.table.lease
        self._duplicates = duplicates
        self._own = own
        self._locks = locks
        self._claims = claims
        self._troubles = troubles
        self._mode = ""
        self._is_offered = False
        self._commits_due = commits_due
        self._lease_due = own.kernel.deadlines.new(self._check_lease)
        # `send_requests` is called after every event.
        self._release_due = own.kernel.deadlines.new(lambda _: None)
        self._release_due_ms: MonotonicMs | None = None
        self._is_leaving = self._is_leave_sent = False
        self._overdue: set[Delivery] = set()
        self._overdue_check = own.kernel.deadlines.new(self._check_handlers)
        #: Whether the last release reported a slow handler; each poll repeats it.
        self._is_slow_sent = False
        self._released = own.released
        #: Abandons handlers whose queues are about to be granted to others.
        self.overrun: Callable[[Sequence[Delivery], MonotonicMs], None] = lambda *_: None
        #: Called when the coordinator has answered our leave request, or cannot be reached.
        self.on_left: Callable[[MonotonicMs], None] = lambda _: None

    @property
    def allocates(self) -> bool:
        """Return whether we allocate queues for ourselves."""
        return self._mode == MODE_CLIENT or not self._is_offered

    @property
    def persist_ms(self) -> int:
        """Return how often to commit."""
        return (
            min(self._settings.persist_ms, COMMIT_MS)
            if self._mode == MODE_EPOCHS
            else self._settings.persist_ms
        )

    # Membership.

    def look(self, now_ms: MonotonicMs) -> None:
        """Join the group's coordinator if all brokers offer coordination, else leave it."""
        if not self._settings.is_member or not self._known_brokers.alive:
            return
        was_offered, self._is_offered = self._is_offered, self._known_brokers.all_offer
        if not self._is_offered:
            if was_offered:
                self._withdraw(now_ms)
        elif not self._overdue:
            self._membership.begin()
            if not was_offered:
                self._watch_handlers(now_ms)
        self._known_brokers.allocating_changed()

    def _withdraw(self, now_ms: MonotonicMs) -> None:
        log.info(
            "a broker offers no coordination; the members allocate queues themselves",
            group=self._settings.group,
        )
        had_claims, self._mode = self._mode == MODE_EPOCHS, ""
        self._leave("member_left")
        begin = self._allocate_ourselves if had_claims else self._rebalancing.begin
        begin(now_ms)

    # Requests.

    def send_requests(self, now_ms: MonotonicMs) -> None:
        """Send the requests to the coordinator that may be sent now."""
        slow, leaving = self._is_slow, self._is_leaving
        if self._released or (leaving and not self._is_leave_sent) or slow != self._is_slow_sent:
            self._release(now_ms)
        self._membership.request(self._held, self._duplicates.count, now_ms, leaving=leaving, slow=slow)

    @property
    def _is_slow(self) -> bool:
        """Return whether other members should get our queues while a handler runs."""
        return bool(self._overdue) and self._mode == MODE_EPOCHS

    def rearm(self, now_ms: MonotonicMs) -> None:
        """Set the timers again after all were cleared."""
        self._membership.rearm(now_ms)
        self._release_due.at(self._release_due_ms)

    def begin_leaving(self) -> None:
        """Begin to stop: each queue is released once it is drained. A static member keeps its queues."""
        if self._mode == MODE_EPOCHS and self._settings.instance_id is None:
            self._is_leaving = True
            for owned in self._table.each():
                owned.is_revoked_by_coordinator = True

    def leave(self) -> bool:
        """Leave once no queue is left; return whether the coordinator's answer is awaited.

        The queues of a static member are kept for its session.
        """
        committed = tuple(each.grant for each in self._released if each.is_committed)
        self._released.clear()
        if self._settings.instance_id is not None:
            self._membership.end()
            return False
        return self._leave("member_left", committed)

    def _leave(self, reason: str, queues: tuple[QueueGrant, ...] = ()) -> bool:
        known = self._membership.end()
        self._lease.until_ms = FOREVER
        if known is None:
            return False
        coordinator, member = known
        call = leave_group(self._settings.group, member, reason, queues)
        self._own.kernel.ask(coordinator, call, self._left, LEAVE_TIMEOUT_MS)
        return True

    def _left(self, outcome: LibraError | None, now_ms: MonotonicMs) -> None:
        if outcome is not None:  # Our session will expire.
            log.warning("the coordinator could not be notified of our leaving", reason=str(outcome))
        self.on_left(now_ms)

    def _held(self) -> list[QueueGrant]:
        found = []
        for owned in self._table.each():
            granted = owned.claim.granted
            if granted is not None:
                found.append(QueueGrant.of(owned.queue, granted.epoch))
            elif owned.state not in (QueueState.LOCKING, QueueState.WAITING):
                found.append(QueueGrant.of(owned.queue, 0))
        # Released queues count until the coordinator has been notified.
        return found + [each.grant for each in self._released]

    def _release(self, now_ms: MonotonicMs) -> None:
        """Report the released queues, once those whose last commit is in flight have followed."""
        if not self._membership.member:
            self._released.clear()
            self._is_slow_sent = self._is_slow  # The first poll reports it.
            return
        if self._release_due_ms is None:
            self._release_due_ms = now_ms + RELEASE_LINGER_MS
            self._release_due.at(self._release_due_ms)
        follow = (QueueState.REVOKING, QueueState.LEAVING) if self._is_leaving else (QueueState.LEAVING,)
        others_follow = any(owned.state in follow for owned in self._table.each())
        if others_follow and now_ms < self._release_due_ms:
            return
        self._release_due_ms = None
        queues = tuple(each.grant for each in self._released)
        uncommitted = tuple(each.grant for each in self._released if not each.is_committed)
        self._released.clear()
        self._is_leave_sent = self._is_leaving
        self._is_slow_sent = self._is_slow
        call = release_queues(
            self._settings.group,
            self._membership.member,
            queues,
            uncommitted=uncommitted,
            leaving=self._is_leaving,
            slow=self._is_slow,
        )
        done = partial(self._release_answered, len(queues))
        self._own.kernel.ask(self._membership.coordinator, call, done, RELEASE_TIMEOUT_MS)

    def _release_answered(self, count: int, outcome: LibraError | None, _: MonotonicMs) -> None:
        if outcome is not None:
            log_failed_request(log, "queues not released", outcome, queues=count)

    # Responses of the coordinator.

    def found(self, request: CoordinatorRequest, outcome: str | LibraError, now_ms: MonotonicMs) -> None:
        """Handle a broker's answer about the location of the coordinator."""
        if isinstance(outcome, RequestCodeNotSupported | VersionNotSupported):
            log.warning(
                "the broker has no coordinator for this group; the members allocate queues themselves",
                reason=str(outcome),
            )
            self._known_brokers.offering.discard(request.address)
            self.look(now_ms)
        else:
            self._membership.found(request, outcome, now_ms)

    def joined(self, request: CoordinatorRequest, outcome: Joined | LibraError, now_ms: MonotonicMs) -> None:
        """Handle the coordinator's answer to a join."""
        answer = self._membership.joined(request, outcome, now_ms)
        self._note(outcome)
        self._handle_answer(answer, now_ms)

    def polled(
        self, request: CoordinatorRequest, outcome: GroupAssignment | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the coordinator's answer to a poll."""
        if isinstance(outcome, GroupAssignment) and self._membership.is_late(request, now_ms):
            self._polled_late(request, outcome, now_ms)
            return
        answer = self._membership.polled(request, outcome, now_ms)
        self._note(outcome)
        if answer is not None and answer.assignment is not None:
            self._duplicates.count -= request.duplicates
        self._handle_answer(answer, now_ms)

    def _polled_late(
        self, request: CoordinatorRequest, assignment: GroupAssignment, now_ms: MonotonicMs
    ) -> None:
        """Renew the lease by an answer that came after its timeout; the next answer assigns queues."""
        until_ms = request.requested_ms + self._settings.session_ms
        is_ours = self._mode == assignment.mode == MODE_EPOCHS
        if not is_ours or until_ms <= max(now_ms, self._lease.until_ms):
            return
        held = now_ms < self._lease.until_ms
        self._renew(request.requested_ms, now_ms)
        if not held:
            self._go_on(now_ms)

    def _note(self, outcome: object) -> None:
        """Report when the coordinator refuses us, and when it accepts us again."""
        if not self._troubles.present and not isinstance(outcome, LibraError):
            return
        self._troubles.answered("coordinator", outcome, keeps_out=True)
        if self._membership.is_replaced:
            error = MemberReplaced(
                f"another client has joined group {self._settings.group} as instance_id "
                f"{self._settings.instance_id}; this consumer gets no messages until that one is gone, "
                "and then continues (give each member its own instance_id)"
            )
            self._troubles.begin("name", error, keeps_out=True)
        elif not isinstance(outcome, LibraError):
            self._troubles.over("name")

    def _handle_answer(self, answer: CoordinatorAnswer | None, now_ms: MonotonicMs) -> None:
        if answer is None:
            return
        held = now_ms < self._lease.until_ms
        assignment = answer.assignment
        if assignment is None:
            if not (held and self._membership.is_on):  # Otherwise we rejoin with the queues that we hold.
                self._own.handle_each(ev.TakenByOther(), now_ms)
            return
        if assignment.warning:
            self._troubles.begin("subscriptions", SubscriptionsDiffer(assignment.warning))
        elif self._troubles.over("subscriptions"):
            log.info("all members have the same subscription again", group=self._settings.group)
        if assignment.mode == MODE_CLIENT:
            self._lease.until_ms = FOREVER
            if self._mode != MODE_CLIENT:
                self._mode = MODE_CLIENT
                self._allocate_ourselves(now_ms)
        else:
            self._renew(answer.requested_ms, now_ms)
            self._apply(assignment, now_ms)
        if not held:
            self._go_on(now_ms)

    def _renew(self, requested_ms: MonotonicMs, now_ms: MonotonicMs) -> None:
        self._lease.until_ms = requested_ms + self._settings.session_ms
        if self._lease_due.due_ms is None:
            self._lease_due.at(self._lease.until_ms)
        # An answer that waited in a socket while the process was suspended renews nothing.
        if now_ms < self._lease.until_ms and self._troubles.over("lease"):
            self._known_brokers.lease_changed(ended=False)

    def _go_on(self, now_ms: MonotonicMs) -> None:
        """Continue the work that waited for our lease."""
        self._own.handle_each(ev.Continued(), now_ms)
        self._own.let_commit(now_ms)

    def _check_lease(self, now_ms: MonotonicMs) -> None:
        """Report that our lease has ended: nothing is handled until the coordinator answers."""
        is_explained = any(self._troubles.present.values()) or not self._membership.is_on
        if self._lease.until_ms == FOREVER or self._mode != MODE_EPOCHS or self._own.closing or is_explained:
            return
        if now_ms < self._lease.until_ms:
            self._lease_due.at(self._lease.until_ms)
            return
        coordinator, session_ms = self._membership.coordinator, self._settings.session_ms
        error = RequestTimeout(
            f"this member of group {self._settings.group} handles no messages: its lease has ended, because "
            f"the coordinator at {coordinator} has not renewed it for session_ms={session_ms}"
        )
        self._troubles.begin("lease", error)
        self._known_brokers.lease_changed(ended=True)

    def _apply(self, assignment: GroupAssignment, now_ms: MonotonicMs) -> None:
        """Release queues that are no longer ours, and open those that are ours now."""
        if self._own.closing:
            return
        if self._mode != MODE_EPOCHS:
            self._mode = MODE_EPOCHS
            self._commits_due.by(now_ms + self.persist_ms)
            if self._own.uses_locks:
                self._locks.lift(now_ms)
        member = self._membership.member
        claims = {grant.queue: Claim(member, grant.epoch) for grant in assignment.queues}
        for owned in self._table.each():
            owned.is_revoked_by_coordinator = owned.queue not in claims
            if owned.is_revoked_by_coordinator:
                self._own.handle(owned, ev.Unassigned(self._settings.revoke_timeout_ms), now_ms)
        self._look_for_overdue(now_ms)
        opened = dict(each.value() for each in assignment.opened)
        for queue, claim in claims.items():
            if claim.epoch:  # Epoch 0 only repeats our own report, until the coordinator knows more.
                self._claims.granted(queue, claim, opened.get(queue), now_ms)

    def _allocate_ourselves(self, now_ms: MonotonicMs) -> None:
        """Switch from epochs to our own allocation: our queues stay until a round decides otherwise.

        This includes queues that were waiting to be opened again.
        """
        self._released.clear()
        self._locks.resume()
        self._own.handle_each(ev.ClaimsDropped(), now_ms)
        self._own.handle_each(ev.Continued(), now_ms)
        self._rebalancing.begin(now_ms)

    # Handlers that run too long.

    def _watch_handlers(self, now_ms: MonotonicMs) -> None:
        self._overdue_check.at(now_ms + min(self._settings.max_processing_ms // CHECKS, CHECK_MS_MAX))

    def _check_handlers(self, now_ms: MonotonicMs) -> None:
        """Let others have our queues while a handler exceeds its time; we get some back afterwards."""
        self._watch_handlers(now_ms)
        if self._mode != MODE_EPOCHS or self._own.closing or not self._membership.is_on:
            return
        self._look_for_overdue(now_ms)
        if self._overdue and not self._membership.coordinator_knows_slow:
            self._own.handle_each(ev.TakenByOther(), now_ms)
            self._leave("processing_timeout")

    def _look_for_overdue(self, now_ms: MonotonicMs) -> None:
        """Find overdue handlers; those whose queues are about to be granted to others are abandoned."""
        was_slow, max_ms = bool(self._overdue), self._settings.max_processing_ms
        late = [
            delivery
            for owned in self._table.each()
            for delivery in owned.work.deliveries
            if delivery.is_under_way and now_ms - delivery.began_ms > max_ms
        ]
        self._overdue.update(late)
        if self._overdue and not was_slow:
            limit = f"max_processing_ms={max_ms}"
            group = self._settings.group
            program = "Consumer" if self._settings.fetches else "PushConsumer"
            log.warning(
                "a handler has passed its limit; other members, if there are any, get the queues of this one",
                group=group,
                limit=limit,
                configured=f"{program}(max_processing_ms=…)",
            )
            error = HandlerTooSlow(
                f"a handler runs longer than {limit}; other members of group {group} get the queues of this "
                f"one until it is done, and its messages with an attempt counted"
            )
            self._troubles.begin("handler", error)
        revoked = [
            delivery
            for delivery in late
            if delivery.owned.is_revoked_by_coordinator and delivery.owned.state is QueueState.DRAINING
        ]
        if revoked and not self._settings.fetches:
            self.overrun(revoked, now_ms)

    def ended(self, deliveries: Iterable[Delivery], now_ms: MonotonicMs) -> None:
        """Note that handlers have returned."""
        if not self._overdue:
            return
        self._overdue.difference_update(deliveries)
        if not self._overdue:
            self._troubles.over("handler")
            self.look(now_ms)
