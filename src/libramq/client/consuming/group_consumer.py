"""The base of push and fetching consumers: options, where a group begins, and how long `stop` waits.

Its network side runs on its own thread, so user code that blocks cannot delay its heartbeats.
"""

import asyncio
import random
from collections.abc import Callable, Generator, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

from libramq.balance import TopicRule, averagely, strategy_named
from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import DIRECTORY, LocalOffsetStore
from libramq.client.consuming.consumer_network import ConsumerNetwork, Run
from libramq.client.consuming.consumer_run import (
    STOPPED_IN_HANDLER,
    ConsumerRun,
    HandlerCounts,
    Stage,
)
from libramq.client.consuming.consumer_settings import GROUP_STRATEGY, ConsumerSettings
from libramq.client.consuming.handling.handlers import Receiver
from libramq.client.consuming.handling.queue_listener import Hooks, call_hook
from libramq.client.identity import Identity, name_server_addresses
from libramq.client.options import (
    AsyncClient,
    ConsumeFrom,
    GroupConsumerOptions,
    beginning,
    check_function,
    instance_of,
    whole_number,
)
from libramq.client.routing.routes import look_up
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError, InvalidState, LibraError
from libramq.filesystem import LocalFileSystem
from libramq.filter.subscription import Selector
from libramq.logs import get_logger
from libramq.message.names import validate_group
from libramq.message.queue import MessageQueue
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.seams import Dialer
from libramq.transport.access import client_access
from libramq.transport.asyncio_remotes import other_loop, running_loop

log = get_logger(__name__)
T = TypeVar("T")

#: DefaultMQPushConsumer.consumeTimestamp: half an hour ago.
CONSUME_TIMESTAMP_AGO_MS: Final = 30 * 60 * 1000
#: Ours: how long running handlers may take while the consumer stops.
STOP_TIMEOUT_MS: Final = 10_000

#: ClientConfig.instanceName: broadcasting consumers keep it, so that the offset file is found again.
BROADCASTING_INSTANCE: Final = "DEFAULT"


AWAITED_IN_HANDLER: Final = (
    "awaiting subscribe() in a handler would wait for the handler itself; call it without await: the "
    "consumer joins its group again when the handler has returned"
)
#: Ours: programs that start a consumer before they subscribe have subscribed by then.
WITHOUT_TOPICS_S: Final = 5.0
#: The stages in which a run takes no calls.
_BETWEEN: Final = (Stage.STARTING, Stage.ENDED)


class Joined:
    """Returned by `subscribe`: awaited, it waits until the consumer is a member with the subscription."""

    def __init__(self, consumer: "GroupConsumer") -> None:
        self._consumer = consumer

    def __await__(self) -> Generator[Any, None, None]:
        self._consumer.refuse_in_handler(AWAITED_IN_HANDLER)
        return self._consumer.wait_joined().__await__()


