"""The send pipeline of `send_nowait`: how long messages wait for a batch, how many bytes and batches are in
flight, and when the buffer is full.

    send_nowait ─► accumulator ─► batches, encoded when they are sent ─► callbacks

Messages that cannot be sent yet stay in the accumulator, so batches grow when the broker is slow. Each batch
without a chosen queue takes the next queue. At most IN_FLIGHT_BYTES_MAX are in flight, and one batch for a
chosen queue, so that its retries, perhaps in halves, precede later messages. If such a batch gets no answer
in time, the batches that waited behind it all the while fail as well. Messages that travel alone to a chosen
queue keep their place among its batches; only delayed messages, which are stored elsewhere first, overtake.
Awaited sends leave directly behind each other, as they do when no other message is before them.
Upstream: ProduceAccumulator.java, DefaultMQProducerImpl (back pressure).
"""

from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from typing import Final

from libramq.client.producing.accumulator import (
    PLAIN_ITEM_BYTES,
    Accumulator,
    Batch,
    Content,
    content_bytes,
    plain_body,
)
from libramq.client.producing.producer_settings import ProducerSettings
from libramq.client.producing.queue_selector import QueueSelector, selected
from libramq.client.producing.send_request import content_of, prepare_one, travels_alone
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.sender import Outcomes, Sender, Sent
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import Routes, not_writable
from libramq.errors import ConnectFailed, LibraError, RequestTimeout
from libramq.logs import get_logger
from libramq.message.ids import MessageIds
from libramq.message.message import Message, snapshot
from libramq.message.queue import MessageQueue
from libramq.runtime.seams import Timer, Timers

log = get_logger(__name__)

#: Ours: as much as a broker stores well within sendMsgTimeout.
IN_FLIGHT_BYTES_MAX: Final = 8 * 1024 * 1024
#: Ours: beyond this, a program that sends without pause has to wait. Meanwhile answers are read, batches are
#: sent, and the broker works on the other half.
ROOM_BYTES_MAX: Final = 12 * 1024 * 1024

#: Kafka's max.in.flight.requests.per.connection: with this many batches of a topic in flight, the next one
#: waits for an answer or until it is full. Batches grow with the load; a quick broker gets small ones.
IN_FLIGHT_BATCHES_MAX: Final = 5

#: Ours: how long batches are sent before answers are read and callers served, as long as a broker's turn.
DISPATCH_US_MAX: Final = 2_000

_CALLBACK_FAILED: Final = "a send callback failed"

#: Called with the result of a message, or its error.
Callback = Callable[[SendResult | LibraError], None]
_Unrouted = tuple[Message, Callback | None, MessageQueue | None, QueueSelector | None]


