"""The simulated consumer: the real core of a push consumer, its requests over the simulated network.

What `client.consumer_network` does on a thread and loop.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from libramq.client.consumer_requests import ConsumerRequests
from libramq.client.core import effects as fx
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.handler_result import Outcome
from libramq.client.core.process_queue import Delivery
from libramq.client.core.push_consumer_core import FAREWELL_MS, PushConsumerCore
from libramq.client.local_offset_store import DIRECTORY, LocalOffsetStore
from libramq.client.member_requests import MemberRequests
from libramq.clock import MonotonicMs, read_clock
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, TopicNotExist
from libramq.filter.tag import TagFilter
from libramq.formats.document import decode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ResetOffsetBody
from libramq.remoting.body.route import TopicRouteData
from libramq.remoting.command import Command, reply_to
from libramq.rpc import broker_calls as calls
from libramq.rpc.asking import ask
from libramq.rpc.broker_calls import COORDINATED
from libramq.rpc.call import Call
from libramq.rpc.name_server_calls import topic_route
from libramq.testing.asked_queues import AskedQueues
from libramq.testing.dialer import simulated_remotes
from libramq.testing.disk import MemoryDisk
from libramq.testing.handlers import Handling, SimulatedHandlers
from libramq.testing.name_servers import SimulatedNameServers
from libramq.testing.process import Process
from libramq.testing.witness import Witness
from libramq.testing.world import World

T = TypeVar("T")

#: How long a graceful stop may take before whoever asked for it kills the process.
STOP_MS: Final = 10_000


class SimulatedConsumer:
    """One member of a group."""

    def __init__(
        self,
        world: World,
        name: str,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, TagFilter],
        handling: Handling,
        name_servers: Sequence[str],
        *,
        is_stock: bool = False,
        asks: bool = False,
        disk: MemoryDisk | None = None,
    ) -> None:
        """is_stock: it offers no coordination, as RocketMQ's own clients, and allocates for itself.

        asks: it is a stock one that asks for its queues instead (Java's setClientRebalance(false)).
        disk: of its machine, where somebody has broadcast there before.
        """
        asked = AskedQueues(settings.group, settings.client_id, self._ask) if asks else None
        if asked is not None:
            settings = replace(settings, strategy=asked.strategy)
        self.name = name
        self.is_stock = is_stock
        self.asks = asks
        self.is_broadcasting = settings.broadcasting
        self.client_id = settings.client_id
        self.retries_max = settings.retries_max
        self.disk = disk or MemoryDisk(world.time, world.stream(f"disk of {name}"))
        self.group = settings.group
        self.topics = tuple(subscriptions)
        self.process = Process(name, world.time, clock=world.clock(name))
        self.joined_ms = world.time.now_ms
        self.is_orderly = settings.orderly
        self.session_ms = settings.session_ms
        self.instance_id = settings.instance_id
        self.is_stopping = False
        self._world = world
        self._settings = settings
        self._core = PushConsumerCore(settings, subscriptions, self.process.clock.monotonic_ms)
        self._witness = Witness(world, name, settings.group)
        self._local_offsets = LocalOffsetStore(
            Path(f"/{DIRECTORY}"), settings.client_id, settings.group, self.disk
        )
        self._running = False
        self._due_ms: MonotonicMs | None = None
        self.process.start()
        self._remotes = simulated_remotes(
            world.network, self.process, asked=self._asked, lost=self._connection_lost
        )
        self._name_servers = SimulatedNameServers(
            self._remotes, name_servers, world.stream(f"name servers of {name}")
        )
        self._handlers = SimulatedHandlers(
            self.process, handling, world.stream(name), began=self._handling_began, ended=self._handled
        )
        self._perform_one: dict[type[Any], Callable[[Any], None]] = {
            fx.FetchRoutes: self._fetch_routes,
            fx.Deliver: self._deliver,
            fx.GiveUp: lambda effect: self._handlers.give_up(effect.deliveries),
            fx.ReadOffset: self._read_offset,
            fx.StoreOffsets: lambda effect: self._local_offsets.write(effect.offsets),
            fx.Assigned: lambda effect: self._tell("assigned", effect.queues),
            fx.Revoked: lambda effect: self._tell("revoked", effect.queues),
            fx.Lost: lambda effect: self._tell("lost", effect.queues),
            fx.Trouble: lambda _: None,  # Nobody is told.
            fx.Recovered: lambda _: None,
            fx.Unregister: self._unregister,
            fx.Stopped: lambda _: self._stopped(),
        }
        requests = ConsumerRequests(settings, self._core, self.process.clock, self._ask)
        member_requests = MemberRequests(settings.group, self._core, self._ask)
        self._perform_one |= requests.by_effect() | member_requests.by_effect()
        if asked is not None:
            self._perform_one[fx.FetchConsumerList] = lambda effect: asked.fetch(effect, self._core)
        self.process.after(0, self._start)

    @property
    def core(self) -> PushConsumerCore:
        """The core, for a look at it."""
        return self._core

    @property
    def audience(self) -> str:
        """Who shares the group's messages with it: its group, or nobody else where it broadcasts."""
        return f"{self.group}/{self._settings.client_id}" if self.is_broadcasting else self.group

    @property
    def is_alive(self) -> bool:
        """Whether it takes part in its group, or means to."""
        return self.process.is_alive and not self.is_stopping

    # Its life.

    def stop(self, timeout_ms: int = 2_000) -> None:
        """Leave gracefully."""
        self.is_stopping = True

        def stop() -> None:
            self._perform(self._core.stop(self._now_ms, timeout_ms=timeout_ms))
            self.process.after(STOP_MS, self.kill)

        self.process.do(stop)

    def kill(self) -> None:
        """SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self._world.network.died(self.process)
            self._world.history.note(self.name, "gone")

    def _start(self) -> None:
        self._local_offsets.load()
        effects = self._core.start(read_clock(self.process.clock))
        self._running = True
        self._perform(effects)

    def _stopped(self) -> None:
        self._running = False
        self._remotes.close()
        self.process.after(0, self.kill)

    # Effects and events.

    @property
    def _now_ms(self) -> MonotonicMs:
        return self.process.now_ms

    def _perform(self, effects: Sequence[fx.Effect]) -> None:
        for effect in effects:
            self._perform_one[type(effect)](effect)
        self._arm()

    def _arm(self) -> None:
        due_ms = self._core.next_due_ms
        if due_ms is None or not self._running or (self._due_ms is not None and self._due_ms <= due_ms):
            return
        self._due_ms = due_ms
        self.process.after(max(0, due_ms - self._now_ms), lambda: self._tick(due_ms))

    def _tick(self, due_ms: MonotonicMs) -> None:
        if self._due_ms != due_ms:
            return  # An earlier time was set meanwhile.
        self._due_ms = None
        if self._running:
            self._perform(self._core.tick(self._now_ms))

    def _ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Any],
        timeout_ms: int,
    ) -> None:
        watched = self._witness.answers_of(address, call)
        if self.is_stock and call.code == RequestCode.HEART_BEAT:
            call = _stock_heartbeat(call)

        def done(outcome: T | LibraError) -> None:
            if self._running:
                if isinstance(outcome, LibraError):
                    self._witness.refused(call, outcome)
                elif watched is not None:
                    watched(outcome)
                self._perform(answered(outcome, self._now_ms))

        ask(self._remotes, address, call, done, timeout_ms)

    def _asked(self, _address: str, request: Command, answer: Callable[[Command], None]) -> None:
        if not self._running:
            return
        if request.code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED:
            if request.ext.get("consumerGroup") == self.group:
                self._perform(self._core.members_changed(self._now_ms))
        elif request.code == RequestCode.RESET_CONSUMER_CLIENT_OFFSET:
            if request.ext.get("group") == self.group:
                offsets = decode_body(request.body, ResetOffsetBody).offset_table
                self._perform(self._core.offsets_set(request.ext["topic"], offsets, self._now_ms))
        elif not request.is_oneway:
            answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED))

    def _connection_lost(self, address: str) -> None:
        if self._running:
            self._perform(self._core.connection_lost(address, self._now_ms))

    def _fetch_routes(self, effect: fx.FetchRoutes) -> None:
        """One topic after the other; a name server that does not answer ends the look."""
        found: dict[str, TopicRouteData | None] = dict.fromkeys(effect.topics)
        rest = list(effect.topics)

        def next_topic() -> None:
            if rest:
                topic = rest.pop(0)
                self._name_servers.ask(topic_route(topic), lambda outcome: answered(topic, outcome))
            elif self._running:
                self._perform(self._core.routes_fetched(found, self._now_ms))

        def answered(topic: str, outcome: TopicRouteData | LibraError) -> None:
            if not isinstance(outcome, LibraError):
                found[topic] = outcome
            elif not isinstance(outcome, TopicNotExist):
                rest.clear()
            next_topic()

        next_topic()

    def _read_offset(self, effect: fx.ReadOffset) -> None:
        offset = self._local_offsets.read(effect.queue)
        self._perform(
            self._core.committed_offset_answered(effect.queue, effect.generation, offset, self._now_ms)
        )

    def _unregister(self, effect: fx.Unregister) -> None:
        call = calls.unregister_client(
            self._settings.client_id, producer_group=None, consumer_group=self.group
        )
        waiting = set(effect.addresses)

        def answered_by(address: str, _: object) -> None:
            waiting.discard(address)
            if not waiting and self._running:
                self._perform(self._core.unregistered())

        for address in effect.addresses:
            ask(self._remotes, address, call, partial(answered_by, address), FAREWELL_MS)
        if not effect.addresses:
            self._perform(self._core.unregistered())

    # Handlers.

    def _deliver(self, effect: fx.Deliver) -> None:
        for delivery in effect.deliveries:
            self._world.history.delivered(self, delivery)
        self._handlers.deliver(effect.deliveries)

    def _handling_began(self, delivery: Delivery) -> None:
        self._world.history.handling_began(self, delivery)

    def _handled(self, delivery: Delivery, outcome: Outcome) -> None:
        if outcome is not Outcome.SKIPPED:
            self._world.history.handled(self, delivery, outcome)
        if self._running:
            self._perform(self._core.handled([(delivery, outcome)], self._now_ms))

    def _tell(self, what: str, queues: Sequence[MessageQueue]) -> None:
        self._world.history.owners_changed(self.name, what, queues)


def _stock_heartbeat(call: Call[Any]) -> Call[Any]:
    """A heartbeat that neither offers coordination nor hears that it is offered."""
    ext = {name: value for name, value in call.ext.items() if name != COORDINATED}
    return replace(call, ext=ext, parse=lambda reply: calls.HeartbeatReply(reply.version, coordinates=False))
