"""The push consumer: calls handlers with the messages of topics, shared with the other members of its group.

    consumer = PushConsumer(group="billing", namesrv="127.0.0.1:9876")
    consumer.subscribe("Orders", "paid || refunded", handler)
    async with consumer:
        ...

Its network side runs on its own thread, so that a handler that blocks cannot delay its heartbeats.
Upstream: client/consumer/DefaultMQPushConsumer.java.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, Self, Unpack

from libramq.balance import TopicRule, averagely, strategy_named
from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import DIRECTORY, LocalOffsetStore
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_run import ConsumerRun, Stage
from libramq.client.consuming.consumer_settings import GROUP_STRATEGY, THREADS, ConsumeFrom, ConsumerSettings
from libramq.client.consuming.handling.handlers import Handler, check_handler
from libramq.client.consuming.handling.queue_listener import ErrorHook, Hooks, QueueHook
from libramq.client.identity import local_address, name_server_addresses, named_client_id, new_client_id
from libramq.client.options import (
    Beginning,
    ConsumerTuning,
    PushConsumerOptions,
    beginning,
    check_names,
    instance_of,
    whole_number,
)
from libramq.client.routing.lookup import first_server, look_up
from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError, LocalProtocolError
from libramq.filesystem import FileSystem, LocalFileSystem
from libramq.filter.selector import Selector, Sql, selector
from libramq.logs import get_logger
from libramq.message.names import validate_group, validate_topic
from libramq.message.queue import MessageQueue
from libramq.remoting.credentials import Credentials
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.seams import Dialer
from libramq.transport.access import Access
from libramq.transport.tls import Tls

log = get_logger(__name__)

#: DefaultMQPushConsumer.consumeTimestamp: half an hour ago.
CONSUME_TIMESTAMP_AGO_MS: Final = 30 * 60 * 1000
#: Ours: how long running handlers may take while the consumer stops.
STOP_TIMEOUT_MS: Final = 10_000

#: ClientConfig.instanceName: broadcasting consumers keep it, so that the offset file is found again.
BROADCASTING_INSTANCE: Final = "DEFAULT"


class PushConsumer:
    """A member of a consumer group.

    consume_from: where a new group begins to read a queue; consume_timestamp_ms applies to TIMESTAMP.
    strategy: an allocation strategy, by name or from strategy_named, the same for all members. None: AVG for
    members that allocate for themselves, and balanced_sticky for a coordinator, which accepts names only.
    With brokers that have coordinators (LibraMQ's), the group is coordinated: each queue has exactly one
    owner at any moment, also in orderly mode, and moves without pauses for other queues. With Apache's
    brokers, or while the group has a member that allocates for itself, all members allocate for themselves.
    session_ms: after this time without a request from this member its queues go to others (10 s); the member
    starts no handler while it has not heard from its coordinator for this long.
    max_processing_ms: while a handler runs longer than this (5 min), the member leaves the group.
    instance_id: makes this a static member: restarted within its session under the same name, it keeps its
    queues, and nothing moves. It must be unique in the group.
    consume_timeout_ms: messages whose handler runs longer than this (15 min) are redelivered as if it had
    failed. Other handlers run in its place; a coroutine is cancelled, a plain function cannot be. In orderly
    mode its messages may be handled again while it still runs.
    threads: how many handlers run at once. batch_size: how many messages one call of a handler gets.
    orderly: each queue is locked for one member, and its messages are handled one batch after the other; a
    batch whose handler fails is handled again after suspend_ms, and the queue waits for it.
    broadcasting: every member gets every message and keeps its own offsets in a file below local_offsets;
    messages whose handler fails are dropped. instance_name: the name of the file, besides the address.
    on_assigned, on_revoked, on_lost: called with queues on the loop that the consumer was started on, one
    after the other; plain or coroutine functions. A revoked queue is released when on_revoked has returned,
    at the latest after revoke_timeout_ms. Messages of a lost queue may already be handled by another member.
    credentials: sign the requests, for clusters with authentication (ACL). tls: connections are encrypted.
    on_error: called once at the beginning of each problem that stops deliveries: MemberReplaced (another
    client has its instance_id), NoPermission, FilterRefused (a broker does not filter by SQL92),
    HandlerTooSlow, SubscriptionsDiffer (members of the group subscribe to different messages of a topic, and
    the group loses some). The consumer continues when the problem is over; `wait_closed` raises the first two
    meanwhile.
    tuning: further fields of ConsumerSettings, each a whole number.
    """

    def __init__(
        self,
        *,
        group: str,
        namesrv: str | Sequence[str] | None = None,
        consume_from: Beginning = ConsumeFrom.LAST_OFFSET,
        consume_timestamp_ms: int | None = None,
        strategy: str | TopicRule | None = None,
        threads: int = THREADS,
        batch_size: int = 1,
        orderly: bool = False,
        broadcasting: bool = False,
        instance_name: str | None = None,
        instance_id: str | None = None,
        local_offsets: str | Path | None = None,
        on_assigned: QueueHook | None = None,
        on_revoked: QueueHook | None = None,
        on_lost: QueueHook | None = None,
        on_error: ErrorHook | None = None,
        credentials: Credentials | None = None,
        tls: Tls | None = None,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
        filesystem: FileSystem | None = None,
        **tuning: Unpack[ConsumerTuning],
    ) -> None:
        check_names(tuning, PushConsumerOptions.__annotations__, "PushConsumer")
        self.group = validate_group(group)
        self._name_server_addresses = name_server_addresses(namesrv)
        self._clock = clock or SystemClock()
        self._random = randomness or random.Random()
        self._access = Access(credentials, tls)
        self._hooks = _hooks(on_assigned, on_revoked, on_lost, on_error)
        if broadcasting and instance_name is None:
            instance_name = BROADCASTING_INSTANCE
        self.client_id = _client_id(first_server(self._name_server_addresses), instance_name, self._clock)
        self._local_offsets: LocalOffsetStore | None = None
        if broadcasting:
            self._local_offsets = LocalOffsetStore(
                _directory(local_offsets), self.client_id, group, filesystem or LocalFileSystem()
            )
        self._settings = ConsumerSettings(
            group=group,
            client_id=self.client_id,
            consume_from=beginning(consume_from),
            consume_timestamp_ms=_timestamp_ms(consume_timestamp_ms, self._clock),
            strategy=_rule(strategy),
            group_strategy=strategy if isinstance(strategy, str) else GROUP_STRATEGY,
            instance_id=instance_id,
            threads=threads,
            batch_size=batch_size,
            orderly=orderly,
            broadcasting=broadcasting,
            has_revoke_hook=on_revoked is not None,
            **tuning,
        )
        self._filters: dict[str, Selector] = {}
        self._handlers: dict[str, Handler] = {}
        self._run: ConsumerRun | None = None

    def subscribe(self, topic: str, expression: str | Sql, handler: Handler) -> None:
        """Set the handler of a topic's messages: "*" for all, "tagA || tagB", or Sql("a > 3") by properties.

        A plain function runs on a thread, a coroutine function on the loop the consumer is started on. Either
        may return an awaitable, which is awaited on that loop. None (or True) means that all messages are
        done. After an exception (or False) all of them are redelivered later, to any member of the group;
        Retry and Reject, or a list of them, name messages that are not done, to be redelivered after a delay
        or to become dead letters. Any other value is logged as an error, and all messages are redelivered.
        """
        if self._run is not None and self._run.stage is not Stage.ENDED:
            raise LocalProtocolError("subscribe before the consumer is started")
        validate_topic(topic)
        check_handler(handler, topic)
        self._filters[topic] = selector(expression)
        self._handlers[topic] = handler

    async def start(self) -> None:
        """Join the group; raises NameServerUnavailable, after which it may be started again."""
        await look_up(self._name_server_addresses)
        if self._run is not None and self._run.stage is not Stage.ENDED:
            raise LocalProtocolError(f"this consumer {self._run.stage.value}")
        if not self._handlers:
            raise ConfigError("subscribe to a topic before starting the consumer")
        self._run = ConsumerRun(
            self.group,
            self._handlers,
            self._hooks,
            concurrency=self._settings.threads,
            network=self._network_of,
            tls=self._access.tls,
        )
        await self._run.start()

    def _network_of(self, run: ConsumerRun, dialer: Dialer) -> ConsumerNetwork:
        return ConsumerNetwork(
            self._settings,
            self._filters,
            name_server_addresses=self._name_server_addresses,
            dialer=dialer,
            timers=LoopTimers(),
            clock=self._clock,
            randomness=self._random,
            run=run,
            stored_offsets=self._local_offsets,
            access=self._access,
        )

    async def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Leave the group: running handlers finish, their messages are committed, brokers are notified.

        Handlers that run longer than the timeout are not waited for; their messages are redelivered.
        A static member (instance_id) does not leave: its queues wait for it until its session is over.
        A second call waits for the first. A hook may call it: the hooks that come of it, such as on_revoked,
        are called meanwhile. A handler cannot (LocalProtocolError): it would wait for itself. Whoever is
        cancelled while it waits has the consumer end at once.
        """
        if self._run is not None:
            await self._run.stop(timeout_ms)

    async def wait_closed(self) -> None:
        """Wait until the consumer has ended, or cannot continue.

        Returns after `stop`. Raises MemberReplaced or NoPermission while one of these keeps it out of its
        group (it still continues when that is over), and LoopClosed if its loop was closed.
        """
        if self._run is None:
            raise LocalProtocolError("this consumer was not started; use `async with` or await start()")
        await self._run.wait_closed()

    def refuse_stop_in_handler(self) -> None:
        """Raise LocalProtocolError if the caller is a handler of this consumer."""
        if self._run is not None:
            self._run.refuse_in_handler()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer owns now; none while it does not run."""
        if self._run is None or self._run.stage is not Stage.RUNNING:
            return []
        return await self._run.call(lambda network: network.core.owned())

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Start no more handlers, for the given queues or for all; the queues stay assigned.

        The pause holds until `resume`, also for queues that are assigned later.
        """
        listed = _listed(queues)
        await self._running().call(lambda network: network.pause(listed))

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the given queues, or all."""
        listed = _listed(queues)
        await self._running().call(lambda network: network.resume(listed))

    def _running(self) -> ConsumerRun:
        if self._run is None or self._run.stage is Stage.ENDED:
            raise LocalProtocolError("this consumer does not run; use `async with` or await start()")
        return self._run


def _client_id(towards: str, instance_name: str | None, clock: Clock) -> str:
    address = local_address(towards)
    return new_client_id(address, clock) if instance_name is None else named_client_id(address, instance_name)


def _timestamp_ms(consume_timestamp_ms: int | None, clock: Clock) -> int:
    if consume_timestamp_ms is None:
        return int(clock.wall_ms()) - CONSUME_TIMESTAMP_AGO_MS
    whole_number("consume_timestamp_ms", consume_timestamp_ms, 0)
    return consume_timestamp_ms


def _directory(local_offsets: str | Path | None) -> Path:
    if local_offsets is None:
        return Path.home() / DIRECTORY
    instance_of("local_offsets", local_offsets, (str, Path), "a path")
    return Path(local_offsets)


def _rule(strategy: str | TopicRule | None) -> TopicRule:
    if strategy is None:
        return averagely
    if not isinstance(strategy, str) and not callable(strategy):
        raise ConfigError(f"strategy is a name, or what strategy_named returned, not {strategy!r}")
    return strategy_named(strategy) if isinstance(strategy, str) else strategy


def _hooks(
    on_assigned: QueueHook | None,
    on_revoked: QueueHook | None,
    on_lost: QueueHook | None,
    on_error: ErrorHook | None,
) -> Hooks:
    return {
        fx.Assigned: _hook("on_assigned", on_assigned),
        fx.Revoked: _hook("on_revoked", on_revoked),
        fx.Lost: _hook("on_lost", on_lost),
        fx.Trouble: _hook("on_error", on_error),
    }


def _hook(name: str, hook: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if hook is not None and not callable(hook):
        raise ConfigError(f"{name} is a function, not {hook!r}")
    return hook


def _listed(queues: Iterable[MessageQueue] | None) -> tuple[MessageQueue, ...] | None:
    return None if queues is None else tuple(queues)
