"""The membership: a member's requests to its coordinator (find, join, poll, release, leave): which is next,
how long it waits, and the consequence of each refusal.

    OFF ─► FIND ─► JOIN ─► POLL ⟲
                        ▲       ▲        ├► another broker is the coordinator: continue there
                        │       └────────┼► it does not know us any more: join again
                        ├────────────────┴► no answer: ask the next broker, after a pause
                        │       ▲────────┴► another client has our instance id: retry until it is free

One request is in flight at a time; `number` identifies answers to earlier ones, which are ignored. The
exception: while a silent coordinator is retried, other brokers are asked for the coordinator, as a frozen one
never resigns.

The protocol is LibraMQ's own; its contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from typing import Final, NamedTuple, Protocol

from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.clock import MonotonicMs
from libramq.errors import (
    ConnectionLost,
    Fenced,
    LibraError,
    NotCoordinator,
    RequestTimeout,
    UnknownMember,
    VersionNotSupported,
)
from libramq.filter.subscription import Selector, kind_of, named_expression
from libramq.logs import get_logger
from libramq.remoting.body.coordination import GroupAssignment, GroupJoinBody, GroupPollBody, QueueGrant
from libramq.remoting.headers import GroupJoinHeader
from libramq.rpc.group_calls import Joined, find_group, join_group, poll_group
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: the first delay after no answer, or a useless one; it doubles each time.
ASK_AGAIN_MS: Final = 50
#: Ours: the longest such delay.
ASK_AGAIN_MS_MAX: Final = 1_000
#: Ours: how often other brokers are asked for the coordinator while a silent one is retried.
LOOK_MS: Final = 1_000
#: Ours: the pause after a poll that was answered sooner than this, without news.
POLL_AGAIN_MS: Final = 100
#: Ours: the shortest timeout of a request, for short sessions. Timeouts grow with the round trip.
ANSWER_MS_MIN: Final = 500
#: Ours: heartbeats come three times a session, so that one may be lost.
POLLS_PER_SESSION: Final = 3
#: Ours: how often a fenced instance checks whether its name is free; the session of the other is at least as
#: long.
NAME_AGAIN_MS: Final = 5_000


class Step(Enum):
    """The next request of a member. OFF: none; membership is not wanted."""

    OFF = "off"
    FIND = "find"
    JOIN = "join"
    POLL = "poll"


class CoordinatorAnswer(NamedTuple):
    """The meaning of a coordinator's answer. assignment: None if we are no longer its member."""

    requested_ms: MonotonicMs
    assignment: GroupAssignment | None


class CoordinatorRequest(NamedTuple):
    """A request in flight.

    requested_ms: the time from which its answer renews our lease. hold_ms: how long the coordinator may hold
    it. duplicates: how many duplicates it reports.
    """

    address: str
    number: int
    requested_ms: MonotonicMs
    member: str = ""
    hold_ms: int = 0
    duplicates: int = 0


