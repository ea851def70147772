"""The faults of masters with slaves: either ends for a while, or both hear nothing of each other."""

from functools import partial
from typing import Final

from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.nodes.slave_node import SimulatedSlave
from libramq.testing.scenarios.happening import Happening
from libramq.testing.scenarios.operations import Operations
from libramq.testing.world import World

#: How long a master is away: long enough for members to turn to its slave.
AWAY_MS_MIN: Final = 2_000
AWAY_MS_MAX: Final = 8_000
#: A slave that acts looks for its master every 3 s, and then asks for routes.
ACTING_AWAY_MS: Final = (5_000, 20_000)


class SlaveFaults(Operations):
    """Performs these faults, each on one master and its slave."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        super().__init__(world, cluster, groups)
        self._slaves = world.stream("slaves")  # A separate stream: seeds keep their histories.

    def end_master(self) -> None:
        """Kill a master, or cut its power, while its slave serves."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            master = slave.master
            is_power = self._slaves.random() < 0.5
            self._happened(Happening.MASTER_AWAY, master.name)
            self._disturb(f"{master.name} {'loses power' if is_power else 'is killed'}, for {away_ms} ms")
            (master.cut_power if is_power else master.kill)()
            self._later(away_ms, master.start)

    def end_slave(self) -> None:
        """Kill a slave, or cut its power."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            is_power = self._slaves.random() < 0.5
            self._disturb(f"{slave.name} {'loses power' if is_power else 'is killed'}, for {away_ms} ms")
            (slave.cut_power if is_power else slave.kill)()
            self._later(away_ms, slave.start)

    def part_slave(self) -> None:
        """Separate a slave from its master, while all other processes reach both."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            self._happened(Happening.SLAVE_APART, slave.name)
            self._disturb(f"{slave.name} and its master are apart for {away_ms} ms")
            ends = (slave.name, slave.master.name)
            for source, target in (ends, ends[::-1]):
                self._world.network.block(source, target, keeps=False)
                self._later(away_ms, partial(self._world.network.unblock, source, target))

    def _slave(self) -> SimulatedSlave | None:
        slaves = list(self._cluster.slaves.values())
        return self._slaves.choice(slaves) if slaves else None

    def _away_ms(self) -> int:
        is_long = self._cluster.has_acting_slaves
        return self._slaves.randint(*(ACTING_AWAY_MS if is_long else (AWAY_MS_MIN, AWAY_MS_MAX)))
