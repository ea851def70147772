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
#: How long a master is away whose acting slave ends, when that does, and for how long if there is one.
LONG_AWAY_MS: Final = (25_000, 45_000)
ACTS_MS: Final = (8_000, 15_000)
SLAVE_AWAY_MS: Final = (500, 4_000)
#: Name servers drop a broker after 10 s, where slaves act.
FROZEN_MS: Final = (12_000, 45_000)
#: How often a slave that is away long is frozen: its master waits for it in vain for 20 s.
FROZEN_CHANCE: Final = 0.3


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

    def end_acting(self) -> None:
        """End a master, and its slave once that acts; where there is a second slave, that one acts on."""
        slave, is_power = self._slave(), self._slaves.random() < 0.5
        away_ms, acts_ms = self._slaves.randint(*LONG_AWAY_MS), self._slaves.randint(*ACTS_MS)
        back_ms = self._slaves.randint(*SLAVE_AWAY_MS)
        end = self._slaves.choice((SimulatedSlave.stop, SimulatedSlave.kill, SimulatedSlave.cut_power))
        if slave is None:
            return
        master = slave.master
        self._disturb(f"{master.name} {'loses power' if is_power else 'is killed'}, for {away_ms} ms")
        (master.cut_power if is_power else master.kill)()
        self._later(away_ms, master.start)
        if self._cluster.second_slaves:
            back_ms = away_ms

        def end_slave() -> None:
            if not self._ended and slave.process.is_alive and not master.process.is_alive:
                self._happened(Happening.ACTING_ENDED, slave.name)
                self._disturb(f"acting {slave.name} ends, for {back_ms} ms")
                end(slave)
                self._later(back_ms, slave.start)

        self._later(acts_ms, end_slave)

    def freeze_master(self) -> None:
        """Freeze a master until others have taken it for dead."""
        slave, frozen_ms = self._slave(), self._slaves.randint(*FROZEN_MS)
        if slave is not None and slave.master.process.is_alive:
            self._happened(Happening.MASTER_FROZE, slave.master.name)
            self._disturb(f"{slave.master.name} freezes for {frozen_ms} ms")
            slave.master.process.pause()
            self._later(frozen_ms, slave.master.process.resume)

    def lose_slave(self) -> None:
        """Kill or freeze a slave for long: its SYNC_MASTER can confirm nothing."""
        slave, away_ms = self._slave(), self._slaves.randint(*ACTING_AWAY_MS)
        is_frozen = self._slaves.random() < FROZEN_CHANCE
        if slave is not None:
            self._disturb(f"{slave.name} {'freezes' if is_frozen else 'is killed'}, for {away_ms} ms")
            (slave.process.pause if is_frozen else slave.kill)()
            self._later(away_ms, slave.process.resume if is_frozen else slave.start)

    def _slave(self) -> SimulatedSlave | None:
        slaves = list(self._cluster.slaves.values())
        return self._slaves.choice(slaves) if slaves else None

    def _away_ms(self) -> int:
        is_long = self._cluster.has_acting_slaves
        return self._slaves.randint(*(ACTING_AWAY_MS if is_long else (AWAY_MS_MIN, AWAY_MS_MAX)))
