"""The producer, as programs use it: `send`, `send_nowait`, `transaction`, `request`; which arguments they
refuse, how long `stop` waits, and the state after a fork.

    async with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        result = await producer.send(Message("Orders", b"...", keys="17"))

`send` waits for the broker's response; `send_nowait` collects messages into batches and is meant for many.
Upstream: client/producer/DefaultMQProducer.java.
"""

import asyncio
import contextlib
import inspect
import os
import random
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from typing import Final, Unpack, cast

from libramq.client.awaiting import answer_of, to_the_end
from libramq.client.identity import Identity, name_server_addresses
from libramq.client.options import AsyncClient, check_function, check_names, whole_number
from libramq.client.producing.accumulator import split, unique_ids
from libramq.client.producing.producer_network import ProducerNetwork, wanted_queue
from libramq.client.producing.producer_settings import GROUP, ProducerOptions, settings_of
from libramq.client.producing.queue_selector import QueueSelector, check_queue
from libramq.client.producing.request_reply import reply_topic
from libramq.client.producing.send_pipeline import Callback
from libramq.client.producing.send_request import check_batch, content_of, prepare_batch, prepare_one
from libramq.client.producing.send_result import SendResult, SendStatus
from libramq.client.producing.transactions import (
    Transaction,
    TransactionChecks,
    TransactionState,
    deciding,
    log_unknown_end,
)
from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.client.routing.routes import look_up
from libramq.client.statistics import ProducerStatistics
from libramq.clock import MonotonicMs, SystemClock
from libramq.codes import ResponseCode
from libramq.errors import BufferFull, ConfigError, InvalidMessage, InvalidState, LibraError, broker_error
from libramq.message.ids import UniqueIdGenerator, decode_recall_handle
from libramq.message.message import Message, MessageExt
from libramq.message.names import validate_group
from libramq.message.queue import MessageQueue
from libramq.message.validation import validate
from libramq.remoting.headers import RecallMessageHeader
from libramq.rpc.broker_calls import recall_message
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.transport.access import client_access
from libramq.transport.asyncio_remotes import SocketDialer, other_loop, running_loop

#: The parent's networks, kept in a forked child: dropping a socket may end the parent's reading.
_parents: Final[list[ProducerNetwork]] = []
_NOT_RUNNING: Final = "this producer does not run; use `async with` or await start()"


class AwaitedSends:
    """Counts the sends whose callers await them: a stop lets them end.

    A send costs a sixth of a microsecond; `contextlib.contextmanager` would cost more.
    """

    __slots__ = ("_count", "_none_left")

    def __init__(self) -> None:
        self._count = 0
        self._none_left: asyncio.Event | None = None

    def __enter__(self) -> None:
        self._count += 1

    def __exit__(self, *_: object) -> None:
        self._count -= 1
        if not self._count and self._none_left is not None:
            self._none_left.set()

    async def wait_none(self, timeout_ms: int) -> None:
        """Wait until no send is awaited, or the time is over."""
        if self._count:
            self._none_left = asyncio.Event()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(timeout_ms / 1000):
                    await self._none_left.wait()


