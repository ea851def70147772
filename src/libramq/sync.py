"""The client for blocking code: the asyncio classes, each with its event loop on its own thread.

    from libramq.sync import Producer

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

Every method of the asynchronous class is here under its name and waits for its result, with the same
arguments and errors. The methods may be called from any thread.
"""

import asyncio
import contextlib
import inspect
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError
from typing import Any, Final, Literal, Unpack

from libramq.client import admin as asynchronous_admin
from libramq.client.awaiting import awaited
from libramq.client.blocking_client import BlockingClient
from libramq.client.consuming import push_consumer as asynchronous_push_consumer
from libramq.client.consuming.handling.handlers import Handler
from libramq.client.network_thread import run_on_thread
from libramq.client.options import AdminOptions, ProducerOptions, PushConsumerOptions, TopicOptions
from libramq.client.producing import producer as asynchronous_producer
from libramq.client.producing.producer import (
    check_hand_over,
    hand_over,
    report_failure,
)
from libramq.client.producing.queue_selector import QueueSelector
from libramq.client.producing.send_pipeline import Callback
from libramq.client.producing.send_result import SendResult
from libramq.client.producing.transaction import Transaction, deciding
from libramq.errors import BufferFull, LocalProtocolError
from libramq.filter.selector import Sql
from libramq.formats.route import TopicRouteData
from libramq.logs import get_logger
from libramq.message.message import Message
from libramq.message.queue import MessageQueue
from libramq.remoting.body.administration import ConsumeDirectlyResult
from libramq.remoting.body.consumers import ConsumerConnection, OffsetWrapper, TopicOffset
from libramq.remoting.body.route import ClusterInfo
from libramq.remoting.body.running_info import ConsumerRunningInfo

__all__ = ["Admin", "Producer", "PushConsumer"]

log = get_logger(__name__)

#: Ours: some milliseconds of work, between which responses are read.
TAKEN_IN_MAX: Final = 1_000

#: The options that are called with queues; plain functions among them run on threads that may wait.
HOOKS: Final[tuple[Literal["on_assigned", "on_revoked", "on_lost", "on_error"], ...]] = (
    "on_assigned", "on_revoked", "on_lost", "on_error",
)  # fmt: skip


