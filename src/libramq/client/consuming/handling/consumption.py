"""The consumption acts on a handler's result: the offset advances, or the message is sent back, or kept and
passed to a handler again.

concurrently

        done               ─► removed, offset advances
        foreign            ─► handled by a member with its topic, or sent back uncounted ─► removed
        busy               ─► sent back uncounted ─► removed
          at Apache's      ─► kept, and passed to a handler again, after a while
        retried, rejected  ─► sent back to the broker ─► removed
          if that fails    ─► a copy sent to the retry topic ─► removed
            if that fails  ─► passed to a handler again, after a while

in order

        done               ─► removed, offset advances, next portion
        retried            ─► put back, counted; the whole queue waits, then the same messages again
          too often        ─► sent to the retry topic, from which the broker makes it a dead letter ─► removed
        busy               ─► put back, uncounted; the whole queue waits
        rejected           ─► sent back to the broker as a dead letter ─► removed

Upstream: ConsumeMessageConcurrentlyService.processConsumeResult, DefaultMQPushConsumerImpl.sendMessageBack,
ConsumeMessageOrderlyService.processConsumeResult, checkReconsumeTimes, sendMessageBack.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from functools import partial
from operator import attrgetter
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.handling.send_back import (
    CHOSEN_BY_BROKER,
    DEAD_LETTER,
    INNER_PRODUCER,
    delay_level,
    log_dead_letter,
    log_rejected,
    retry_copy,
    send_back_header,
)
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.pulling.pulling import Delivering, Duplicates
from libramq.client.consuming.queues.owned_queue import Delivery, OwnedQueue
from libramq.client.producing.send_request import send_call
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.logs import BoundedLines, get_logger
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import SendReply, send_back

log = get_logger(__name__)

#: ConsumeMessageConcurrentlyService.submitConsumeRequestLater.
REDELIVER_MS: Final = 5_000
#: sendMessageBack.
SEND_BACK_TIMEOUT_MS: Final = 5_000


class Consumption:
    """Turns the results of handlers into offsets and redeliveries."""

    def __init__(self, own: Ownership, delivering: Delivering, duplicates: Duplicates) -> None:
        self._settings = own.settings
        self._retry_topic = retry_topic(own.settings.group)
        self._routes = own.routes
        self._offsets = own.offsets
        self._kernel = own.kernel
        self._table = own.table
        self._pulling = own.pulling
        self._own = own
        self._delivering = delivering
        self._duplicates = duplicates
        self._known_brokers = own.known_brokers
        self._warnings = BoundedLines(log.warning)

    def handled(self, results: Iterable[tuple[Delivery, Ending]], now_ms: MonotonicMs) -> None:
        """Handle the results of handlers."""
        for delivery, ending in results:
            try:
                self._handled(delivery, ending, now_ms)
            except Exception as error:  # The other results would be lost, and count as running for ever.
                self._kernel.failed(f"a result for {delivery.owned.queue} could not be handled", error)

    def _handled(self, delivery: Delivery, ending: Ending, now_ms: MonotonicMs) -> None:
        owned = delivery.owned
        owned.work.deliveries.discard(delivery)
        is_current = self._table.is_current(owned)  # Else its new owner delivers the rest.
        if ending is HandlerOutcome.SKIPPED:
            if is_current:
                self._delivering.not_begun(delivery)
                self._go_on(delivery, now_ms)
            return
        if ending is HandlerOutcome.FOREIGN:
            if is_current:
                self._pass_on(delivery, now_ms)
                self._go_on(delivery, now_ms)
            return
        not_done = _not_done(ending, delivery.messages)
        done = not_done.done(delivery.messages) if not_done else delivery.messages
        if done:
            self._duplicates.handled(owned.queue, done[-1].queue_offset)
        if is_current:
            self._done(delivery, done)
            if not_done:
                self._failed(delivery, not_done, now_ms)
            self._go_on(delivery, now_ms)

    def _ask_to_redeliver(
        self,
        delivery: Delivery,
        message: MessageExt,
        address: str,
        level: int = CHOSEN_BY_BROKER,
        *,
        is_counted: bool = True,
        pass_on_ms: int = 0,
    ) -> None:
        """Ask a broker to redeliver a message later.

        is_counted: whether that counts as an attempt; only LibraMQ's brokers accept False. pass_on_ms: how
        long a member with a subscription to the topic may take to handle it; 0: it is not passed on.
        """
        delivery.owned.work.sending_back += 1
        header = send_back_header(
            message,
            self._settings,
            level,
            is_counted=is_counted,
            pass_on_ms=pass_on_ms,
            error=delivery.error,
        )
        done = partial(self._sent_back, delivery, message, level, is_counted)
        self._kernel.ask(address, send_back(header), done, pass_on_ms + SEND_BACK_TIMEOUT_MS)

    def _sent_back(
        self,
        delivery: Delivery,
        message: MessageExt,
        level: int,
        is_counted: bool,
        outcome: LibraError | None,
        now_ms: MonotonicMs,
    ) -> None:
        """Handle the result of a send-back."""
        if outcome is None:
            self._returned(delivery, message, now_ms)
        elif is_counted:
            log.warning("send-back failed; a copy is sent instead", reason=str(outcome))
            self._send_copy(delivery, message, level, now_ms)
        else:
            log.warning("send-back failed; the message is redelivered locally", reason=str(outcome))
            delivery.owned.work.sending_back -= 1
            self._again(delivery, message, REDELIVER_MS, now_ms)
            self._go_on(delivery, now_ms)

    def _copy_sent(
        self, delivery: Delivery, message: MessageExt, outcome: SendReply | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle the result of sending a copy to the retry topic."""
        what_follows = self._keep if isinstance(outcome, LibraError) else self._returned
        what_follows(delivery, message, now_ms)

    def _redeliver(self, delivery: Delivery, now_ms: MonotonicMs) -> None:
        """Deliver locally kept messages again, after their pause."""
        owned = delivery.owned
        if owned.is_ours:
            owned.work.deliveries.add(delivery)
            self._kernel.effects.add(fx.Deliver((delivery,)))

    def _failed(self, delivery: Delivery, not_done: NotDone, now_ms: MonotonicMs) -> None:
        messages = [message for message, _ in not_done.retries] + list(not_done.rejects)
        if self._settings.broadcasting and messages:
            # As upstream: the retry topic belongs to the whole group, so broadcasting has no redelivery.
            log.warning(
                "messages of a failed handler are dropped: a broadcasting group has no redelivery",
                messages=len(messages),
            )
            self._done(delivery, messages)
            not_done = NotDone(busy=not_done.busy)
        self._retry(delivery, not_done.retries, now_ms)
        self._reject(delivery, not_done.rejects, now_ms)
        if not_done.busy:
            self._wait(delivery, not_done.busy, now_ms)

    def _retry(
        self, delivery: Delivery, retries: Iterable[tuple[MessageExt, int | None]], now_ms: MonotonicMs
    ) -> None:
        for message, after_ms in retries:
            if self._settings.is_last_attempt(message.reconsume_times):
                log_dead_letter(message, self._settings.group, delivery.error)
            self._send_back(delivery, message, delay_level(after_ms), now_ms)

    def _reject(self, delivery: Delivery, messages: Iterable[MessageExt], now_ms: MonotonicMs) -> None:
        for message in messages:
            log_rejected(message, self._settings.group)
            self._send_back(delivery, message, DEAD_LETTER, now_ms)

    def _pass_on(self, delivery: Delivery, now_ms: MonotonicMs) -> None:
        """Pass retries of unsubscribed topics on to another member; only LibraMQ's brokers can do so."""
        for message in delivery.messages:
            address = self._routes.master(message.broker_name or delivery.owned.queue.broker_name)
            if address in self._known_brokers.offering:
                for_ms = self._settings.consume_timeout_ms
                self._ask_to_redeliver(delivery, message, address, is_counted=False, pass_on_ms=for_ms)
            else:
                self._warnings.at(
                    now_ms, "a redelivered message has a topic without a handler", topic=message.topic
                )
                self._retry(delivery, [(message, None)], now_ms)

    def _wait(self, delivery: Delivery, busy: Iterable[tuple[MessageExt, int]], now_ms: MonotonicMs) -> None:
        """Redeliver messages without counting an attempt; locally with Apache's brokers, which count all."""
        for message, within_ms in busy:
            address = self._routes.master(message.broker_name or delivery.owned.queue.broker_name)
            if address in self._known_brokers.offering and not self._settings.broadcasting:
                level = delay_level(within_ms)
                self._ask_to_redeliver(delivery, message, address, level, is_counted=False)
            else:
                self._again(delivery, message, min(within_ms, REDELIVER_MS), now_ms)

    def _send_back(self, delivery: Delivery, message: MessageExt, level: int, now_ms: MonotonicMs) -> None:
        address = self._routes.master(message.broker_name or delivery.owned.queue.broker_name)
        if address is None:
            delivery.owned.work.sending_back += 1
            self._known_brokers.look_soon(now_ms)
            self._send_copy(delivery, message, level, now_ms)
        else:
            self._ask_to_redeliver(delivery, message, address, level)

    def _send_copy(self, delivery: Delivery, message: MessageExt, level: int, now_ms: MonotonicMs) -> None:
        info = self._routes.published.get(self._retry_topic)
        if info is not None and info.queues:
            queue = info.queues[message.queue_offset % len(info.queues)]
        else:  # A broker creates the retry topic with its first message.
            queue = MessageQueue(self._retry_topic, delivery.owned.queue.broker_name, 0)
        address = self._routes.master(queue.broker_name)
        if address is None:
            self._known_brokers.look_soon(now_ms)
            self._keep(delivery, message, now_ms)
            return
        prepared = retry_copy(message, self._settings, level, error=delivery.error)
        call = send_call(prepared, queue, INNER_PRODUCER, born_ms=self._kernel.clock.wall_ms())
        self._kernel.ask(address, call, partial(self._copy_sent, delivery, message), SEND_BACK_TIMEOUT_MS)

    def _returned(self, delivery: Delivery, message: MessageExt, now_ms: MonotonicMs) -> None:
        delivery.owned.work.sending_back -= 1
        self._done(delivery, (message,))
        self._go_on(delivery, now_ms)

    def _keep(self, delivery: Delivery, message: MessageExt, now_ms: MonotonicMs) -> None:
        owned = delivery.owned
        log.warning("message could not be sent back; it is redelivered locally", queue=str(owned.queue))
        owned.work.sending_back -= 1
        message.reconsume_times += 1
        self._again(delivery, message, REDELIVER_MS, now_ms)
        self._go_on(delivery, now_ms)

    def _again(self, delivery: Delivery, message: MessageExt, after_ms: int, now_ms: MonotonicMs) -> None:
        again = Delivery(delivery.owned, (message,))
        self._kernel.deadlines.set(now_ms + after_ms, partial(self._redeliver, again))

    def _done(self, delivery: Delivery, messages: Sequence[MessageExt]) -> None:
        owned = delivery.owned
        if self._table.is_current(owned):
            offset = owned.held.remove(messages)
            if offset is not None:
                self._offsets.advance(owned.queue, offset)

    def _go_on(self, delivery: Delivery, now_ms: MonotonicMs) -> None:
        owned = delivery.owned
        if not self._table.is_current(owned):
            return
        if not owned.is_ours:
            self._own.handle(owned, ev.HandlerEnded(), now_ms)
        else:
            self._delivering.deliver_next(owned)
            self._pulling.resume(owned, now_ms)