class SendPipeline:
    """Collects messages, sends batches, and reports results."""

    def __init__(
        self,
        sender: Sender,
        routes: Routes,
        timers: Timers,
        ids: MessageIds,
        settings: ProducerSettings,
    ) -> None:
        self._sender = sender
        self._routes = routes
        self._timers = timers
        self._ids = ids
        self._settings = settings
        self._timeout_ms = settings.send_timeout_ms
        self._linger_ms = settings.linger_ms
        self._buffer_bytes_max = settings.buffer_bytes_max
        self._room_bytes_max = min(settings.buffer_bytes_max, ROOM_BYTES_MAX)
        self._accumulator: Accumulator[Callback | None] = Accumulator()
        self._unrouted: dict[str, list[_Unrouted]] = {}
        self._timer: Timer | None = None
        self._rest: Timer | None = None
        self._buffered_bytes = self._in_flight_bytes = 0
        self._in_flight_batches: Counter[str] = Counter()  # By topic; without those of a fixed queue.
        self._busy: set[str] = set()  # Topics with IN_FLIGHT_BATCHES_MAX in flight.
        self._silent: set[MessageQueue] = set()  # Chosen queues whose last batch had no answer.
        self._is_dispatching = self._sent_since_pause = False
        self._waiting_for_room: list[Callable[[None], None]] = []
        self._waiting_for_all: list[Callable[[LibraError | None], None]] = []
        self._unreported_error: LibraError | None = None

    @property
    def buffered_bytes(self) -> int:
        """Return how many bytes wait or are in flight."""
        return self._buffered_bytes

    @property
    def is_full(self) -> bool:
        """Return whether the buffer takes no more messages."""
        return self._buffered_bytes >= self._buffer_bytes_max

    @property
    def has_room(self) -> bool:
        """Return whether more messages are wanted now."""
        return self._buffered_bytes < self._room_bytes_max

    def joins_batch(self, message: Message, callback: Callback | None) -> bool:
        """Add a plain body to its topic's open batch; return False if it needs `send` instead.

        Nearly all messages of a fast producer take this path, in half a microsecond each: an open batch
        implies a valid topic with a route, and a timer for the batch.
        """
        body = plain_body(message)
        if (
            body is None
            or not 0 < len(body) <= self._settings.body_bytes_max
            or (callback is not None and not callable(callback))
            or self._buffered_bytes >= self._buffer_bytes_max
            or self._timer is None
            or self._unrouted
        ):
            return False
        size = len(body) + PLAIN_ITEM_BYTES
        batch = self._accumulator.open_batch(message.topic, size)
        if batch is None:
            return False
        batch.contents.append(body)
        batch.tokens.append(callback)
        batch.size += size
        self._buffered_bytes += size
        return True

    def send(
        self,
        message: Message,
        callback: Callback | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
    ) -> None:
        """Take a message, even if the buffer is full."""
        info = self._routes.table.published.get(message.topic)
        if info is None or not info.queues or message.topic in self._unrouted:
            self._hold(message, callback, queue, selector)
        else:
            self._place(message, callback, queue, selector, info)

    def is_in_use(self, queue: MessageQueue) -> bool:
        """Return whether anything waits for a fixed queue, or is in flight to it."""
        return self._accumulator.has(queue)

    def send_behind(
        self,
        queue: MessageQueue,
        send: Callable[[Sent], None],
        callbacks: Sequence[Callback | None],
        size: int,
        *,
        wait_ms: int | None = None,
    ) -> None:
        """Call `send` for messages when no others for their queue are before them.

        wait_ms: for awaited sends, which fail unsent after this time. callbacks: one for each message.
        """

        timer: Timer | None = None

        def send_them(sent: Callable[[Outcomes], None]) -> None:
            if timer is not None:
                timer.cancel()

            def answered(outcome: Sequence[SendResult] | LibraError) -> None:
                sent([outcome] * len(callbacks) if isinstance(outcome, LibraError) else outcome)

            send(answered)

        is_awaited = wait_ms is not None
        batch = Batch(
            queue.topic, queue, tokens=list(callbacks), size=size, send=send_them, is_awaited=is_awaited
        )
        self._buffered_bytes += size
        self._accumulator.add_alone(batch)
        if wait_ms is not None:
            timer = self._timers.after(wait_ms, partial(self._waited_too_long, batch))
        if queue not in self._accumulator.blocked:
            self._dispatch()

    def _waited_too_long(self, batch: Batch[Callback | None]) -> None:
        if self._accumulator.discard(batch):
            assert batch.queue is not None, "it waits for others of its queue"
            for callback in batch.tokens:
                self._complete(callback, _not_sent(batch.queue))
            self._finished(batch.size)

    def fail(self, callback: Callback | None, error: BaseException) -> None:
        """Report that a message could not be taken; a KeyboardInterrupt is raised again."""
        if isinstance(error, KeyboardInterrupt):
            raise error
        if not isinstance(error, LibraError):
            error = LibraError(f"the queue selector failed: {error!r}")
        self._complete(callback, error)

    def flush(self, flushed: Callable[[LibraError | None], None]) -> None:
        """Send all waiting messages; call `flushed` after all responses, with the first unreported error.

        If the broker of a chosen queue is silent, messages waiting for that queue fail after one send's
        timeout.
        """
        self._linger_over()
        now_us = self._timers.elapsed_us()
        for batch in self._accumulator.behind():
            batch.flushed_us = batch.flushed_us or now_us
        if self._buffered_bytes:
            self._waiting_for_all.append(flushed)
        else:
            flushed(self._take_error())

    def take_pause(self) -> bool:
        """Return whether anything was sent since the last call: then responses should be read."""
        has_sent, self._sent_since_pause = self._sent_since_pause, False
        return has_sent

    @property
    def is_half_full(self) -> bool:
        """Return whether the buffered bytes exceed half of the room."""
        return self._buffered_bytes > self._room_bytes_max // 2

    def when_half_empty(self, ready: Callable[[None], None]) -> None:
        """Call back when the buffered bytes are at most half of the room."""
        if self.is_half_full:
            self._waiting_for_room.append(ready)
            self._linger_over()  # A program that waits for room sends no messages to fill batches.
        else:
            ready(None)

    def close(self) -> None:
        """Stop; messages that still wait are not sent."""
        for timer in (self._timer, self._rest):
            if timer is not None:
                timer.cancel()

    def _place(
        self,
        message: Message,
        callback: Callback | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        info: TopicPublishInfo,
    ) -> None:
        if selector is not None:
            queue = selected(selector, info.queues, message)
        if travels_alone(message):
            prepared = prepare_one(message, self._ids, compress_over_bytes=self._settings.compress_over_bytes)
            send = partial(self._sender.send, prepared, info, queue, timeout_ms=self._timeout_ms)
            if queue is None or message.is_delayed:
                self._send_one(send, len(prepared.body), callback)
            else:
                self.send_behind(queue, send, [callback], len(prepared.body))
            return
        content = content_of(message, self._ids)
        self._collect(message.topic, queue, content, content_bytes(content), callback)

    def _collect(
        self,
        topic: str,
        queue: MessageQueue | None,
        content: Content,
        size: int,
        callback: Callback | None,
    ) -> None:
        self._buffered_bytes += size
        is_full = self._accumulator.add(topic, queue, content, size, callback)
        if self._timer is None:
            self._timer = self._timers.after(self._linger_ms, self._linger_over)
        if is_full:
            self._dispatch()

    def _hold(
        self,
        message: Message,
        callback: Callback | None,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
    ) -> None:
        """Hold a message until its topic has a route."""
        topic, message = message.topic, snapshot(message)
        self._buffered_bytes += len(message.body)
        held = self._unrouted.setdefault(topic, [])
        held.append((message, callback, queue, selector))
        if len(held) == 1:
            self._routes.publish_info(topic, partial(self._routed, topic))

    def _routed(self, topic: str, info: TopicPublishInfo | LibraError) -> None:
        for message, callback, queue, selector in self._unrouted.pop(topic):
            try:
                if isinstance(info, LibraError):
                    self._complete(callback, info)
                else:
                    self._place(message, callback, queue, selector, info)
            except BaseException as error:  # A user's selector may raise anything, SystemExit included.
                self.fail(callback, error)
            self._finished(len(message.body))
        if self._waiting_for_all:
            self._linger_over()

    def _linger_over(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._dispatch()

    def _dispatch(self) -> None:
        """Send full batches, and all others unless they still wait for more messages.

        After a batch that fails at once, for example for lack of a master, the next one is sent by this loop
        and not by the report of the failure: hundreds may wait. Batches that callbacks fill meanwhile are
        sent later, as are the last ones of thousands for chosen queues.
        """
        if self._is_dispatching:
            return
        self._is_dispatching = True
        try:
            end_us = None
            for sent in range(self._accumulator.batch_count):
                if sent:  # Nearly always there is only one.
                    now_us = self._timers.elapsed_us()
                    end_us = end_us or now_us + DISPATCH_US_MAX
                    if now_us >= end_us and self._in_flight_bytes:  # Immediate failures are reported at once.
                        break
                if self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX:
                    return
                only_full = self._timer is not None
                batch = self._accumulator.take(only_full=only_full, held=self._busy)
                if batch is None:
                    return
                self._send_batch(batch)
            if self._rest is None and not self._accumulator.is_empty:
                self._rest = self._timers.after(0, self._dispatch_rest)
        finally:
            self._is_dispatching = False

    def _dispatch_rest(self) -> None:
        self._rest = None
        self._dispatch()

    def _send_batch(self, batch: Batch[Callback | None]) -> None:
        info = self._routes.table.published.get(batch.topic)
        assert info is not None, "messages are placed when their topic has a route"
        if not info.queues and batch.queue is None:
            for callback in batch.tokens:  # They were queued before the topic lost its permission.
                self._complete(callback, not_writable(batch.topic))
            self._finished(batch.size)
            return
        self._in_flight(batch.size)
        topic, timeout_ms = batch.topic, self._timeout_ms
        if batch.is_awaited:
            assert batch.send is not None, "it travels alone"
            batch.send(partial(self._sent, batch.tokens, batch.size))
            return
        if batch.queue is not None:
            self._accumulator.block(batch.queue)
        else:
            self._in_flight_batches[topic] += 1
            if self._in_flight_batches[topic] >= IN_FLIGHT_BATCHES_MAX:
                self._busy.add(topic)
        sent = partial(self._batch_sent, topic, batch.queue, batch.tokens, batch.size)
        if batch.flushed_us is not None and batch.queue in self._silent:
            timeout_ms -= (self._timers.elapsed_us() - batch.flushed_us) // 1_000
        if timeout_ms <= 0:
            assert batch.queue is not None, "others wait for no queue"
            sent([_not_sent(batch.queue)] * len(batch.tokens))
        elif batch.send is not None:
            batch.send(sent)
        else:
            self._sender.send_batch(topic, info, batch.queue, batch.contents, sent, timeout_ms=timeout_ms)

    def _batch_sent(
        self,
        topic: str,
        queue: MessageQueue | None,
        callbacks: list[Callback | None],
        size: int,
        outcomes: Outcomes,
    ) -> None:
        late: list[Batch[Callback | None]] = []
        if queue is not None:
            behind = self._accumulator.free(queue)
            # Batches behind this one have waited as long.
            if outcomes and isinstance(outcomes[-1], RequestTimeout | ConnectFailed):
                self._silent.add(queue)
                late = self._accumulator.remove([each for each in behind if not each.is_awaited])
            elif self._silent:
                self._silent.discard(queue)
        else:
            self._busy.discard(topic)
            self._in_flight_batches[topic] -= 1
            if not self._in_flight_batches[topic]:
                del self._in_flight_batches[topic]
        if late:
            callbacks = [*callbacks, *chain.from_iterable([batch.tokens for batch in late])]
            outcomes = [*outcomes, *[outcomes[-1]] * (len(callbacks) - len(outcomes))]
            late_bytes = sum([batch.size for batch in late])
            self._in_flight_bytes += late_bytes
            size += late_bytes
        self._sent(callbacks, size, outcomes)

    def _send_one(self, send: Callable[[Sent], None], size: int, callback: Callback | None) -> None:
        self._buffered_bytes += size
        self._in_flight(size)

        def sent(outcome: Sequence[SendResult] | LibraError) -> None:
            self._sent([callback], size, [outcome] if isinstance(outcome, LibraError) else outcome)

        send(sent)

    def _in_flight(self, size: int) -> None:
        self._in_flight_bytes += size
        self._sent_since_pause = True

    def _sent(self, callbacks: list[Callback | None], size: int, outcomes: Outcomes) -> None:
        self._in_flight_bytes -= size
        for callback, outcome in zip(callbacks, outcomes, strict=True):
            if callback is None:
                if isinstance(outcome, LibraError):
                    self._unreported_error = self._unreported_error or outcome
                continue
            try:  # `report`, inlined.
                callback(outcome)
            except KeyboardInterrupt:
                raise
            except BaseException:
                log.exception(_CALLBACK_FAILED)
        self._finished(size)
        self._dispatch()

    def _complete(self, callback: Callback | None, outcome: SendResult | LibraError) -> None:
        if callback is None:
            if isinstance(outcome, LibraError):
                self._unreported_error = self._unreported_error or outcome
            return
        report(callback, outcome)

    def _finished(self, size: int) -> None:
        self._buffered_bytes -= size
        if not self._buffered_bytes and self._waiting_for_all:
            waiting_for_all, self._waiting_for_all = self._waiting_for_all, []
            for flushed in waiting_for_all:
                flushed(self._take_error())
        if self._waiting_for_room and not self.is_half_full:
            waiting_for_room, self._waiting_for_room = self._waiting_for_room, []
            for ready in waiting_for_room:
                ready(None)

    def _take_error(self) -> LibraError | None:
        error, self._unreported_error = self._unreported_error, None
        return error


def _not_sent(queue: MessageQueue) -> RequestTimeout:
    return RequestTimeout(f"not sent in time: others for {queue} before it have no answer yet; send again")


def report(callback: Callback, outcome: SendResult | LibraError) -> None:
    """Call a user's callback; log any exception, even SystemExit: others of its batch wait."""
    try:
        callback(outcome)
    except KeyboardInterrupt:
        raise
    except BaseException:  # For example CancelledError, from the result of a cancelled future.
        log.exception(_CALLBACK_FAILED)
