"""The blocking producer: the asyncio one on its own thread, which `send_nowait` feeds from any thread.

send_nowait ─► handed over ─► taken in, some at a time, on the producer's thread ─► its pipeline
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import Any, Final, TypeVar, Unpack

from libramq.client.blocking_client import BlockingClient, anytime, blocking
from libramq.client.network_thread import Latch
from libramq.client.producing import producer as asynchronous_producer
from libramq.client.producing.producer import check_hand_over, hand_over, is_full, report_failure
from libramq.client.producing.producer_settings import ProducerOptions
from libramq.client.producing.queue_selector import QueueSelector
from libramq.client.producing.send_pipeline import Callback, report
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.transactions import Transaction, deciding, log_unknown_end
from libramq.errors import BufferFull, InvalidState, LocalProtocolError
from libramq.logs import get_logger
from libramq.message.message import Message, MessageExt, snapshot
from libramq.message.queue import MessageQueue

log = get_logger(__name__)
T = TypeVar("T")

#: Ours: how many messages are taken in before responses are read: some milliseconds of work.
TAKEN_IN_MAX: Final = 1_000


class Producer(BlockingClient[asynchronous_producer.Producer]):
    """Sends messages; see libramq.client.Producer for the options.

    Callbacks and selectors run on the producer's thread, where they may call only `send_nowait`.
    """

    _advice = "in a callback or selector, use send_nowait() instead"

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        super().__init__("producer")
        self._client = asynchronous_producer.Producer(**options)
        self._handed_over: deque[tuple[Message, Callback | None, MessageQueue | None, QueueSelector | None]]
        self._handed_over = deque()
        self._announced = False
        #: Set when there is room again; None while there is.
        self._room: Latch | None = None

    @property
    def group(self) -> str:
        """Return the producer group."""
        return self._client.group

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client."""
        return self._client.client_id

    async def _stop(self) -> None:
        self._take(len(self._handed_over))
        await self._client.stop()

    def stop(self) -> None:
        """Send the buffered messages, unregister from the brokers, and close."""
        super().stop()
        if self._thread is None:
            self._announced = False
            self._has_room()
            self._fail_late_ones()

    def _fail_late_ones(self) -> None:
        """Report messages that other threads queued during the stop."""
        error = InvalidState("this producer was stopped before the message was sent")
        while self._handed_over:
            _, callback, _, _ = self._handed_over.popleft()
            if callback is None:
                log.error(str(error))
            else:
                report(callback, error)

    def serialized(self, message: Message | str, value: object = None) -> Message:
        """Return the message to send; see libramq.client.Producer.serialized."""
        return self._client.serialized(message, value)

    def send(
        self,
        message: Message | str,
        value: object = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it."""
        message = self.serialized(message, value)
        send = partial(self._client.send, message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        return self._wait_in_order("send", send, queue, selector)

    def request(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> MessageExt:
        """Send a message as a request, and return the reply that a consumer of its topic sends."""
        message = self.serialized(message)
        reply = partial(self._client.request, message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        return self._wait_in_order("request", reply, queue, selector)

    reply = blocking(asynchronous_producer.Producer.reply)
    recall = blocking(asynchronous_producer.Producer.recall)
    statistics = anytime(asynchronous_producer.Producer.statistics)
    publish_queues = blocking(asynchronous_producer.Producer.publish_queues)

    @contextlib.contextmanager
    def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> Iterator[Transaction]:
        """Send a message that is delivered only if the block succeeds."""
        begin = self._client._begin_transaction(message, queue, selector, timeout_ms)
        transaction = self._wait("transaction", begin)
        try:
            with deciding(transaction):
                yield transaction
        finally:
            try:
                self._wait("transaction", self._client._end_transaction(transaction))
            except LocalProtocolError as error:  # Stopped within the block; its own error counts.
                log_unknown_end(transaction, error)

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together."""
        send = partial(self._client.send_batch, messages, queue=queue, timeout_ms=timeout_ms)
        return self._wait_in_order("send_batch", send, queue)

    def send_oneway(
        self,
        message: Message | str,
        value: object = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Send a message without waiting for a response: it may be lost."""
        message = self.serialized(message, value)
        send = partial(self._client.send_oneway, message, queue=queue, selector=selector)
        self._wait_in_order("send_oneway", send, queue, selector)

    def send_nowait(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Queue a message for sending in a batch. Waits only while the buffer is full.

        callback: called on the producer's thread, which it must not block.
        """
        life = self._life
        thread = None if life is None else life.thread
        if thread is None or thread.is_parents:
            thread = self._running("send_nowait")
        message = self._client.serialized(message)
        self._client.check(message)
        check_hand_over(message, callback, queue)
        message = snapshot(message)
        if thread.is_current:
            if len(self._handed_over) >= TAKEN_IN_MAX or is_full(self._client):
                raise BufferFull(
                    "the send buffer is full, and a callback or selector, which runs on the "
                    "producer's own thread, cannot wait for room"
                )
        elif (room := self._room) is not None:
            room.wait()
        handed_over = (message, callback, queue, selector)
        self._handed_over.append(handed_over)
        if not self._announced:
            self._announced = True
            try:
                thread.call_soon(self._take_in)
            except LocalProtocolError:
                self._announced = False
                with contextlib.suppress(ValueError):  # Reported already, as queued too late.
                    self._handed_over.remove(handed_over)
                    raise
            except BaseException:  # From a signal handler: the next message is announced.
                self._announced = False
                raise

    def flush(self) -> None:
        """Wait until everything passed to `send_nowait` has been answered."""

        async def flush() -> None:
            self._take(len(self._handed_over))
            await self._client.flush()

        self._wait("flush", flush())

    def _wait_in_order(
        self,
        what: str,
        send: Callable[[], Coroutine[Any, Any, T]],
        *chosen: MessageQueue | QueueSelector | None,
    ) -> T:
        """Send and wait; to a chosen queue, behind earlier messages of `send_nowait`."""

        async def behind() -> T:
            self._take(len(self._handed_over))
            return await send()

        is_any = all(each is None for each in chosen)
        return self._wait(what, send() if is_any else behind())

    def _take_in(self) -> None:
        """Send some of the messages queued by other threads, then yield; on the producer's thread."""
        self._take(min(len(self._handed_over), TAKEN_IN_MAX))
        if not self._handed_over:
            self._announced = False
            if not self._handed_over or self._announced:
                return
            self._announced = True  # A message may have been queued just before, without an announcement.
        asyncio.get_running_loop().call_soon(self._take_in)

    def _take(self, count: int) -> None:
        for _ in range(count):
            handed_over = self._handed_over.popleft()
            try:
                hand_over(self._client, *handed_over)
            except BaseException as error:  # A user's selector may raise anything, SystemExit included.
                report_failure(self._client, handed_over[1], error)
        if not self._client.has_room and self._room is None and self._thread is not None:
            self._room = Latch()
            self._thread.run(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self._client.wait_for_room()
        finally:
            self._has_room()

    def _has_room(self) -> None:
        room, self._room = self._room, None
        if room is not None:
            room.set()
