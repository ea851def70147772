"""The client for blocking code: the same classes, each with its event loop on a thread of its own.

    from libramq.sync import Producer

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

Every method of the asynchronous class is here under its name and waits for its result; arguments and errors
are the same. They may be called from any thread.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Coroutine, Iterable, Sequence
from typing import Any, Final, Self, TypeVar

from libramq.client import admin as asynchronous_admin
from libramq.client import producer as asynchronous_producer
from libramq.client import push_consumer as asynchronous_push_consumer
from libramq.client.core.queue_selector import QueueSelector
from libramq.client.handlers import Handler
from libramq.client.network_thread import NetworkThread
from libramq.client.send_pipeline import Callback
from libramq.client.send_result import SendResult
from libramq.errors import LocalProtocolError
from libramq.message.message import Message
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ConsumerConnection, OffsetWrapper, TopicOffset
from libramq.remoting.body.route import ClusterInfo, TopicRouteData

__all__ = ["Admin", "Producer", "PushConsumer"]

#: Ours: some milliseconds of work, between which answers are heard.
TAKEN_IN_MAX: Final = 1_000

T = TypeVar("T")


class _Blocking:
    """An asynchronous client on a thread of its own."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._thread: NetworkThread | None = None

    def start(self) -> None:
        """Begin."""
        if self._thread is not None:
            raise LocalProtocolError(f"this {self._name} runs already")
        self._thread = NetworkThread(f"libramq-sync-{self._name}")
        try:
            self._wait(self._start())
        except BaseException:
            self._end_thread()
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """End."""
        if self._thread is not None:
            try:
                self._wait(self._stop())
            finally:
                self._end_thread()

    async def _start(self) -> None:
        raise NotImplementedError

    async def _stop(self) -> None:
        raise NotImplementedError

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        if self._thread is None:
            work.close()
            raise LocalProtocolError(f"this {self._name} does not run; use `with` or start()")
        return self._thread.run(work).result()

    def _end_thread(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            thread.stop()


class Producer(_Blocking):
    """Sends messages; see libramq.client.Producer for the options."""

    def __init__(self, **options: Any) -> None:
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

    def send(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
        timeout_ms: int | None = None,
    ) -> SendResult:
        """Send a message and wait until the broker has stored it."""
        return self._wait(self._producer.send(message, queue=queue, selector=selector, timeout_ms=timeout_ms))

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
    ) -> list[SendResult]:
        """Send messages of one topic together."""
        return self._wait(self._producer.send_batch(messages, queue=queue, timeout_ms=timeout_ms))

    def send_oneway(
        self, message: Message, *, queue: MessageQueue | None = None, selector: QueueSelector | None = None
    ) -> None:
        """Send a message and ask for no answer: it may be lost."""
        self._wait(self._producer.send_oneway(message, queue=queue, selector=selector))

    def send_nowait(
        self,
        message: Message,
        callback: Callback | None = None,
        *,
        queue: MessageQueue | None = None,
        selector: QueueSelector | None = None,
    ) -> None:
        """Hand a message over; it travels with others. Waits only when too much is on its way already.

        callback: called on the producer's thread, which it must not block.
        """
        thread = self._thread
        if thread is None:
            raise LocalProtocolError("this producer does not run; use `with` or start()")
        self._producer.check(message)
        self._room.wait()
        self._handed_over.append((message, callback, queue, selector))
        if not self._announced:
            self._announced = True
            thread.loop.call_soon_threadsafe(self._take_in)

    def flush(self) -> None:
        """Wait until everything given to `send_nowait` has been answered."""

        async def flush() -> None:
            self._take(len(self._handed_over))
            await self._producer.flush()

        self._wait(flush())

    def publish_queues(self, topic: str) -> tuple[MessageQueue, ...]:
        """The queues a topic can be sent to, in route order."""
        return self._wait(self._producer.publish_queues(topic))

    def _take_in(self) -> None:
        """Take some of what other threads handed over, then let others run; on the producer's thread."""
        self._take(min(len(self._handed_over), TAKEN_IN_MAX))
        if not self._handed_over:
            self._announced = False
            if not self._handed_over or self._announced:
                return
            self._announced = True  # Somebody handed over a message just before, and did not announce it.
        asyncio.get_running_loop().call_soon(self._take_in)

    def _take(self, count: int) -> None:
        for _ in range(count):
            handed_over = self._handed_over.popleft()
            try:
                self._producer.send_nowait_unbounded(*handed_over)
            except Exception as error:  # A selector of the user's may raise anything.
                self._producer.fail(handed_over[1], error)
        if not self._producer.has_room and self._room.is_set() and self._thread is not None:
            self._room.clear()
            self._thread.run(self._reopen())

    async def _reopen(self) -> None:
        try:
            await self._producer.wait_for_room()
        finally:
            self._room.set()


