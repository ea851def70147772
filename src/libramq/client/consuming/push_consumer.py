"""The push consumer: calls handlers with the messages of topics, shared with the other members of its group.

    consumer = PushConsumer(group="billing", namesrv="127.0.0.1:9876")
    consumer.subscribe("Orders", "paid || refunded", handler)
    async with consumer:
        ...

Its network side runs on its own thread, so a handler that blocks cannot delay its heartbeats.
Upstream: client/consumer/DefaultMQPushConsumer.java.
"""

from typing import Unpack

from libramq.client.consuming.consumer_run import STOPPED_IN_HANDLER, ConsumerRun
from libramq.client.consuming.group_consumer import STOP_TIMEOUT_MS, GroupConsumer, Joined
from libramq.client.consuming.handling.handlers import Handler, Handlers, check_handler, in_order, prepared
from libramq.client.options import (
    PushConsumerOptions,
    check_names,
)
from libramq.errors import ConfigError
from libramq.filter.subscription import Sql, selector
from libramq.message.message import set_deserializer
from libramq.message.names import validate_topic


class PushConsumer(GroupConsumer):
    """A member of a consumer group.

    consume_from: where a group that is new to a topic begins; committed before `start` returns.
    consume_timestamp_ms applies to TIMESTAMP.
    strategy: an allocation strategy, by name or from strategy_named, the same for all members. None: AVG for
    members that allocate for themselves, and balanced_sticky for a coordinator, which accepts names only.
    With brokers that have coordinators (LibraMQ's), the group is coordinated: each queue has exactly one
    owner at any moment, in orderly mode as well, and moves without pausing other queues. With Apache's
    brokers, or while the group has a member that allocates for itself, all members allocate for themselves.
    session_ms: after this time without a request from this member, its queues go to others (10 s). The member
    starts no handler once its coordinator has been silent for this long.
    max_processing_ms: while a handler runs longer than this (5 min), other members get the queues of this
    one, and the handler's message with an attempt counted. If there are none, its success counts.
    instance_id: makes this a static member: restarted within its session under the same name, it keeps its
    queues, and nothing moves. It must be unique in the group.
    consume_timeout_ms: messages whose handler runs longer than this (15 min) are redelivered as if it had
    failed. Other handlers run in its place; a coroutine is cancelled, a plain function cannot be. In orderly
    mode its messages may be handled again while it still runs.
    threads: how many handlers run at once. batch_size: how many messages one call of a handler gets.
    orderly: each queue is locked for one member, and its messages are handled one batch after the other; a
    batch whose handler fails is handled again after suspend_ms, and the queue waits for it.
    pop: the member owns no queues; it takes the next messages of any queue, and acknowledges each (POP). No
    message waits behind a slow one, and nothing is rebalanced. Order is not kept. invisible_ms: after this
    time (60 s) others handle the messages of a killed member; it is extended while a handler runs.
    dead_letter_errors: at LibraMQ's brokers a dead letter carries, as properties, the type of the handler's
    last exception and the first 512 characters of its text. False: neither, as texts may reveal too much.
    broadcasting: every member gets every message and keeps its own offsets in a file below local_offsets;
    messages whose handler fails are dropped. instance_name: names the file, together with the address.
    on_assigned, on_revoked, on_lost: plain or coroutine functions, called with queues, one call at a time, on
    the loop that the consumer was started on. A revoked queue is released when on_revoked has returned, at
    the latest after revoke_timeout_ms. Another member may already be handling messages of a lost queue.
    deserializer: turns the body of a message into its `value`, when the handler reads that. Its errors count
    as the handler's: the message is redelivered, and finally becomes a dead letter.
    credentials: sign the requests, for clusters with authentication (ACL). tls: connections are encrypted.
    on_error: called once at the beginning of each problem that stops deliveries: RouteNotFound (no broker has
    the topic), MemberReplaced (another client has its instance_id), NoPermission, FilterRefused (a broker
    does not filter by SQL92), RequestCodeNotSupported (a broker before 5.0 has no POP), HandlerTooSlow,
    RequestTimeout (the coordinator has not answered for session_ms), SubscriptionsDiffer (members of the
    group subscribe to different messages of a topic: each member filters its own queues, and the group skips
    all other messages). The consumer continues when the problem is over; meanwhile `wait_closed` raises
    MemberReplaced and NoPermission.
    The other options are fields of ConsumerSettings, each a whole number.
    """

    def __init__(self, **options: Unpack[PushConsumerOptions]) -> None:
        check_names(options, PushConsumerOptions.__annotations__, "PushConsumer")
        owned = ("strategy", "on_assigned", "on_revoked", "on_lost")
        if options.get("pop") and any(options.get(name) is not None for name in owned):
            raise ConfigError(
                "a consumer with pop=True owns no queues: it has no strategy and no queue hooks"
            )
        super().__init__(options)
        self._handlers: dict[str, Handler] = {}

    def subscribe(self, topic: str, expression: str | Sql, handler: Handler) -> Joined:
        """Set the handler of a topic's messages: "*" for all, "tagA || tagB", or Sql("a > 3") by properties.

        Best called before the start. A running consumer joins its group with the subscription (await the
        result to learn when, or why not); if it has joined already, it leaves the group for that moment.

        A plain function runs on a thread, a coroutine function on the loop the consumer is started on. Either
        may return an awaitable, which is awaited on that loop. None (or True) means that all messages are
        done. After an exception (or False) all of them are redelivered later, to any member of the group;
        Retry and Reject, or a list of them, name messages that are not done, to be redelivered after a delay
        or to become dead letters. Any other value is logged as an error, and all messages are redelivered.
        """
        validate_topic(topic)
        check_handler(handler, topic)
        chosen = selector(expression)
        self._handlers[topic] = handler
        return self._subscribed(topic, chosen)

    def _receiver(self, run: ConsumerRun) -> Handlers:
        handlers = self._handlers
        if self._settings.orderly:
            handlers = {topic: in_order(handler) for topic, handler in handlers.items()}
        if (deserializer := self._deserializer) is not None:
            handlers = {
                topic: prepared(handler, lambda messages: set_deserializer(messages, deserializer))
                for topic, handler in handlers.items()
            }
        return Handlers(handlers, run, self._settings)

    async def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Leave the group: running handlers finish, their messages are committed, brokers are notified.

        Handlers that outlast the timeout are abandoned; their messages are redelivered.
        A static member (instance_id) does not leave: its queues wait for it until its session is over.

        A second call waits for the first. A hook may call `stop`; further hooks, such as on_revoked, are
        called meanwhile. A handler cannot (LocalProtocolError): it would wait for itself. If the caller is
        cancelled while it waits, the consumer ends at once.
        """
        await super().stop(timeout_ms=timeout_ms)

    def refuse_stop_in_handler(self) -> None:
        """Raise LocalProtocolError if the caller is a handler of this consumer."""
        self.refuse_in_handler(STOPPED_IN_HANDLER)