class Producer(BlockingClient):
    """Sends messages; see libramq.client.Producer for the options.

    Callbacks and selectors run on the producer's thread, where they may call only `send_nowait`.
    """

    _advice = "in a callback or selector, use send_nowait() instead"

    def __init__(self, **options: Unpack[ProducerOptions]) -> None:
        super().__init__("producer")
        self._producer = asynchronous_producer.Producer(**options)
        self._handed_over: deque[tuple[Message, Callback | None, MessageQueue | None, QueueSelector | None]]
        self._handed_over = deque()
        self._announced = False
        self._room = threading.Event()
        self._room.set()

    async def _start(self) -> None:
        await self._producer.start()

    async def _stop(self) -> None:
        self._take(len(self._handed_over))
        await self._producer.stop()

    def stop(self) -> None:
        """Send the buffered messages, unregister from the brokers, and close."""
        super().stop()
        if self._thread is None:
            self._announced = False
            self._room.set()
            self._fail_late_ones()

    def _fail_late_ones(self) -> None:
        """Report messages that other threads queued during the stop."""
        error = LocalProtocolError("this producer was stopped before the message was sent")
        while self._handed_over:
            _, callback, _, _ = self._handed_over.popleft()
            if callback is None:
                log.error(str(error))
            else:
                callback(error)

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it."""
        return self._wait(
            "send", self._producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms)
        )

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
        begin = self._producer._begin_transaction(message, queue, selector, timeout_ms)
        transaction = self._wait("transaction", begin)
        try:
            with deciding(transaction):
                yield transaction
        finally:
            self._wait("transaction", self._producer._transactions.end(transaction))

    def recall(self, handle: str, *, timeout_ms: int | None = None) -> None:
        """Take back a message that waits for its time, by its SendResult's recall_handle."""
        self._wait("recall", self._producer.recall(handle, timeout_ms=timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together."""
        return self._wait(
            "send_batch", self._producer.send_batch(messages, queue=queue, timeout_ms=timeout_ms)
        )

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Send a message without waiting for a response: it may be lost."""
        self._wait("send_oneway", self._producer.send_oneway(message, queue=queue, selector=selector))

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
        thread = self._thread
        if thread is None or thread.is_parents:
            thread = self._running("send_nowait")
        self._producer.check(message)
        check_hand_over(callback, queue)
        if thread.is_current:
            if len(self._handed_over) >= TAKEN_IN_MAX or not self._producer.has_room:
                raise BufferFull(
                    "the send buffer is full, and a callback or selector, which runs on the "
                    "producer's own thread, cannot wait for room"
                )
        else:
            self._room.wait()
        handed_over = (message, callback, queue, selector)
        self._handed_over.append(handed_over)
        if not self._announced:
            self._announced = True
            try:
                thread.call_soon(self._take_in)
            except LocalProtocolError:
                with contextlib.suppress(ValueError):  # Reported already, as queued too late.
                    self._handed_over.remove(handed_over)
                    raise

    def flush(self) -> None:
        """Wait until everything passed to `send_nowait` has been answered."""

        async def flush() -> None:
            self._take(len(self._handed_over))
            await self._producer.flush()

        self._wait("flush", flush())

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """Return the queues to which a topic's messages can be sent, in route order."""
        return self._wait("publish_queues", self._producer.publish_queues(topic))

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
                hand_over(self._producer, *handed_over)
            except Exception as error:  # A user's selector may raise anything.
                report_failure(self._producer, handed_over[1], error)
        if not self._producer.has_room and self._room.is_set() and self._thread is not None:
            self._room.clear()
            self._thread.run(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self._producer.wait_for_room()
        finally:
            self._room.set()


class PushConsumer(BlockingClient):
    """Calls handlers with messages; see libramq.client.PushConsumer for the options.

    session_ms, max_processing_ms, instance_id and all others mean the same here. Plain functions, handlers
    and hooks, run on threads and may call its methods (a handler not `stop`). Coroutine functions run on the
    consumer's own thread, where its methods are refused: they would wait for themselves.
    """

    _advice = "make the handler or hook a plain function: it runs on a thread that may wait"

    def __init__(self, **options: Unpack[PushConsumerOptions]) -> None:
        super().__init__("consumer")
        for name in HOOKS:
            hook = options.get(name)
            if hook is not None:
                options[name] = on_thread(hook)
        self._consumer = asynchronous_push_consumer.PushConsumer(**options)
        self._stop_timeout_ms = asynchronous_push_consumer.STOP_TIMEOUT_MS

    @property
    def client_id(self) -> str:
        """Return the client id by which brokers know it."""
        return self._consumer.client_id

    def subscribe(self, topic: str, expression: str | Sql, handler: Handler) -> None:
        """Set the handler of a topic's messages."""
        self._consumer.subscribe(topic, expression, handler)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no more handlers, for the given queues or for all; the queues stay assigned."""
        self._wait("pause", self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the given queues, or all."""
        self._wait("resume", self._consumer.resume(queues))

    def stop(self, *, timeout_ms: int = asynchronous_push_consumer.STOP_TIMEOUT_MS) -> None:
        """Leave the group: running handlers finish, their messages are committed, brokers are notified.

        A static member (instance_id) does not leave: its queues are kept for it until its session expires.
        A handler cannot call it (LocalProtocolError): it would wait for itself.
        """
        self._consumer.refuse_stop_in_handler()
        self._stop_timeout_ms = timeout_ms
        super().stop()

    def wait_closed(self) -> None:
        """Wait until the consumer has ended, or cannot continue.

        Returns when another thread has stopped it; raises as libramq.client.PushConsumer.wait_closed does.
        """
        thread = self._running("wait_closed")
        with contextlib.suppress(CancelledError, asyncio.CancelledError):  # It was stopped.
            thread.run(self._consumer.wait_closed()).result()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer owns now; none while it does not run."""
        return [] if self._thread is None else self._wait("assignment", self._consumer.assignment())

    async def _start(self) -> None:
        await self._consumer.start()

    async def _stop(self) -> None:
        await self._consumer.stop(timeout_ms=self._stop_timeout_ms)


class Admin(BlockingClient):
    """Queries and changes topics and groups; see libramq.client.Admin."""

    def __init__(self, **options: Unpack[AdminOptions]) -> None:
        super().__init__("admin")
        self._admin = asynchronous_admin.Admin(**options)

    async def _start(self) -> None:
        await self._admin.start()

    async def _stop(self) -> None:
        await self._admin.stop()

    def topics(self) -> list[str]:
        """Return all topics, sorted."""
        return self._wait("topics", self._admin.topics())

    def cluster_info(self) -> ClusterInfo:
        """Return all clusters and their brokers."""
        return self._wait("cluster_info", self._admin.cluster_info())

    def topic_route(self, topic: str) -> TopicRouteData:
        """Return a topic's route."""
        return self._wait("topic_route", self._admin.topic_route(topic))

    def create_topic(self, topic: str, **options: Unpack[TopicOptions]) -> list[str]:
        """Create a topic at every master of a cluster, or change it."""
        return self._wait("create_topic", self._admin.create_topic(topic, **options))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every master of a cluster, and its route."""
        self._wait("delete_topic", self._admin.delete_topic(topic, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """Return the first and last offsets of a topic's queues."""
        return self._wait("topic_stats", self._admin.topic_stats(topic))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """Return a group's progress, queue by queue."""
        return self._wait("consume_stats", self._admin.consume_stats(group, topic))

    def reset_offsets(
        self, group: str, topic: str, timestamp_ms: int = -1, *, force: bool = True
    ) -> dict[MessageQueue, int]:
        """Set a group's offsets in a topic to a time (-1: the end); return where it continues."""
        return self._wait("reset_offsets", self._admin.reset_offsets(group, topic, timestamp_ms, force=force))

    def reset_queue(
        self, group: str, queue: MessageQueue, offset: int | None = None, *, timestamp_ms: int = -1
    ) -> int:
        """Move a group in one queue to an offset, else to a time (-1: the end)."""
        return self._wait(
            "reset_queue", self._admin.reset_queue(group, queue, offset, timestamp_ms=timestamp_ms)
        )

    def delete_group(self, group: str, *, cluster: str | None = None, offsets: bool = False) -> list[str]:
        """Delete a consumer group at every master of a cluster; offsets: and how far it was."""
        return self._wait("delete_group", self._admin.delete_group(group, cluster=cluster, offsets=offsets))

    def consumer_connection(self, group: str) -> ConsumerConnection:
        """Return the connected members of a group."""
        return self._wait("consumer_connection", self._admin.consumer_connection(group))

    def running_info(self, group: str, client_id: str, *, threads: bool = False) -> ConsumerRunningInfo:
        """Return a member's running info: its settings, subscriptions and queues."""
        return self._wait("running_info", self._admin.running_info(group, client_id, threads=threads))

    def consume_directly(self, group: str, client_id: str, message_id: str) -> ConsumeDirectlyResult:
        """Have a member process one message again, by its offset id."""
        return self._wait("consume_directly", self._admin.consume_directly(group, client_id, message_id))

    def remove_member(self, group: str, name: str, *, operator: str | None = None) -> None:
        """Remove a member from a coordinated group: a static one by its name, or any by its client id."""
        self._wait("remove_member", self._admin.remove_member(group, name, operator=operator))


def on_thread(hook: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a plain function so that it runs on a thread; a coroutine function is returned as it is."""
    if not callable(hook) or inspect.iscoroutinefunction(hook):
        return hook

    async def call(*arguments: Any) -> Any:
        return await awaited(await run_on_thread(hook, *arguments))

    return call