class PushConsumer(_Blocking):
    """Has handlers called with messages; see libramq.client.PushConsumer for the options.

    session_ms, max_processing_ms, instance_id and all others mean the same here.
    Coroutine functions run on the consumer's thread, and so do the listeners.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__("consumer")
        self._consumer = asynchronous_push_consumer.PushConsumer(**options)
        self._stop_timeout_ms = asynchronous_push_consumer.STOP_TIMEOUT_MS

    @property
    def client_id(self) -> str:
        """What brokers know it by."""
        return self._consumer.client_id

    def subscribe(self, topic: str, expression: str, handler: Handler) -> None:
        """Have a handler called with a topic's messages."""
        self._consumer.subscribe(topic, expression, handler)

    def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Begin no more handlers, of given queues or of any; they stay ours."""
        self._wait(self._consumer.pause(queues))

    def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Go on with given queues, or with all of them."""
        self._wait(self._consumer.resume(queues))

    def stop(self, *, timeout_ms: int = asynchronous_push_consumer.STOP_TIMEOUT_MS) -> None:
        """Leave the group: running handlers end, what is done is committed, brokers are told.

        A static member (instance_id) does not leave: its queues wait for it until its session is over.
        """
        self._stop_timeout_ms = timeout_ms
        super().stop()

    def assignment(self) -> list[MessageQueue]:
        """The queues that are ours now; none while the consumer does not run."""
        return [] if self._thread is None else self._wait(self._consumer.assignment())

    async def _start(self) -> None:
        await self._consumer.start()

    async def _stop(self) -> None:
        await self._consumer.stop(timeout_ms=self._stop_timeout_ms)


class Admin(_Blocking):
    """Asks and changes; see libramq.client.Admin."""

    def __init__(self, **options: Any) -> None:
        super().__init__("admin")
        self._admin = asynchronous_admin.Admin(**options)

    async def _start(self) -> None:
        await self._admin.start()

    async def _stop(self) -> None:
        await self._admin.stop()

    def topics(self) -> list[str]:
        """All topics, sorted."""
        return self._wait(self._admin.topics())

    def cluster_info(self) -> ClusterInfo:
        """All clusters and their brokers."""
        return self._wait(self._admin.cluster_info())

    def topic_route(self, topic: str) -> TopicRouteData:
        """Where a topic is."""
        return self._wait(self._admin.topic_route(topic))

    def create_topic(self, topic: str, **options: Any) -> list[str]:
        """Create a topic at every master of a cluster, or change it."""
        return self._wait(self._admin.create_topic(topic, **options))

    def delete_topic(self, topic: str, *, cluster: str | None = None) -> None:
        """Delete a topic at every master of a cluster, and its route."""
        self._wait(self._admin.delete_topic(topic, cluster=cluster))

    def topic_stats(self, topic: str) -> dict[MessageQueue, TopicOffset]:
        """The ends of a topic's queues."""
        return self._wait(self._admin.topic_stats(topic))

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        """How far a group is, queue by queue."""
        return self._wait(self._admin.consume_stats(group, topic))

    def consumer_connection(self, group: str) -> ConsumerConnection:
        """Who of a group is connected."""
        return self._wait(self._admin.consumer_connection(group))

    def remove_member(self, group: str, name: str, *, operator: str | None = None) -> None:
        """Take a member out of a coordinated group: a static one by its name, or by client id."""
        self._wait(self._admin.remove_member(group, name, operator=operator))
