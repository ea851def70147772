"""The network side of a push consumer over POP: performs the effects of its core.

Upstream: MQClientAPIImpl.popMessageAsync, ackMessageAsync, changeInvisibleTimeAsync.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack, cast, get_args, get_origin

import msgspec

from libramq.client.beginning import Begun, GroupBeginning
from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.send_back import DEAD_LETTER, send_back_header
from libramq.client.consuming.member_network import MemberNetwork, Seams, log_failure
from libramq.client.consuming.pop.effect import Acknowledge, MakeDeadLetter, Pop, PopEffect, Postpone
from libramq.client.consuming.pop.places import POP_COUNT_MAX
from libramq.client.consuming.pop.pop_consumer_core import PopConsumerCore
from libramq.client.consuming.work import Work
from libramq.client.options import ConsumeFrom
from libramq.client.popping.popped import ack_header, batch_acks, change_header, messages_of
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import (
    BrokerError,
    FilterRefused,
    InvalidState,
    LibraError,
    NoPermission,
    RequestCodeNotSupported,
)
from libramq.filter.sql import SQL92
from libramq.filter.subscription import Selector, kind_of
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.headers import PopMessageHeader
from libramq.rpc import broker_calls, pop_calls
from libramq.rpc.call import Call
from libramq.rpc.pop_calls import Changed, PopReply
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)
T = TypeVar("T")

#: DefaultMQPushConsumerImpl: how long the broker may hold a pop, and how long we wait for it.
HOLD_MS: Final = 15_000
POP_TIMEOUT_MS: Final = 30_000
#: Ours: how long other requests wait for an answer; they are repeated.
SETTLE_TIMEOUT_MS: Final = 5_000
#: ConsumeInitMode.java.
_INIT_MIN: Final = 0
_INIT_MAX: Final = 1
_FILTER_REFUSED: Final = frozenset({
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
})  # fmt: skip
#: Errors that users get as troubles, so that they are not logged as well.
_REPORTED: Final = (NoPermission, FilterRefused, RequestCodeNotSupported)


class PopNetwork(MemberNetwork[PopEffect]):
    """The membership of a consumer that pops."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        **seams: Unpack[Seams],
    ) -> None:
        clock, failed = seams["clock"], seams.get("failed", log_failure)
        self.core = core = PopConsumerCore(settings, subscriptions, clock.monotonic_ms, failed)
        super().__init__(settings, subscriptions, core, **seams)
        self._begun = Begun()
        self._take_single_acks: set[str] = set()  # Addresses of brokers that take no others.
        self._round_trips_ms: dict[str, int] = {}  # The shortest, by address.
        self._performers |= {
            Pop: self._pop,
            Acknowledge: self._acknowledge,
            Postpone: self._postpone,
            MakeDeadLetter: self._make_dead_letter,
        }
        kinds = {get_origin(each) or each for each in get_args(PopEffect)}
        assert self._performers.keys() == kinds, "each effect has a performer"

    def assignment(self) -> list[MessageQueue]:
        """Return its queues: none."""
        return []

    def work(self) -> Work:
        """Return what the consumer has in hand."""
        return Work.of_deliveries(self.core.holding.deliveries)

    def ask(self, ask: fx.Ask[Any]) -> None:
        """Make a request, and measure how long its answer takes."""
        sent_ms = self._clock.monotonic_ms()

        def measured(outcome: Any, now_ms: MonotonicMs) -> fx.Effects:
            took_ms = now_ms - sent_ms
            self._round_trips_ms[ask.address] = min(took_ms, self._round_trips_ms.get(ask.address, took_ms))
            return ask.done(outcome, now_ms)

        super().ask(msgspec.structs.replace(ask, done=measured))

    def _ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Sequence[PopEffect]],
        timeout_ms: int,
    ) -> None:
        self.ask(fx.Ask(address, call, cast("Any", answered), timeout_ms))

    def pause(self, queues: Sequence[MessageQueue] | None) -> None:
        """Start no more handlers."""
        _refuse(queues)
        self._perform(self.core.pause(self._clock.monotonic_ms()))

    def resume(self, queues: Sequence[MessageQueue] | None) -> None:
        """Continue."""
        _refuse(queues)
        self._perform(self.core.resume(self._clock.monotonic_ms()))

    def hook_done(self, change: fx.QueueChange) -> None:
        """Do nothing: no queue is revoked."""

    def _began(self, begun: Begun) -> None:
        self._begun = begun

    def _begin_place(self, effect: Pop, beginning: GroupBeginning, since_ms: int) -> None:
        """Begin at a broker that was away at the start, or is new, and pop then."""

        def begun(outcome: int | LibraError | None, now_ms: MonotonicMs) -> Sequence[PopEffect]:
            if isinstance(outcome, LibraError) and not isinstance(outcome, RequestCodeNotSupported):
                return self.core.popped(effect, outcome, (), now_ms)
            self._begun = self._begun.joined(Begun(places={effect.place}))
            self._pop(effect)
            return ()

        self._ask(effect.address, beginning.begin_at(effect.place.topic, since_ms), begun, SETTLE_TIMEOUT_MS)

    def _pop(self, effect: Pop) -> None:
        topic, broker_name = effect.place
        since_ms = self._begun.since_ms.get(topic)
        if self._beginning and since_ms and effect.place not in self._begun.places:
            self._begin_place(effect, self._beginning, since_ms)
            return
        selected = self._subscriptions[topic]
        kind = kind_of(selected)
        header = PopMessageHeader(
            consumer_group=self._settings.group,
            topic=topic,
            queue_id=-1,
            max_msg_nums=POP_COUNT_MAX,
            invisible_time=self._settings.invisible_ms,
            poll_time=HOLD_MS,
            init_mode=_INIT_MIN if self._settings.consume_from is ConsumeFrom.FIRST_OFFSET else _INIT_MAX,
            exp_type=kind,
            exp=selected.expression,
            order=False,
        )

        def answered(outcome: PopReply | LibraError, now_ms: MonotonicMs) -> Sequence[PopEffect]:
            messages: Sequence[MessageExt] = ()
            age_ms: int | LibraError = 0
            if isinstance(outcome, LibraError):
                if kind == SQL92 and isinstance(outcome, BrokerError) and _is_about_filter(outcome):
                    outcome = FilterRefused(outcome.response_code, outcome.remark, where=effect.address)
                if not isinstance(outcome, _REPORTED):
                    log_failed_request(log, "pop failed", outcome, topic=topic, broker=effect.address)
                age_ms = outcome
            elif outcome.body:
                try:
                    messages = messages_of(outcome, broker_name, topic)
                    age_ms = self._age_ms(effect, outcome, now_ms)
                except LibraError as error:
                    log.error("a pop's answer is dropped", topic=topic, reason=str(error))
                    age_ms = error
            self.core.pop_answered(topic, effect.address, outcome)
            return self.core.popped(effect, age_ms, messages, now_ms)

        self._ask(effect.address, pop_calls.pop_message(header), answered, POP_TIMEOUT_MS)

    def _age_ms(self, effect: Pop, reply: PopReply, now_ms: MonotonicMs) -> int:
        """Return how long ago a broker popped messages, by our clock alone: its clock may be set otherwise.

        Brokers that do not say how long they held the pop are taken to answer as fast as ever.
        """
        if reply.held_ms is None:
            return self._round_trips_ms[effect.address]
        return now_ms - effect.sent_ms - reply.held_ms

    def _acknowledge(self, effect: Acknowledge) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> Sequence[PopEffect]:
            if isinstance(outcome, RequestCodeNotSupported):  # Apache's 5.0 brokers take one a request.
                self._take_single_acks.add(effect.address)
                self._acknowledge_each(effect)
                return ()
            return self._acknowledged(effect, outcome, now_ms)

        if effect.address in self._take_single_acks:
            self._acknowledge_each(effect)
            return

        acks = batch_acks(self._settings.group, [held.message for held in effect.held])
        together = [ack for of_broker in acks.values() for ack in of_broker]
        call = pop_calls.batch_ack(effect.broker_name, together)
        self._ask(effect.address, call, answered, SETTLE_TIMEOUT_MS)

    def _acknowledge_each(self, effect: Acknowledge) -> None:
        """Acknowledge messages by one request each."""
        for held in effect.held:
            call = pop_calls.ack_message(ack_header(self._settings.group, held.message))
            one = Acknowledge(effect.broker_name, effect.address, (held,))
            self._ask(effect.address, call, partial(self._acknowledged, one), SETTLE_TIMEOUT_MS)

    def _acknowledged(
        self, effect: Acknowledge, outcome: LibraError | None, now_ms: MonotonicMs
    ) -> Sequence[PopEffect]:
        if outcome is not None:
            log_failed_request(log, "acknowledgement failed", outcome, broker=effect.address)
        return self.core.acknowledged(effect, outcome, now_ms)

    def _postpone(self, effect: Postpone) -> None:
        def answered(outcome: Changed | LibraError, now_ms: MonotonicMs) -> Sequence[PopEffect]:
            return self.core.postponed(effect, outcome, now_ms)

        header = change_header(self._settings.group, effect.held.message, effect.invisible_ms)
        self._ask(effect.address, pop_calls.change_invisible_time(header), answered, SETTLE_TIMEOUT_MS)

    def _make_dead_letter(self, effect: MakeDeadLetter) -> None:
        def answered(outcome: LibraError | None, now_ms: MonotonicMs) -> Sequence[PopEffect]:
            if outcome is not None:
                log.warning("a dead letter was refused", reason=str(outcome))
            return self.core.dead_letter_made(effect, outcome, now_ms)

        header = send_back_header(effect.held.message, self._settings, DEAD_LETTER, error=effect.held.error)
        self._ask(effect.address, broker_calls.send_back(header), answered, SETTLE_TIMEOUT_MS)


def _is_about_filter(error: BrokerError) -> bool:
    return error.response_code in _FILTER_REFUSED


def _refuse(queues: Sequence[MessageQueue] | None) -> None:
    if queues is not None:
        raise InvalidState("a consumer that pops owns no queues: pause() and resume() without any")
