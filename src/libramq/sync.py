"""The client for blocking code: the asyncio classes, each with its event loop on its own thread.

    from libramq.sync import Producer

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

Every method of the asynchronous class is here under its name and waits for its result, with the same
arguments and errors. The methods may be called from any thread.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack

from libramq.admin import admin as asynchronous_admin
from libramq.client.blocking_client import BlockingClient
from libramq.client.consuming import push_consumer as asynchronous_push_consumer
from libramq.client.consuming.blocking_consumer import Consumer
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS
from libramq.client.consuming.handling.handlers import Handler
from libramq.client.consuming.handling.queue_listener import HOOKS, on_thread
from libramq.client.options import AdminOptions, PushConsumerOptions, SimpleConsumerOptions
from libramq.client.popping import simple_consumer as asynchronous_simple_consumer
from libramq.client.popping.simple_consumer import AWAIT_MS, INVISIBLE_MS, POP_MESSAGES_MAX
from libramq.client.producing.blocking_producer import Producer
from libramq.filter.subscription import Sql
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

P = ParamSpec("P")
T = TypeVar("T")

__all__ = ["Admin", "Consumer", "Producer", "PushConsumer", "SimpleConsumer"]


class PushConsumer(BlockingClient):
    """Calls handlers with messages; see libramq.client.PushConsumer for the options.

    session_ms, max_processing_ms, instance_id and all others mean the same here. Plain functions, handlers
    and hooks, run on threads and may call its methods (a handler not `stop`). Coroutine functions run on the
    consumer's own thread, where its methods are refused: they would wait for themselves.
    """

    _advice = "make the handler or hook a plain function: it runs on a thread that may wait"
    _stops_when_dropped = False  # Its handlers are still called.

    def __init__(self, **options: Unpack[PushConsumerOptions]) -> None:
        super().__init__("consumer")
        for name in HOOKS:
            hook = options.get(name)
            if hook is not None:
                options[name] = on_thread(hook)
        self._consumer = asynchronous_push_consumer.PushConsumer(**options)
        self._stop_timeout_ms = STOP_TIMEOUT_MS

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

    def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
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
        with contextlib.suppress(asyncio.CancelledError):  # It was stopped.
            thread.begin(self._consumer.wait_closed()).result()

    def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer owns now; none while it does not run."""
        return [] if self._thread is None else self._wait("assignment", self._consumer.assignment())

    async def _start(self) -> None:
        await self._consumer.start()

    async def _stop(self) -> None:
        await self._consumer.stop(timeout_ms=self._stop_timeout_ms)


def _blocking(
    method: Callable[Concatenate[asynchronous_admin.Admin, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate["Admin", P], T]:
    """Return a method of the asynchronous admin as one that waits for its result."""

    @wraps(method)
    def wait(self: "Admin", /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method.__name__, method(self._admin, *args, **kwargs))

    return wait


class Admin(BlockingClient):
    """Queries and changes topics and groups; see libramq.client.Admin."""

    def __init__(self, **options: Unpack[AdminOptions]) -> None:
        super().__init__("admin")
        self._admin = asynchronous_admin.Admin(**options)

    async def _start(self) -> None:
        await self._admin.start()

    async def _stop(self) -> None:
        await self._admin.stop()

    topics = _blocking(asynchronous_admin.Admin.topics)
    cluster_info = _blocking(asynchronous_admin.Admin.cluster_info)
    topic_route = _blocking(asynchronous_admin.Admin.topic_route)
    create_topic = _blocking(asynchronous_admin.Admin.create_topic)
    delete_topic = _blocking(asynchronous_admin.Admin.delete_topic)
    topic_stats = _blocking(asynchronous_admin.Admin.topic_stats)
    consume_stats = _blocking(asynchronous_admin.Admin.consume_stats)
    reset_offsets = _blocking(asynchronous_admin.Admin.reset_offsets)
    reset_queue = _blocking(asynchronous_admin.Admin.reset_queue)
    delete_group = _blocking(asynchronous_admin.Admin.delete_group)
    consumer_connection = _blocking(asynchronous_admin.Admin.consumer_connection)
    running_info = _blocking(asynchronous_admin.Admin.running_info)
    consume_directly = _blocking(asynchronous_admin.Admin.consume_directly)
    remove_member = _blocking(asynchronous_admin.Admin.remove_member)


class SimpleConsumer(BlockingClient):
    """Receives messages, which are acknowledged one by one; see libramq.client.SimpleConsumer."""

    def __init__(self, **options: Unpack[SimpleConsumerOptions]) -> None:
        super().__init__("consumer")
        self._consumer = asynchronous_simple_consumer.SimpleConsumer(**options)

    async def _start(self) -> None:
        await self._consumer.start()

    async def _stop(self) -> None:
        await self._consumer.stop()

    def subscribe(self, topic: str, expression: str | Sql = "*") -> None:
        """Receive a topic's messages: all, those with tags, or those that an Sql selects."""
        self._consumer.subscribe(topic, expression)

    def unsubscribe(self, topic: str) -> None:
        """Receive a topic's messages no longer."""
        self._consumer.unsubscribe(topic)

    def receive(
        self,
        max_messages: int = POP_MESSAGES_MAX,
        *,
        invisible_ms: int = INVISIBLE_MS,
        await_ms: int = AWAIT_MS,
    ) -> list[MessageExt]:
        """Return up to max_messages, at most 1,024; none if none came within await_ms."""
        received = self._consumer.receive(max_messages, invisible_ms=invisible_ms, await_ms=await_ms)
        return self._wait("receive", received)

    def ack(self, messages: MessageExt | Iterable[MessageExt]) -> None:
        """Acknowledge one message, or several by few requests."""
        self._wait("ack", self._consumer.ack(messages))

    def change_invisible_time(self, message: MessageExt, invisible_ms: int) -> None:
        """Have a message invisible for so long from now on."""
        self._wait("change_invisible_time", self._consumer.change_invisible_time(message, invisible_ms))

    def nack(self, message: MessageExt, *, delay_ms: int = 0) -> None:
        """Give a message back, to be received again at once or after delay_ms."""
        self._wait("nack", self._consumer.nack(message, delay_ms=delay_ms))