class GroupConsumer(AsyncClient):
    """A consumer from its options to its end. further: settings that are not options."""

    def __init__(self, options: GroupConsumerOptions, **further: Any) -> None:
        if "group" not in options:
            raise ConfigError("a consumer needs a group")
        self.group = validate_group(options["group"])
        self._name_server_addresses = name_server_addresses(options.get("namesrv"))
        self._clock = options.get("clock") or SystemClock()
        self._random = options.get("randomness")
        self._access = client_access(options.get("credentials"), options.get("tls"))
        self._hooks = _hooks(options)
        self._deserializer = options.get("deserializer")
        if self._deserializer is not None:
            check_function("deserializer", self._deserializer)
        instance_name = options.get("instance_name")
        if options.get("broadcasting") and instance_name is None:
            instance_name = BROADCASTING_INSTANCE
        self._identity = Identity(self._name_server_addresses, self._clock, instance_name)
        self._filesystem = options.get("filesystem") or LocalFileSystem()
        self._directory = _directory(options.get("local_offsets"))
        self._local_offsets: LocalOffsetStore | None = None
        strategy = options.get("strategy")
        chosen = {name: value for name, value in options.items() if name in ConsumerSettings.__annotations__}
        chosen |= {
            "client_id": "",  # Set by each run: see `Identity`.
            "consume_from": beginning(options.get("consume_from", ConsumeFrom.LAST_OFFSET)),
            "consume_timestamp_ms": _timestamp_ms(options.get("consume_timestamp_ms"), self._clock),
            "strategy": _rule(strategy),
            "group_strategy": strategy if isinstance(strategy, str) else GROUP_STRATEGY,
            "has_assigned_hook": options.get("on_assigned") is not None,
            "has_revoke_hook": options.get("on_revoked") is not None,
        }
        self._settings = ConsumerSettings(**chosen | further)  # type: ignore[arg-type]
        self._filters: dict[str, Selector] = {}
        self._run: ConsumerRun | None = None
        self.is_subscribed = self._has_chosen = self._is_stopped = False
        #: Joins the group with subscriptions made since the start.
        self._joining: asyncio.Task[LibraError | None] | None = None
        self._has_new_subscriptions = self._has_joined = False
        self._failure: LibraError | None = None
        self._counts = HandlerCounts()

    @property
    def client_id(self) -> str:
        """Return the id by which brokers know this client; it changes in a forked child, unless named."""
        return self._identity.client_id

    def _subscribed(self, topic: str, chosen: Selector) -> "Joined":
        """Add a subscription; a running consumer joins its group, again if it has joined already."""
        is_running = self._joining is not None or (
            self._run is not None and self._run.stage not in (Stage.STOPPING, Stage.ENDED)
        )
        if is_running and running_loop() is not self._loop:
            raise InvalidState(other_loop("consumer"))
        self._filters = {**self._filters, topic: chosen}
        self.is_subscribed = True
        if is_running:
            self._has_new_subscriptions = True
            if self._joining is None:
                self._joining = asyncio.get_running_loop().create_task(self._join_again())
        return Joined(self)

    async def _join_again(self) -> LibraError | None:
        """Join with all subscriptions of one turn of the loop, and with later ones; return the failure.

        If no name server answers, the run keeps reading its topics, and the next subscription joins with
        this one.
        """
        assert self._run is not None, "a consumer that joins again was started"
        failure: LibraError | None = None
        try:
            while self._has_new_subscriptions and not self._is_stopped:
                self._has_new_subscriptions = False
                if self._has_joined:
                    await self._run.answer(ConsumerNetwork.find_name_server)
                await self._run.stop(STOP_TIMEOUT_MS)
                if not self._is_stopped:
                    await self._begin_run()
        except LibraError as error:
            failure = error
            if self._run.stage is not Stage.RUNNING:
                self._failure = error
        finally:
            self._joining = None
        if failure is not None:
            log.error("the consumer could not join its group", group=self.group, reason=str(failure))
            hook = self._hooks[fx.Trouble]
            if hook is not None:  # It may stop the consumer, and a stop waits for a join.
                await call_hook(hook, fx.Trouble(failure, keeps_out=True))
        return failure

    def refuse_in_handler(self, why: str) -> None:
        """Raise InvalidState if the caller is a handler."""
        if self._run is not None:
            self._run.refuse_in_handler(why)

    @property
    def is_joining(self) -> bool:
        """Return whether the consumer is joining its group with new subscriptions."""
        return self._joining is not None

    async def wait_joined(self) -> None:
        """Wait until the consumer has joined with its new subscriptions; raises the failure."""
        joining = self._joining
        if joining is not None:
            await asyncio.wait([joining])
            if (error := joining.result()) is not None:
                raise error
        if self._failure is not None:
            raise self._failure

    async def start(self) -> None:
        """Join the group; raises NameServerUnavailable, after which it may be started again.

        Without subscriptions the consumer joins at the first `subscribe`.
        """
        await look_up(self._name_server_addresses)
        if self._run is not None and (self._run.stage is not Stage.ENDED or self._joining is not None):
            raise InvalidState(f"this consumer {self._run.stage.value}")
        self._loop = asyncio.get_running_loop()
        self._is_stopped, self._failure, self._counts = False, None, HandlerCounts()
        await self._begin_run()
        if not self._has_topics:
            self._loop.call_later(WITHOUT_TOPICS_S, self._warn_without_topics)

    @property
    def _has_topics(self) -> bool:
        return self.is_subscribed or self._has_chosen

    def _warn_without_topics(self) -> None:
        if not self._has_topics and self._run is not None and self._run.stage is Stage.RUNNING:
            log.warning("the consumer has no subscription, and reads nothing", group=self.group)

    async def _begin_run(self) -> None:
        self._settings = replace(self._settings, client_id=self.client_id, assigns=not self.is_subscribed)
        self._run = ConsumerRun(
            self.group,
            self._hooks,
            receiver=self._receiver,
            network=self._network_of,
            tls=self._access.tls,
            counts=self._counts,
            monotonic_ms=self._clock.monotonic_ms,
        )
        await self._run.start()
        self._has_joined = self.is_subscribed

    def _receiver(self, run: ConsumerRun) -> Receiver:
        """Return the receiver of a run's messages."""
        raise NotImplementedError

    def _network_of(self, run: Run, dialer: Dialer) -> ConsumerNetwork:
        if self._settings.broadcasting:
            self._local_offsets = LocalOffsetStore(
                self._directory, self.client_id, self.group, self._filesystem
            )
        return ConsumerNetwork(
            self._settings,
            self._filters,
            stored_offsets=self._local_offsets,
            name_server_addresses=self._name_server_addresses,
            dialer=dialer,
            timers=LoopTimers(),
            clock=self._clock,
            randomness=self._random or random.Random(),  # Created by each run: see `Identity`.
            run=run,
            access=self._access,
        )

    async def stop(self, *, timeout_ms: int = STOP_TIMEOUT_MS) -> None:
        """Leave the group."""
        whole_number("timeout_ms", timeout_ms, 0)
        if self._run is None:
            return
        self._run.refuse_in_handler(STOPPED_IN_HANDLER)
        self._is_stopped = True
        await self._run.stop(timeout_ms)
        joining = self._joining
        if joining is not None and joining is not asyncio.current_task():
            await asyncio.wait([joining])

    async def wait_closed(self) -> None:
        """Wait until the consumer has ended, or cannot continue.

        Returns after `stop`. Raises MemberReplaced or NoPermission while one of these keeps it out of its
        group (it continues when that is over), and LoopClosed if its loop was closed.
        """
        if self._run is None:
            raise InvalidState("this consumer was not started; use `async with` or await start()")
        self.require_topics()
        run = None
        while run is not self._run:
            run = self._run
            await run.wait_closed()
            await self.wait_joined()

    async def assignment(self) -> list[MessageQueue]:
        """Return the queues that this consumer owns; none while it does not run."""
        if self._run is None or self._run.stage is not Stage.RUNNING:
            return []
        return await self._run.call(lambda network: network.core.owned())

    async def statistics(self) -> ConsumerStatistics:
        """Return the counts since the start, and the current work."""
        is_running = self._run is not None and self._run.stage is Stage.RUNNING
        return self._counts.snapshot(
            await self._call(lambda network: network.core.work()) if is_running else ConsumerStatistics()
        )

    def require_topics(self) -> None:
        """Raise InvalidState if the consumer has nothing to read."""
        if not self._has_topics:
            raise InvalidState("this consumer has no subscription; call subscribe(topic, …) first")

    async def pause(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Stop delivering messages of the given queues, or of all; the queues stay assigned.

        The pause holds until `resume`, even for queues that are assigned later.
        """
        listed = None if queues is None else message_queues("pause()", queues)
        await self._call(lambda network: network.pause(listed))

    async def resume(self, queues: Iterable[MessageQueue] | None = None) -> None:
        """Continue the given queues, or all."""
        listed = None if queues is None else message_queues("resume()", queues)
        await self._call(lambda network: network.resume(listed))

    async def _call(self, function: Callable[[ConsumerNetwork], T]) -> T:
        """Call a function with the network, on its thread."""
        return await (await self._settled_run()).call(function)

    async def _settled_run(self) -> ConsumerRun:
        """Return the run; while a new one replaces it, wait for the new one."""
        if self._joining is not None and self._run is not None and self._run.stage in _BETWEEN:
            await self.wait_joined()
        return self._running()

    def _running(self) -> ConsumerRun:
        if self._run is None or self._run.stage is Stage.ENDED:
            if self._failure is not None:
                raise self._failure
            raise InvalidState("this consumer does not run; use `async with` or await start()")
        return self._run


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


def _hooks(options: GroupConsumerOptions) -> Hooks:
    return {
        fx.Assigned: _hook("on_assigned", options.get("on_assigned")),
        fx.Revoked: _hook("on_revoked", options.get("on_revoked")),
        fx.Lost: _hook("on_lost", options.get("on_lost")),
        fx.Trouble: _hook("on_error", options.get("on_error")),
    }


def _hook(name: str, hook: Callable[[Any], Any] | None) -> Callable[[Any], Any] | None:
    if hook is not None:
        check_function(name, hook)
    return hook


def message_queues(method: str, queues: Iterable[MessageQueue]) -> tuple[MessageQueue, ...]:
    """Return the queues that a method is called with; raises ConfigError for anything else.

    A single MessageQueue is itself a tuple, and would otherwise count as three queues.
    """
    if isinstance(queues, MessageQueue | str) or not isinstance(queues, Iterable):
        raise ConfigError(f"{method} takes several MessageQueues, not {queues!r}; for one pass [queue]")
    chosen = tuple(queues)
    for queue in chosen:
        instance_of(f"a queue of {method}", queue, MessageQueue, "a MessageQueue")
    return chosen