class Producer(AsyncClient):
    """Sends messages. One per process is enough; it belongs to the event loop it was started on.

    namesrv: "host:port", several separated by ";"; default: NAMESRV_ADDR, else 127.0.0.1:9876.
    retries: further attempts, at other brokers, within send_timeout_ms.
    latency_fault: avoid brokers that were slow or failed, for the times of back_off_table.
    linger_ms: how long `send_nowait` waits for more messages. buffer_bytes_max: how much may wait.
    serializer: turns a value other than bytes into a body, bytes or text: `Producer(serializer=json.dumps)`.
    check_transaction: returns the outcome of a transaction that was left open; see `transaction`.
    credentials: sign the requests, for clusters with authentication (ACL). tls: connections are encrypted.
    """

    _network: ProducerNetwork
    _message_ids: UniqueIdGenerator

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        check_names(options, ProducerOptions.__annotations__, "Producer")
        self.group = validate_group(options.setdefault("group", GROUP))
        self._name_servers = name_server_addresses(options.get("namesrv"))
        self._clock = options.get("clock") or SystemClock()
        self._identity = Identity(self._name_servers, self._clock)
        self._settings = settings_of(options)
        check = options.get("check_transaction")
        if check is not None:
            check_function("check_transaction", check)
        self._serializer = options.get("serializer")
        if self._serializer is not None:
            check_function("serializer", self._serializer)
        self._access = client_access(options.get("credentials"), options.get("tls"))
        self._random = options.get("randomness")
        self._check = check
        self._checks: TransactionChecks | None = None
        #: Whether it was started and not stopped yet.
        self._is_running = self._was_started = self._stopping = False
        self._awaited = AwaitedSends()
        _producers.add(self)

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client; it changes in a forked child."""
        return self._identity.client_id

    async def start(self) -> None:
        """Start; brokers are contacted when there is something to send."""
        await look_up(self._name_servers)
        if self._is_running or self._stopping:
            state = "is being stopped" if self._stopping else "runs already"
            raise InvalidState(f"this producer {state}")
        self._loop = asyncio.get_running_loop()
        self._dialer = SocketDialer(self._access.tls)
        randomness = self._random or random.Random()  # Not earlier: forked children would draw alike.
        self._checks = None if self._check is None else TransactionChecks(self._check)
        self._message_ids = UniqueIdGenerator(self._identity.ip, os.getpid(), self._clock, randomness)
        self._network = ProducerNetwork(
            replace(self._settings, client_id=self._identity.client_id),
            name_server_addresses=self._name_servers,
            dialer=self._dialer,
            timers=LoopTimers(),
            clock=self._clock,
            randomness=randomness,
            ids=self._message_ids,
            access=self._access,
            check=self._checks.ask if self._checks is not None else None,
        )
        self._network.start()
        self._is_running = self._was_started = True

    async def stop(self) -> None:
        """Send the buffered messages, unregister from the brokers, and close.

        Awaited sends end first, if they take no longer than send_timeout_ms.
        """
        if not self._is_running:
            return
        self._require_loop()
        self._is_running, self._stopping = False, True
        flushed = asyncio.ensure_future(self._flush())
        await to_the_end(self._end_after(flushed), flushed.cancel)

    async def _flush(self) -> None:
        """Wait until all sends have been answered, the awaited ones for send_timeout_ms at most."""
        _, error = await asyncio.gather(
            self._awaited.wait_none(self._settings.send_timeout_ms),
            answer_of(self._network.pipeline.flush),
            return_exceptions=True,
        )
        if error is not None:
            raise error

    async def _end_after(self, flushed: asyncio.Future[None]) -> None:
        try:
            await flushed
        finally:
            try:
                if self._checks is not None:
                    await self._checks.stop()
                await answer_of(self._network.stop)
                await self._dialer.wait_closed()
            finally:
                self._stopping = False

    def serialized(self, message: Message | str, value: object = None) -> Message:
        """Return the message to send, of a topic and a value or as given, with its body serialized."""
        if isinstance(message, str):
            message = Message(message, cast(bytes, value))
        elif value is not None:
            raise ConfigError("a value goes with the name of a topic: send(topic, value)")
        if (
            self._serializer is None
            or not isinstance(message, Message)
            or isinstance(message.body, bytes | bytearray | memoryview)
        ):
            return message
        try:
            body = self._serializer(message.body)
            if isinstance(body, str):
                body = body.encode()
        except Exception as error:
            raise InvalidMessage(
                f"the serializer cannot make a body for topic {message.topic}: {error!r}"
            ) from error
        if not isinstance(body, bytes | bytearray | memoryview):
            if inspect.iscoroutine(body):
                body.close()
            raise InvalidMessage(
                f"the serializer must return bytes or a text for topic {message.topic}, not "
                f"{type(body).__name__}"
            )
        return replace(message, body=body)

    async def send(
        self,
        message: Message | str,
        value: object = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it; raises LibraError.

        `send(topic, value)` sends a value without tags and keys.
        """
        return await self._send(self.serialized(message, value), queue, selector, timeout_ms)

    async def _send(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
        *,
        is_half: bool = False,
    ) -> SendResult:
        validate(message, self._settings.body_bytes_max)
        began_ms = self._clock.monotonic_ms()
        with self._awaited:
            info = await self._publish_info(message.topic)
            left_ms = self._left_ms(timeout_ms, began_ms)
            send = partial(
                self._network.send,
                message,
                info,
                queue=queue,
                selector=selector,
                timeout_ms=left_ms,
                is_half=is_half,
            )
            results: Sequence[SendResult] = await answer_of(send)
        return results[0]

    async def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message as a request, and return the reply that a consumer of its topic sends (`reply`).

        Raises RequestTimeout if no reply arrives in time (send_timeout_ms by default), and the errors of
        `send`.
        """
        message = self.serialized(message)
        validate(message, self._settings.body_bytes_max)
        began_ms = self._clock.monotonic_ms()
        with self._awaited:
            info = await self._publish_info(message.topic)
            left_ms = self._left_ms(timeout_ms, began_ms)
            request = partial(
                self._network.request, message, info, queue=queue, selector=selector, timeout_ms=left_ms
            )
            return await answer_of(request)

    async def reply(
        self,
        request: MessageExt,
        body: object,
        *,
        tags: str | None = None,
        keys: str | Sequence[str] = (),
        properties: dict[str, str] | None = None,
        timeout_ms: int | None = None,
    ) -> None:
        """Reply to a message that a client sent as a request; returns when that client has the reply.

        Raises ConfigError if it is not a request, and BrokerError if its client has left or does not answer.
        """
        value = cast(bytes, body)
        message = Message(reply_topic(request), value, tags=tags, keys=keys, properties=properties or {})
        message = self.serialized(message)
        validate(message, self._settings.body_bytes_max)
        began_ms = self._clock.monotonic_ms()
        with self._awaited:
            info = await self._publish_info(message.topic)
            left_ms = self._left_ms(timeout_ms, began_ms)
            await answer_of(partial(self._network.reply, request, message, info, timeout_ms=left_ms))

    @asynccontextmanager
    async def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> AsyncIterator[Transaction]:
        """Send a message that is delivered only if the block succeeds.

        The block begins when the broker has stored the message, and does the work that belongs to it; an
        error rolls the message back. After a cancellation, or if it does not learn the outcome, the broker
        asks `check_transaction`. Raises LibraError, before the block, if the message was not stored as
        safely as the broker promises, and LocalProtocolError without `check_transaction`.
        """
        transaction = await self._begin_transaction(message, queue, selector, timeout_ms)
        try:
            with deciding(transaction):
                yield transaction
        finally:
            await self._end_transaction(transaction)

    async def _begin_transaction(
        self,
        message: Message,
        queue: MessageQueue | None,
        selector: QueueSelector | None,
        timeout_ms: int | None,
    ) -> Transaction:
        self._require_running()
        message = self.serialized(message)
        if self._checks is None:
            raise InvalidState(
                "a producer with transactions needs Producer(check_transaction=…): brokers ask it how a "
                "transaction ended whose producer died"
            )
        result = await self._send(message, queue, selector, timeout_ms, is_half=True)
        transaction = Transaction(message, result)
        if result.status is not SendStatus.SEND_OK:
            transaction.rollback()
            await self._end_transaction(transaction)
            raise broker_error(
                ResponseCode[result.status.name],
                "the message was stored less safely than the broker promises, and is rolled back",
            )
        return transaction

    async def _end_transaction(self, transaction: Transaction) -> None:
        """Commit or roll back; if that fails, the broker will ask."""
        state, timeout_ms = transaction.state, self._settings.send_timeout_ms
        if state is TransactionState.UNKNOWN:
            return
        end = partial(self._network.end_transaction, transaction.result, state, timeout_ms=timeout_ms)
        try:
            await answer_of(end)
        except LibraError as error:
            log_unknown_end(transaction, error)

    async def recall(self, handle: str, *, timeout_ms: int | None = None) -> None:
        """Recall a message that is still delayed (`delay_ms`, `deliver_at`), by its `recall_handle`.

        Raises ConfigError for an invalid handle, and BrokerError if the broker does not recall messages
        (`recallMessageEnable`) or the delay is over.
        """
        if handle == "":
            raise ConfigError(
                "the recall_handle is empty: the message has neither delay_ms nor deliver_at, or its broker "
                "recalls none (RocketMQ before 5.3)"
            )
        recalled = decode_recall_handle(handle) if isinstance(handle, str) else None
        if recalled is None:
            raise ConfigError(f"{handle!r} is not the recall_handle of a SendResult")
        await self._publish_info(recalled.topic)
        header = RecallMessageHeader(
            topic=recalled.topic, recall_handle=handle, producer_group=self._settings.group
        )
        ask = self._network.sender.ask
        left_ms = self._left_ms(timeout_ms, self._clock.monotonic_ms())
        await answer_of(partial(ask, recalled.broker_name, recall_message(header), timeout_ms=left_ms))

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together: in one request, or as many as their size requires."""
        check_batch(messages)
        messages = [*map(self.serialized, messages)]
        for message in messages:
            validate(message, self._settings.body_bytes_max)
        if queue is not None:
            check_queue("the queue", queue, messages[0])
        topic = messages[0].topic
        with self._awaited:
            info = await self._publish_info(topic)
            ids = self._message_ids
            contents = [content_of(message, ids) for message in messages]
            results = []
            for run in split(contents):
                prepared = prepare_batch(topic, contents[run], unique_ids(contents[run], ids))
                left_ms = self._left_ms(timeout_ms, self._clock.monotonic_ms())
                send = partial(self._network.send_prepared, prepared, info, queue, timeout_ms=left_ms)
                results += await answer_of(send)
        return results

    async def send_oneway(
        self,
        message: Message | str,
        value: object = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message without waiting for a response: it may be lost."""
        message = self.serialized(message, value)
        validate(message, self._settings.body_bytes_max)
        info = await self._publish_info(message.topic)
        queue = wanted_queue(message, info, queue, selector)
        prepared = prepare_one(
            message, self._message_ids, compress_over_bytes=self._settings.compress_over_bytes
        )
        self._network.send_oneway(prepared, info, queue)

    def send_nowait(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Queue a message for sending in a batch. Raises BufferFull if the buffer is full.

        callback: called with the SendResult or the LibraError. Errors of messages without a callback are
        raised by the next `flush`.
        """
        if self._serializer is not None:
            message = self.serialized(message)
        if (
            queue is None
            and selector is None
            and self._is_running
            and self._network.pipeline.joins_batch(message, callback)
        ):
            return
        self._require_loop()  # Only here: it takes 0.1 µs, too long for each message that joins a batch.
        check_hand_over(message, callback, queue)
        validate(message, self._settings.body_bytes_max)
        pipeline = self._network.pipeline
        if pipeline.is_full:
            raise BufferFull(
                f"{pipeline.buffered_bytes} bytes wait to be sent; await wait_for_room() or flush()"
            )
        pipeline.send(message, callback, queue, selector)

    def check(self, message: Message) -> None:
        """Raise InvalidMessage for a message that no broker would accept."""
        self._require_running()
        validate(message, self._settings.body_bytes_max)

    @property
    def has_room(self) -> bool:
        """Return whether `wait_for_room` would return at once; `send_nowait` accepts messages for longer."""
        if not self._was_started:
            raise InvalidState(_NOT_RUNNING)
        return self._network.pipeline.has_room

    async def statistics(self) -> ProducerStatistics:
        """Return the counts since the start, and the current work."""
        if not self._was_started:
            return ProducerStatistics()
        counts = self._network.sender.counts
        return ProducerStatistics(
            in_flight=counts.in_flight,
            buffered_bytes=self._network.pipeline.buffered_bytes,
            sent=counts.sent,
            failed=counts.failed,
            retries=counts.retries,
            requests=counts.requests,
            request_ms=counts.milliseconds,
        )

    async def flush(self) -> None:
        """Wait until everything passed to `send_nowait` has been answered."""
        self._require_loop()
        await answer_of(self._network.pipeline.flush)

    async def wait_for_room(self) -> None:
        """Wait until `send_nowait` accepts more messages."""
        self._require_loop()
        pipeline = self._network.pipeline
        if pipeline.take_pause():
            await asyncio.sleep(0)
        if pipeline.is_half_full:
            await answer_of(pipeline.when_half_empty)

    async def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to which a topic's messages can be sent, in route order."""
        return (await self._publish_info(topic)).queues

    async def _publish_info(self, topic: str) -> TopicPublishInfo:
        """Return the queues of a topic to send to, fetched on first use."""
        self._require_loop()
        info = self._network.routes.table.published.get(topic)
        if info is not None and info.queues:
            return info
        return await answer_of(partial(self._network.routes.publish_info, topic))

    def _left_ms(self, timeout_ms: int | None, began_ms: MonotonicMs) -> int:
        """Return how much time is left for a send, at least 1 ms."""
        if timeout_ms is not None:
            whole_number("timeout_ms", timeout_ms, 1)
        budget_ms = self._settings.send_timeout_ms if timeout_ms is None else timeout_ms
        return max(1, budget_ms - (self._clock.monotonic_ms() - began_ms))

    def _require_running(self) -> None:
        """Raise LocalProtocolError unless the producer runs."""
        if not self._is_running:
            raise InvalidState(_NOT_RUNNING)

    def _require_loop(self) -> None:
        """Raise LocalProtocolError unless the producer runs, and on this event loop."""
        if not self._is_running:
            raise InvalidState(_NOT_RUNNING)
        if running_loop() is not self._loop:
            raise InvalidState(other_loop("producer"))


def check_hand_over(message: Message, callback: object, queue: object) -> None:
    """Raise ConfigError for an invalid callback or queue of `send_nowait`; other errors as `check_queue`."""
    if callback is not None and not callable(callback):
        raise ConfigError(f"the callback is a function, not {callback!r}")
    if queue is not None:
        check_queue("the queue", queue, message)


def hand_over(
    producer: Producer,
    message: Message,
    callback: Callback | None,
    queue: MessageQueue | None,
    selector: QueueSelector | None,
) -> None:
    """Queue a message as `send_nowait` does, for internal callers that have called `check` and `has_room`."""
    pipeline = producer._network.pipeline
    if queue is not None or selector is not None or not pipeline.joins_batch(message, callback):
        pipeline.send(message, callback, queue, selector)


def is_full(producer: Producer) -> bool:
    """Return whether `send_nowait` would raise BufferFull."""
    return producer._network.pipeline.is_full


def report_failure(producer: Producer, callback: Callback | None, error: BaseException) -> None:
    """Report a message that could not be queued, as `send_nowait` reports one that was not sent."""
    producer._network.pipeline.fail(callback, error)


_producers: Final[weakref.WeakSet[Producer]] = weakref.WeakSet()


def _forked() -> None:
    """Stop all producers in the child: a message would wait for a batch that only the parent sends."""
    for producer in list(_producers):
        if producer._is_running:
            _parents.append(producer._network)
        producer._is_running = False


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
