"""The client for blocking code: the asyncio classes, each with its event loop on its own thread.

    from libramq.sync import Producer

    with Producer(group="orders", namesrv="127.0.0.1:9876") as producer:
        producer.send(Message("Orders", b"..."))

Every method of the asynchronous class is available under the same name, with the same arguments and errors,
and waits for its result. The methods may be called from any thread.
"""

import asyncio
import contextlib
from typing import Unpack

from libramq.admin import admin as asynchronous_admin
from libramq.client.blocking_client import BlockingClient, anytime, blocking, calling
from libramq.client.consuming import push_consumer as asynchronous_push_consumer
from libramq.client.consuming.blocking_consumer import Consumer, joining
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS
from libramq.client.consuming.handling.queue_listener import HOOKS, on_thread
from libramq.client.options import AdminOptions, PushConsumerOptions, SimpleConsumerOptions, whole_number
from libramq.client.popping import simple_consumer as asynchronous_simple_consumer
from libramq.client.producing.blocking_producer import Producer

__all__ = ["Admin", "Consumer", "Producer", "PushConsumer", "SimpleConsumer"]


class PushConsumer(BlockingClient[asynchronous_push_consumer.PushConsumer]):
    """Calls handlers with messages; see libramq.client.PushConsumer for the options.

    session_ms, max_processing_ms, instance_id and all others mean the same here. Plain functions, both
    handlers and hooks, run on threads and may call its methods, but a handler must not call `stop`. Coroutine
    functions run on the consumer's own thread, where its methods are refused, because they would wait for
    themselves.
    """

    _advice = "make the handler or hook a plain function: it runs on a thread that may wait"
    _stops_when_dropped = False  # Its handlers may still be called.

    def __init__(self, **options: Unpack[PushConsumerOptions]) -> None:
        super().__init__("consumer")
        for name in HOOKS:
            hook = options.get(name)
            if hook is not None:
                options[name] = on_thread(hook)
        self._client = asynchronous_push_consumer.PushConsumer(**options)
        self._stop_timeout_ms = STOP_TIMEOUT_MS

    @property
    def client_id(self) -> str:
        """Return its client id, as known to brokers."""
        return self._client.client_id

    subscribe = joining(asynchronous_push_consumer.PushConsumer.subscribe)
    statistics = anytime(asynchronous_push_consumer.PushConsumer.statistics)
    pause = blocking(asynchronous_push_consumer.PushConsumer.pause)
    resume = blocking(asynchronous_push_consumer.PushConsumer.resume)

    def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Leave the group: running handlers finish, their messages are committed, brokers are notified.

        A static member (instance_id) does not leave: its queues are kept until its session expires. A handler
        cannot call this (LocalProtocolError), because it would wait for itself.
        """
        self._client.refuse_stop_in_handler()
        whole_number("timeout_ms", timeout_ms, 0)
        self._stop_timeout_ms = timeout_ms
        super().stop()

    def wait_closed(self) -> None:
        """Wait until the consumer has ended, or cannot continue.

        Returns when another thread has stopped it; raises as libramq.client.PushConsumer.wait_closed does.
        """
        thread = self._running("wait_closed")
        with contextlib.suppress(asyncio.CancelledError):  # It was stopped.
            thread.begin(self._client.wait_closed()).result()

    assignment = anytime(asynchronous_push_consumer.PushConsumer.assignment)

    async def _stop(self) -> None:
        await self._client.stop(timeout_ms=self._stop_timeout_ms)


class Admin(BlockingClient[asynchronous_admin.Admin]):
    """Queries and changes topics and groups; see libramq.client.Admin."""

    def __init__(self, **options: Unpack[AdminOptions]) -> None:
        super().__init__("admin")
        self._client = asynchronous_admin.Admin(**options)

    topics = blocking(asynchronous_admin.Admin.topics)
    groups = blocking(asynchronous_admin.Admin.groups)
    cluster_info = blocking(asynchronous_admin.Admin.cluster_info)
    topic_route = blocking(asynchronous_admin.Admin.topic_route)
    create_topic = blocking(asynchronous_admin.Admin.create_topic)
    delete_topic = blocking(asynchronous_admin.Admin.delete_topic)
    topic_stats = blocking(asynchronous_admin.Admin.topic_stats)
    consume_stats = blocking(asynchronous_admin.Admin.consume_stats)
    reset_offsets = blocking(asynchronous_admin.Admin.reset_offsets)
    reset_queue = blocking(asynchronous_admin.Admin.reset_queue)
    delete_group = blocking(asynchronous_admin.Admin.delete_group)
    consumer_connection = blocking(asynchronous_admin.Admin.consumer_connection)
    running_info = blocking(asynchronous_admin.Admin.running_info)
    consume_directly = blocking(asynchronous_admin.Admin.consume_directly)
    remove_member = blocking(asynchronous_admin.Admin.remove_member)


class SimpleConsumer(BlockingClient[asynchronous_simple_consumer.SimpleConsumer]):
    """Receives messages that are acknowledged one by one; see libramq.client.SimpleConsumer."""

    def __init__(self, **options: Unpack[SimpleConsumerOptions]) -> None:
        super().__init__("consumer")
        self._client = asynchronous_simple_consumer.SimpleConsumer(**options)

    subscribe = calling(asynchronous_simple_consumer.SimpleConsumer.subscribe)
    unsubscribe = calling(asynchronous_simple_consumer.SimpleConsumer.unsubscribe)
    statistics = anytime(asynchronous_simple_consumer.SimpleConsumer.statistics)
    receive = blocking(asynchronous_simple_consumer.SimpleConsumer.receive)
    ack = blocking(asynchronous_simple_consumer.SimpleConsumer.ack)
    change_invisible_time = blocking(asynchronous_simple_consumer.SimpleConsumer.change_invisible_time)
    nack = blocking(asynchronous_simple_consumer.SimpleConsumer.nack)