def _not_done(ending: Ending, messages: Iterable[MessageExt]) -> NotDone | None:
    if ending is HandlerOutcome.SUCCESS:
        return None
    if isinstance(ending, NotDone):
        return ending
    return NotDone(retries=tuple((message, None) for message in messages))


class OrderlyConsumption(Consumption):
    """Turns results of handlers into offsets, and suspends a queue after a failure."""

    def _suspend_over(self, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
        """Continue a queue after its suspension."""
        owned.work.is_suspended = False
        self._delivering.deliver_next(owned)

    def _retry(
        self, delivery: Delivery, retries: Iterable[tuple[MessageExt, int | None]], now_ms: MonotonicMs
    ) -> None:
        owned = delivery.owned
        again, delays_ms = [], []
        for message, after_ms in retries:
            if self._settings.is_last_attempt(message.reconsume_times):
                log_dead_letter(message, self._settings.group, delivery.error)
                owned.work.sending_back += 1
                self._send_copy(delivery, message, CHOSEN_BY_BROKER, now_ms)
            else:
                message.reconsume_times += 1
                again.append(message)
                delays_ms.append(self._settings.suspend_ms if after_ms is None else after_ms)
        if again:
            self._put_back(owned, again)
            self._suspend(owned, max(delays_ms), now_ms)

    def _wait(self, delivery: Delivery, busy: Iterable[tuple[MessageExt, int]], now_ms: MonotonicMs) -> None:
        delay_ms = min(within_ms for _, within_ms in busy)
        self._put_back(delivery.owned, [message for message, _ in busy])
        self._suspend(delivery.owned, min(delay_ms, self._settings.suspend_ms), now_ms)

    def _keep(self, delivery: Delivery, message: MessageExt, now_ms: MonotonicMs) -> None:
        owned = delivery.owned
        log.warning("message could not be sent to the retry topic; its queue waits", queue=str(owned.queue))
        owned.work.sending_back -= 1
        message.reconsume_times += 1
        self._put_back(owned, [message])
        self._suspend(owned, self._settings.suspend_ms, now_ms)
        self._go_on(delivery, now_ms)

    def _put_back(self, owned: OwnedQueue, messages: Iterable[MessageExt]) -> None:
        owned.work.waiting = deque(sorted([*messages, *owned.work.waiting], key=attrgetter("queue_offset")))

    def _suspend(self, owned: OwnedQueue, delay_ms: int, now_ms: MonotonicMs) -> None:
        if not owned.work.is_suspended:
            owned.work.is_suspended = True
            self._kernel.deadlines.set(now_ms + delay_ms, partial(self._suspend_over, owned))
