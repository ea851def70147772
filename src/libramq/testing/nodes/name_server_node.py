"""The simulated name server: the real engine under the real performer, behind simulated connections."""

import random

from libramq.nameserver.config import NameServerConfig
from libramq.nameserver.engine import name_server_engine
from libramq.nameserver.route_info import RouteInfo
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from libramq.testing.history import fail_the_simulation
from libramq.testing.machine.network import simulated_remotes
from libramq.testing.machine.process import Process
from libramq.testing.machine.seams import SimulatedThreads, SimulatedTimers
from libramq.testing.world import World


class SimulatedNameServer:
    """One name server; it loses its state on a restart. number: counts from 1."""

    def __init__(self, world: World, number: int, config: NameServerConfig | None = None) -> None:
        self.name = f"namesrv-{number}"
        self.address = f"10.0.1.{number}:9876"
        self.process = Process(self.name, world.time, clock=world.clock(self.name))
        self._world = world
        self._config = config
        self.start()

    def start(self) -> None:
        """Listen, with empty tables."""
        if self.process.is_alive:
            return
        world, process = self._world, self.process
        process.start()
        self._route_info = RouteInfo()
        self._performer = performer = Performer(
            name_server_engine(self._route_info, clock=process.clock, config=self._config),
            Seams(
                remotes=simulated_remotes(world.network, process),
                timers=SimulatedTimers(process),
                threads=SimulatedThreads(process, random.Random(0), lambda _: None),
            ),
            monotonic_ms=process.clock.monotonic_ms,
            listen=lambda listening: listening(),
            failed=fail_the_simulation,
        )
        world.network.listen(self.address, process, performer)
        performer.follow()

    def route(self, topic: str) -> object:
        """Return the server's route for a topic, or None."""
        return self._route_info.route(topic) if self.process.is_alive else None

    def kill(self) -> None:
        """Kill the process."""
        self.process.kill()
        self._world.network.died(self.process)