class Answers(Protocol):
    """The receiver of the answers."""

    def found(self, request: CoordinatorRequest, outcome: str | LibraError, now_ms: MonotonicMs) -> None:
        """Handle a broker's answer about the location of the coordinator."""
        ...

    def joined(self, request: CoordinatorRequest, outcome: Joined | LibraError, now_ms: MonotonicMs) -> None:
        """Handle the coordinator's answer to a join."""
        ...

    def polled(
        self, request: CoordinatorRequest, outcome: GroupAssignment | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the coordinator's answer to a poll."""
        ...


class Membership:
    """Our membership in a group, and the next request. brokers: those to query for the coordinator."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        kernel: ConsumerKernel,
        brokers: Callable[[], Sequence[str]],
    ) -> None:
        self._settings = settings
        self._kernel = kernel
        self._subscriptions = {
            topic: named_expression(each.expression, kind_of(each)) for topic, each in subscriptions.items()
        }
        # `request` is called after every event.
        self._timer = kernel.deadlines.new(lambda _: None)
        self._look_timer = kernel.deadlines.new(lambda _: None)
        self._brokers = brokers
        self._step = Step.OFF
        self._is_asking = False
        self._round_trip_ms = self._timeouts = 0
        self._number = 0
        self._failures = 0
        self._due_ms = MonotonicMs(0)
        self._finds = 0
        #: When to look for another coordinator during the request in flight, if at all.
        self._look_due_ms: MonotonicMs | None = None
        self._logged = ""
        self._last: GroupAssignment | None = None
        #: The coordinator's address, as far as known.
        self.coordinator = ""
        #: Our member id; "" while we are not a member.
        self.member = ""
        #: Whether another client has our static name; we retry until it is free.
        self.is_replaced = False
        self._former_self = ""
        self.answers: Answers

    @property
    def coordinator_knows_slow(self) -> bool:
        """Return whether the coordinator gives a slow member's queues to others; 0.1.0 does not."""
        return self._last is not None and self._last.knows_slow

    @property
    def is_on(self) -> bool:
        """Return whether we are a member, or will be one after the next answer."""
        return self._step is not Step.OFF and not self.is_replaced

    def begin(self) -> None:
        """Begin to join, unless we are a member."""
        if self._step is Step.OFF:
            self._step = Step.FIND
            self._failures, self._due_ms = 0, MonotonicMs(0)

    def end(self) -> tuple[str, str] | None:
        """End the membership; return the coordinator's address and our member id, or None if unknown."""
        known = (self.coordinator, self.member) if self.member and self.coordinator else None
        self._step, self._is_asking, self._last = Step.OFF, False, None
        self.member, self.is_replaced = "", False
        self._number += 1
        return known

    # Requests.

    def request(
        self,
        held: Callable[[], list[QueueGrant]],
        duplicates: int,
        now_ms: MonotonicMs,
        *,
        leaving: bool = False,
        slow: bool = False,
    ) -> None:
        """Send the next request, unless one is in flight, or during a pause."""
        if self._is_asking and self._look_due_ms is not None and now_ms >= self._look_due_ms:
            self._look(now_ms)
            return
        if self._step is Step.OFF or self._is_asking or now_ms < self._due_ms:
            return
        number = self._number + 1
        if self._step is Step.FIND:
            address = self._next_broker()
            if address is None:
                self._pause(now_ms, ASK_AGAIN_MS_MAX)
                return
            self._find(CoordinatorRequest(address, number, now_ms), self._answer_ms)
        elif self._step is Step.JOIN:
            self._join(CoordinatorRequest(self.coordinator, number, now_ms), held())
        else:
            body = GroupPollBody(held=held(), duplicates=duplicates, leaving=leaving, slow=slow)
            session_ms = self._settings.session_ms
            # The next poll's answer must arrive before our lease ends.
            spare_ms = session_ms // 2 - session_ms // 12 - self._round_trip_ms
            hold_ms = min(session_ms // POLLS_PER_SESSION, max(0, spare_ms))
            request = CoordinatorRequest(self.coordinator, number, now_ms, self.member, hold_ms, duplicates)
            self._poll(request, body)
        self._number += 1
        self._is_asking, self._look_due_ms = True, None
        if self._step is not Step.FIND and self._failures:
            self._look_later(now_ms)

    @property
    def _answer_ms(self) -> int:
        """Return how long an answer may take that the coordinator does not hold."""
        return self._patient(max(ANSWER_MS_MIN, self._settings.session_ms // 3))

    def _find(self, request: CoordinatorRequest, timeout_ms: int) -> None:
        done = partial(self.answers.found, request)
        self._kernel.ask(request.address, find_group(self._settings.group), done, timeout_ms)

    def _join(self, request: CoordinatorRequest, held: list[QueueGrant]) -> None:
        header = GroupJoinHeader(
            consumer_group=self._settings.group,
            client_id=self._settings.client_id,
            lb_session_ms=self._settings.session_ms,
            lb_revoke_timeout_ms=self._settings.revoke_timeout_ms,
            lb_instance=self._settings.instance_id,
            lb_member=(self._former_self if self.is_replaced else self.member) or None,
            lb_if_free=True if self.is_replaced else None,
            lb_takes_openings=True,
        )
        body = GroupJoinBody(
            subscriptions=self._subscriptions,
            strategy=self._settings.group_strategy,
            held=held,
            orderly=self._settings.orderly,
        )
        done = partial(self.answers.joined, request)
        self._kernel.ask(request.address, join_group(header, body), done, self._answer_ms)

    def _poll(self, request: CoordinatorRequest, body: GroupPollBody) -> None:
        session_ms, hold_ms = self._settings.session_ms, request.hold_ms
        # The second half of the session is for finding another coordinator.
        spare_ms = session_ms // 2 - session_ms // POLLS_PER_SESSION
        timeout_ms = self._patient(hold_ms + max(ANSWER_MS_MIN, spare_ms, 2 * self._round_trip_ms))
        epoch = self._last.epoch if self._last is not None else 0
        call = poll_group(self._settings.group, request.member, epoch, body, hold_ms)
        done = partial(self.answers.polled, request)
        self._kernel.ask(request.address, call, done, timeout_ms, takes_late=True)

    def _next_broker(self) -> str | None:
        """Return the next broker to ask for the coordinator; a coordinator that was silent comes last.

        It is included because all others may be slaves, which never know.
        """
        brokers = self._brokers()
        if self._failures and self.coordinator in brokers:
            brokers = [*(each for each in brokers if each != self.coordinator), self.coordinator]
        self._finds += 1
        return brokers[self._finds % len(brokers)] if brokers else None

    def _look(self, now_ms: MonotonicMs) -> None:
        """Look up the coordinator during the request in flight, under its number."""
        self._look_later(now_ms)
        address = self._next_broker()
        if address is not None and address != self.coordinator:
            self._find(CoordinatorRequest(address, self._number, now_ms), LOOK_MS)

    def _look_later(self, now_ms: MonotonicMs) -> None:
        self._look_due_ms = now_ms + LOOK_MS
        self._look_timer.at(self._look_due_ms)

    def _patient(self, timeout_ms: int) -> int:
        """Return a timeout, longer once requests to every broker timed out: round trips may take longer."""
        longer_ms = timeout_ms << min(self._timeouts // max(1, len(self._brokers())), 8)
        return max(timeout_ms, min(longer_ms, self._settings.session_ms))

    # Answers.

    def found(self, request: CoordinatorRequest, outcome: str | LibraError, now_ms: MonotonicMs) -> None:
        """Handle a broker's answer about the location of the coordinator."""
        if isinstance(outcome, NotCoordinator) and outcome.remark:
            outcome = outcome.remark
        is_beside = self._step is not Step.FIND
        if is_beside and (isinstance(outcome, LibraError) or outcome in ("", self.coordinator)):
            return  # The request to the silent coordinator goes on.
        if not self._takes(request, None if is_beside else outcome, now_ms):
            return
        if isinstance(outcome, LibraError) or not outcome:
            self._look_again(now_ms, outcome)
            return
        self.coordinator = outcome
        self._step = Step.POLL if self.member else Step.JOIN

    def joined(
        self, request: CoordinatorRequest, outcome: Joined | LibraError, now_ms: MonotonicMs
    ) -> CoordinatorAnswer | None:
        """Handle the coordinator's answer to a join."""
        if not self._takes(request, outcome, now_ms):
            return None
        if isinstance(outcome, Fenced):
            return self._replaced(request.requested_ms, outcome, now_ms)
        if isinstance(outcome, LibraError):
            self._failed(outcome, now_ms)
            return None
        self.member, self.is_replaced = outcome.member, False
        return self._answered(request.requested_ms, outcome.assignment)

    def polled(
        self, request: CoordinatorRequest, outcome: GroupAssignment | LibraError, now_ms: MonotonicMs
    ) -> CoordinatorAnswer | None:
        """Handle the coordinator's answer to a poll."""
        if not self._takes(request, outcome, now_ms):
            return None
        if isinstance(outcome, UnknownMember):
            self._step, self._last, self._failures = Step.JOIN, None, 0
            return CoordinatorAnswer(request.requested_ms, None)
        if isinstance(outcome, Fenced):
            return self._replaced(request.requested_ms, outcome, now_ms)
        if isinstance(outcome, LibraError):
            self._failed(outcome, now_ms)
            return None
        is_news = outcome != self._last
        answer = self._answered(request.requested_ms, outcome)
        if not is_news and now_ms - request.requested_ms < POLL_AGAIN_MS:
            self._pause(now_ms, POLL_AGAIN_MS)
        return answer

    def is_late(self, request: CoordinatorRequest, now_ms: MonotonicMs) -> bool:
        """Return whether a poll's answer comes after its timeout, and we are still the same member."""
        if self._is_asking and request.number == self._number:
            return False
        self._round_trip_ms = max(self._round_trip_ms, now_ms - request.requested_ms - request.hold_ms)
        return request.member == self.member and not self.is_replaced

    def rearm(self, now_ms: MonotonicMs) -> None:
        """Set the timers again after all were cleared."""
        if self._due_ms > now_ms:
            self._timer.at(self._due_ms)
        if self._look_due_ms is not None and self._look_due_ms > now_ms:
            self._look_timer.at(self._look_due_ms)

    def _takes(self, request: CoordinatorRequest, outcome: object, now_ms: MonotonicMs) -> bool:
        """Return whether an answer is awaited; measure the round trip by it, unless the outcome is None.

        An answer before hold_ms is over was held for an unknown time.
        """
        if not self._is_asking or request.number != self._number:
            return False
        self._is_asking = False
        took_ms = now_ms - request.requested_ms
        if isinstance(outcome, RequestTimeout):
            self._timeouts += 1
        elif outcome is not None and not isinstance(outcome, LibraError):
            self._timeouts = 0
            if took_ms >= request.hold_ms:
                self._round_trip_ms = took_ms - request.hold_ms
            else:
                self._round_trip_ms = min(self._round_trip_ms, took_ms)
        return True

    def _answered(self, requested_ms: MonotonicMs, assignment: GroupAssignment) -> CoordinatorAnswer:
        self._step, self._last, self._failures = Step.POLL, assignment, 0
        self._logged = ""
        return CoordinatorAnswer(requested_ms, assignment)

    def _replaced(self, requested_ms: MonotonicMs, error: Fenced, now_ms: MonotonicMs) -> CoordinatorAnswer:
        if not self.is_replaced:
            log.error(
                "another client has taken this static member's place",
                group=self._settings.group,
                reason=str(error),
            )
            self.is_replaced, self._former_self = True, self.member
        self._step, self.member, self._last = Step.JOIN, "", None
        self._pause(now_ms, NAME_AGAIN_MS)
        return CoordinatorAnswer(requested_ms, None)

    def _failed(self, error: LibraError, now_ms: MonotonicMs) -> None:
        if not self._failures and isinstance(error, ConnectionLost):
            self._failures = 1  # The coordinator may still be there, waiting for us to reconnect.
            return
        if not self._failures and isinstance(error, NotCoordinator) and error.remark:
            self.coordinator = error.remark
            self._failures = 1
            return
        self._look_again(now_ms, error)

    def _look_again(self, now_ms: MonotonicMs, reason: LibraError | str) -> None:
        what = "could not be reached"
        if isinstance(reason, VersionNotSupported):
            what = "uses another version of the group protocol"
        event = f"the group's coordinator {what}"
        if str(reason) == self._logged:  # A slave whose master is away repeats this every time.
            pass
        elif isinstance(reason, LibraError):
            log_failed_request(log, event, reason, group=self._settings.group)
        else:
            log.warning(event, group=self._settings.group, reason=reason)
        self._logged = str(reason)
        if self._step is not Step.FIND:
            self._step, self._finds = Step.FIND, -1
        self._pause(now_ms, min(ASK_AGAIN_MS << min(self._failures, 8), ASK_AGAIN_MS_MAX))
        self._failures += 1

    def _pause(self, now_ms: MonotonicMs, delay_ms: int) -> None:
        self._due_ms = now_ms + delay_ms
        self._timer.at(self._due_ms)
