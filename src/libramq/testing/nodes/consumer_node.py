"""The simulated consumer: the real network side of a push consumer, in virtual time.

Only its environment is simulated: handlers that take time, and a supervisor that restarts it when no name
server answers. `client.consumer_run` is replaced: it has threads and loops.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Final, TypeVar

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.local_offset_store import DIRECTORY, LocalOffsetStore
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode
from libramq.errors import LibraError
from libramq.filter.selector import Selector
from libramq.rpc import broker_calls as calls
from libramq.rpc.broker_calls import COORDINATED
from libramq.rpc.call import Call
from libramq.testing.machine.dialer import SimulatedDialer
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedTimers
from libramq.testing.nodes.handlers import Handling, SimulatedHandlers
from libramq.testing.nodes.server_assigned_queues import ServerAssignedQueues
from libramq.testing.nodes.witness import Witness
from libramq.testing.world import World

T = TypeVar("T")

#: When a consumer without an answering name server is started again, as its program would.
START_AGAIN_MS: Final = 500


@dataclass(frozen=True, slots=True)
class MemberPlan:
    """The properties of a simulated member.

    is_stock: it offers no coordination, like RocketMQ's own clients, and allocates for itself.
    asks: it is a stock one that asks for its queues instead (Java's setClientRebalance(false)).
    """

    settings: ConsumerSettings
    subscriptions: Mapping[str, Selector]
    handling: Handling
    is_stock: bool = False
    asks: bool = False


class _MemberNetwork(ConsumerNetwork):
    """The network of a member; its requests are witnessed, and it may be a stock member."""

    def __init__(self, plan: MemberPlan, witness: Witness, **parts: Any) -> None:
        self._plan = plan
        self._witness = witness
        settings = plan.settings
        assigned = ServerAssignedQueues(settings.group, settings.client_id, self.ask) if plan.asks else None
        if assigned is not None:
            settings = replace(settings, strategy=assigned.strategy)
        super().__init__(settings, plan.subscriptions, failed=fail, **parts)
        if assigned is not None:
            self._performers[fx.FetchConsumerList] = partial(
                assigned.fetch, fetched=self.core.consumer_list_fetched
            )

    def ask(
        self,
        address: str,
        call: Call[T],
        answered: Callable[[T | LibraError, MonotonicMs], Sequence[fx.Effect]],
        timeout_ms: int,
        *,
        takes_late: bool = False,
    ) -> None:
        watched = self._witness.answers_of(address, call)
        if self._plan.is_stock and call.code == RequestCode.HEART_BEAT:
            call = _stock_heartbeat(call)

        # Quoted: unions are made again whenever the function is, which took 1 % of a simulated event.
        def witnessed(outcome: "T | LibraError", now_ms: MonotonicMs) -> "Sequence[fx.Effect]":
            if isinstance(outcome, LibraError):
                self._witness.refused(call, outcome)
            elif watched is not None:
                watched(outcome)
            return answered(outcome, now_ms)

        super().ask(address, call, witnessed, timeout_ms, takes_late=takes_late)


class SimulatedConsumer:
    """One member of a group, from its process's start to its end; a `consumer_network.Run`.

    disk: its machine's, if another consumer has broadcast there before.
    """

    def __init__(
        self,
        world: World,
        name: str,
        plan: MemberPlan,
        name_servers: Sequence[str],
        *,
        disk: MemoryDisk | None = None,
    ) -> None:
        settings = plan.settings
        self.name = name
        self.plan = plan
        self.group, self.client_id = settings.group, settings.client_id
        self.is_broadcasting, self.is_orderly = settings.broadcasting, settings.orderly
        self.retries_max, self.session_ms = settings.retries_max, settings.session_ms
        self.instance_id = settings.instance_id
        self.topics = tuple(plan.subscriptions)
        self.disk = disk or MemoryDisk(world.time, world.stream(f"disk of {name}"))
        self.process = Process(name, world.time, clock=world.clock(name))
        self.joined_ms = world.time.now_ms
        self.is_stopping = False
        self._world = world
        self._name_server_addresses = name_servers
        self._witness = Witness(world, name, settings.group)
        self._random = world.stream(f"name servers of {name}")
        self.process.start()
        self._handlers = SimulatedHandlers(
            self.process, plan.handling, world.stream(name), began=self._handling_began, ended=self._handled
        )
        self.network: ConsumerNetwork = self._new_network()
        self.process.after(0, self._start)

    @property
    def audience(self) -> str:
        """Return the name under which messages are shared: its group, or its own if it broadcasts."""
        return f"{self.group}/{self.client_id}" if self.is_broadcasting else self.group

    @property
    def is_alive(self) -> bool:
        """Return whether it takes part in its group, or is about to."""
        return self.process.is_alive and not self.is_stopping

    # Start and stop.

    def stop(self, timeout_ms: int = 2_000) -> None:
        """Leave gracefully."""
        self.is_stopping = True
        self.process.do(lambda: self.network.stop(timeout_ms, self._stopped))

    def kill(self) -> None:
        """Kill it, as by SIGKILL."""
        if self.process.is_alive:
            self.process.kill()
            self.disk.process_died()
            self._world.network.died(self.process)
            self._world.history.note(self.name, "gone")

    def _start(self) -> None:
        if not self.is_stopping:
            self.network.start(self._started)

    def _started(self, failure: LibraError | None) -> None:
        if failure is not None:
            self.network = self._new_network()
            self.process.after(START_AGAIN_MS, self._start)

    def _stopped(self, _: None) -> None:
        self.process.after(0, self.kill)

    def _new_network(self) -> Any:
        world, settings = self._world, self.plan.settings
        directory = Path(f"/{DIRECTORY}")
        offsets = LocalOffsetStore(directory, self.client_id, self.group, self.disk)
        return _MemberNetwork(
            self.plan,
            self._witness,
            name_server_addresses=self._name_server_addresses,
            dialer=SimulatedDialer(world.network, self.process),
            timers=SimulatedTimers(self.process),
            clock=self.process.clock,
            randomness=self._random,
            run=self,
            stored_offsets=offsets if settings.broadcasting else None,
        )

    # Callbacks of the network.

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Run handlers."""
        for delivery in deliveries:
            self._world.history.delivered(self, delivery)
        self._handlers.deliver(deliveries)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return."""
        self._handlers.give_up(deliveries)

    def notify(self, change: fx.Assigned | fx.Revoked | fx.Lost) -> None:
        """Note changes of its queues."""
        self._world.history.owners_changed(self.name, _CHANGES[type(change)], change.queues)

    def begin_trouble(self, trouble: fx.Trouble) -> None:
        """Ignore it: there is no user."""

    def end_trouble(self, recovered: fx.Recovered) -> None:
        """Ignore it: there is no user."""

    def _handling_began(self, delivery: Delivery) -> None:
        self._world.history.handling_began(self, delivery)

    def _handled(self, delivery: Delivery, outcome: HandlerOutcome) -> None:
        if outcome is not HandlerOutcome.SKIPPED:
            self._world.history.handled(self, delivery, outcome)
        self.network.handled([(delivery, outcome)])


_CHANGES: Final[Mapping[type[Any], str]] = {
    fx.Assigned: "assigned",
    fx.Revoked: "revoked",
    fx.Lost: "lost",
}


def fail(_: str, error: Exception) -> None:
    """Let an invariant violated during an effect end the simulation."""
    raise error


def _stock_heartbeat(call: Call[Any]) -> Call[Any]:
    """Return a heartbeat that neither offers coordination nor sees the broker's offer."""
    ext = {name: value for name, value in call.ext.items() if name != COORDINATED}
    return replace(call, ext=ext, parse=lambda reply: calls.HeartbeatReply(reply.version, coordinates=False))
