"""The faults: members that join and leave, and all failures. Each ends by itself, or with `end`."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Final

from libramq.clock import MonotonicMs
from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.machine.air import Weather
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.scenarios.happening import Happening
from libramq.testing.scenarios.kafka_faults import KafkaFaults
from libramq.testing.world import World

#: How long brokers are down, members frozen, links dead.
DOWN_MS_MAX: Final = 4_000
PAUSE_MS_MAX: Final = 15_000
BLOCK_MS_MAX: Final = 14_000  # Longer than a session.
SPLIT_MS_MIN: Final = 2_000  # Longer than a coordinator waits for fences.
TROUBLE_MS_MAX: Final = 3_000
BOUNCE_MS_MAX: Final = 3_000
JOIN_MANY: Final = 20
JOIN_HUNDRED: Final = 100
MEMBERS_MAX: Final = 30
#: How soon to check again whether a process is gone.
AGAIN_MS: Final = 100
#: By how much a clock is set: to the right time, or to a wrong one.
SET_MS_MAX: Final = 3_600_000
#: How often all clocks are set, forward and back, or back and forward, and how soon after each other.
SWING_CHANCE: Final = 0.5
SWING_MS_MAX: Final = 1_500
#: Below what a delay may be wrong by (StoredMoments): nothing notices it.
SLEWED_MS_MAX: Final = 45


class Faults(KafkaFaults):
    """Performs faults on a cluster, one after the other; targets are drawn when they happen."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        super().__init__(world, cluster, groups)
        self._frozen_ms: dict[str, MonotonicMs] = {}

    def happen(self, name: str) -> None:
        """Perform one fault."""
        if not self._ended:
            ACTIONS[name](self)

    def end(self) -> None:
        """End all faults; each group has a member then."""
        self._ended = True
        self.undo()
        network, cluster = self._world.network, self._cluster
        network.weather = Weather()
        for source, target in list(network.blocked):
            network.unblock(source, target)
        for name_server in cluster.name_servers:
            name_server.start()
        for broker in (*cluster.brokers.values(), *cluster.every_slave):
            broker.process.resume()
            broker.disk.heal()
            broker.start()
        for member in cluster.members:
            self._wake_up(member)
        for group in self._groups:
            for number, topics in enumerate(group.topics):
                if not any(member.topics == topics for member in cluster.alive(group.name)):
                    cluster.join(group, number)

    # Members.

    def join(self) -> None:
        """Start a member."""
        if len(self._cluster.alive()) < MEMBERS_MAX:
            self._cluster.join(self._random.choice(self._groups))

    def join_many(self) -> None:
        """Start many members at once."""
        plan = self._random.choice(self._groups)
        for _ in range(min(JOIN_MANY, MEMBERS_MAX - len(self._cluster.alive()))):
            self._cluster.join(plan)

    def join_hundred(self) -> None:
        """Start a hundred members, as in a deployment; most of them leave again soon."""
        plan = self._random.choice(self._groups)
        self._happened(Happening.HUNDRED, plan.name)
        come = [self._cluster.join(plan) for _ in range(JOIN_HUNDRED)]
        for member in come[len(come) // 10 :]:
            self._later(self._random.randint(500, 1_500), partial(_go, member))

    def stop(self) -> None:
        """Stop a member gracefully."""
        member = self._member()
        if member is not None:
            self._happened(Happening.LEFT)
            self._world.history.note(member.name, "stops")
            member.stop()

    def kill(self) -> None:
        """Kill a member."""
        member = self._member()
        if member is not None:
            self._happened(Happening.KILLED)
            self._disturb(f"{member.name} is killed")
            member.kill()

    def pause(self) -> None:
        """Freeze a member for a while; it returns as a zombie."""
        member = self._member()
        if member is not None:
            pause_ms = self._random.randint(10, PAUSE_MS_MAX)
            self._disturb(f"{member.name} freezes for {pause_ms} ms")
            member.process.pause()
            self._frozen_ms[member.name] = self._cluster.now_ms
            self._later(pause_ms, partial(self._wake_up, member))

    def _wake_up(self, member: SimulatedConsumer) -> None:
        if not member.process.is_paused:
            return
        if (
            self._cluster.now_ms - self._frozen_ms[member.name] > member.session_ms
            and not member.plan.is_stock
        ):
            self._happened(Happening.ZOMBIE, member.name)
        member.process.resume()

    def flap(self) -> None:
        """Stop and start a member several times."""
        plan = self._random.choice(self._groups)
        self._disturb("a member flaps")
        self._happened(Happening.FLAPPED)
        at_ms = 0
        for _ in range(self._random.randint(2, 5)):
            at_ms += self._random.randint(20, 800)
            leaves_ms = self._random.randint(1, 600)
            self._later(at_ms, partial(self._come_and_go, plan, leaves_ms))

    def bounce(self) -> None:
        """Kill or stop a member, and start it again soon: a static one in its own place."""
        member = self._member()
        if member is None:
            return
        plan = next(group for group in self._groups if group.name == member.group)
        away_ms = self._random.randint(1, BOUNCE_MS_MAX)
        self._disturb(f"{member.name} starts again after {away_ms} ms")
        (member.kill if self._random.random() < 0.5 else member.stop)()
        self._later(away_ms, lambda: self._come_back(plan, member))

    def _come_back(self, plan: GroupPlan, member: SimulatedConsumer) -> None:
        if member.is_broadcasting and member.process.is_alive:  # Its file is still in use.
            self._later(AGAIN_MS, lambda: self._come_back(plan, member))
        elif not self._ended:
            if member.instance_id is not None:
                self._happened(Happening.CAME_BACK, member.instance_id)
            self._cluster.join(plan, instead_of=member)

    def stop_stock(self) -> None:
        """Stop the stock members of a group, so that ours remain."""
        group = self._random.choice(self._groups).name
        members = self._cluster.alive(group)
        if any(not member.plan.is_stock for member in members):
            for member in members:
                if member.plan.is_stock:
                    member.stop()

    def _come_and_go(self, plan: GroupPlan, leaves_ms: int) -> None:
        if self._ended:
            return
        member = self._cluster.join(plan)
        go = member.kill if self._random.random() < 0.5 else member.stop
        self._world.time.at(self._world.time.now_ms + leaves_ms, lambda: go() if member.is_alive else None)

    def kill_popper(self) -> None:
        """Kill a member of the group that pops, and start another one."""
        alive = [member for member in self._cluster.pop_members if member.is_alive]
        if alive:
            member = self._pops.choice(alive)
            self._disturb(f"{member.name} is killed")
            member.kill()
            self._cluster.join_pops()

    # Servers.

    def restart_broker(self) -> None:
        """Stop a broker gracefully, and start it again."""
        self._happened(Happening.RESTARTED)
        self._down("restarts", SimulatedBroker.stop)

    def kill_broker(self) -> None:
        """Kill a broker."""
        self._happened(Happening.BROKER_KILLED)
        self._down("is killed", SimulatedBroker.kill)

    def cut_power(self) -> None:
        """Cut the power of a broker's machine."""
        self._happened(Happening.POWER_CUT)
        self._down("loses power", SimulatedBroker.cut_power)

    def cut_off_broker(self) -> None:
        """End a broker in the middle of its work with its disk."""
        broker = self._broker()
        calls, is_power = self._random.randint(1, 40), self._random.random() < 0.5
        how = "loses power" if is_power else "is killed"
        self._happened(Happening.CUT_OFF, broker.name)
        self._disturb(f"{broker.name} {how} after {calls} calls of its disk")
        broker.cut_power_after(calls, is_power=is_power)

    def _down(self, what: str, end: Callable[[SimulatedBroker], None]) -> None:
        broker = self._broker()
        down_ms = self._random.randint(1, DOWN_MS_MAX)
        self._disturb(f"{broker.name} {what}, for {down_ms} ms")
        self._look_at_handovers(broker)
        end(broker)
        self._later(down_ms, broker.start)

    def _look_at_handovers(self, node: SimulatedBroker) -> None:
        if node.broker is None:
            return
        for group in self._groups:
            view = node.broker.members.coordination.group(group.name)
            if view is not None and view.members and not view.is_settled:
                self._happened(Happening.HANDOVER_LOST, group.name)

    def restart_name_server(self) -> None:
        """Kill a name server, which loses its state."""
        name_server = self._random.choice(self._cluster.name_servers)
        if name_server.process.is_alive:
            self._happened(Happening.NAME_SERVER_KILLED)
            self._disturb(f"{name_server.name} is killed")
            name_server.kill()
            self._later(self._random.randint(1, DOWN_MS_MAX), name_server.start)

    def split_name_servers(self) -> None:
        """Separate a name server from a broker, or from all: its routes become outdated."""
        cluster, network = self._cluster, self._world.network
        name_server = self._random.choice(cluster.name_servers).name
        brokers = list(cluster.brokers)
        if self._random.random() < 0.5:
            brokers = [self._random.choice(brokers)]
        block_ms, breaks = self._random.randint(10, BLOCK_MS_MAX), self._random.random() < 0.7
        how = "and it hears of it" if breaks else "unheard"
        self._disturb(f"{name_server} and {' '.join(brokers)} are apart for {block_ms} ms, {how}")
        for broker in brokers:
            for connection in network.between(broker, name_server) if breaks else ():
                connection.reset()
            for ends in ((broker, name_server), (name_server, broker)):
                network.block(*ends, keeps=False)
                self._later(block_ms, partial(network.unblock, *ends))

    def set_clock(self) -> None:
        """Set one machine's wall clock, and perhaps all of them by an hour, and back."""
        nodes: list[SimulatedBroker | SimulatedConsumer] = [
            *self._cluster.brokers.values(),
            *self._cluster.alive(),
        ]
        node, by_ms = self._random.choice(nodes), self._random.randint(-SET_MS_MAX, SET_MS_MAX)
        self._happened(Happening.CLOCK_SET, f"{node.name} by {by_ms} ms")
        node.process.clock.set_wall(by_ms)
        if self._clocks.random() < SWING_CHANCE:
            self._swing_clocks(nodes)
        self._synchronise_clocks(nodes)

    def _synchronise_clocks(self, nodes: Sequence[SimulatedBroker | SimulatedConsumer]) -> None:
        """Move every wall clock a little, as clock synchronisation does all the time."""
        for node in nodes:
            node.process.clock.set_wall(self._clocks.randint(-SLEWED_MS_MAX, SLEWED_MS_MAX))

    def _swing_clocks(self, nodes: Sequence[SimulatedBroker | SimulatedConsumer]) -> None:
        by_ms = self._clocks.choice((-SET_MS_MAX, SET_MS_MAX))
        self._happened(Happening.CLOCKS_SWUNG, f"by {by_ms} ms")
        at_ms = 0
        for swing_ms in (by_ms, -2 * by_ms, by_ms):
            for node in nodes:
                self._later(at_ms, partial(node.process.clock.set_wall, swing_ms))
            at_ms += self._clocks.randint(1, SWING_MS_MAX)

    # Network and disks.

    def partition(self) -> None:
        """Block the network between two processes, in both directions or one, one of them a server."""
        network, source, target = self._world.network, self._anybody(), self._server()
        if source == target:
            return
        keeps = self._random.random() < 0.5
        directions = self._random.choice(
            (((source, target),), ((target, source),), ((source, target), (target, source)))
        )
        block_ms = self._random.randint(10, BLOCK_MS_MAX)
        named = " and ".join(f"{a} to {b}" for a, b in directions)
        self._happened(Happening.DEAF_ONE_WAY if len(directions) == 1 else Happening.DEAF_BOTH_WAYS)
        self._disturb(f"{named}: frames {'wait' if keeps else 'vanish'} for {block_ms} ms")
        for a, b in directions:
            network.block(a, b, keeps=keeps)
            self._later(block_ms, partial(network.unblock, a, b))

    def split_brokers(self) -> None:
        """Separate two brokers from each other, while all other processes reach both."""
        names = list(self._cluster.brokers)
        if len(names) < 2:
            return
        ends = self._random.sample(names, 2)
        block_ms = self._random.randint(SPLIT_MS_MIN, BLOCK_MS_MAX)
        self._happened(Happening.DEAF_BOTH_WAYS)
        self._disturb(f"brokers {ends[0]} and {ends[1]} are apart for {block_ms} ms")
        for source, target in (ends, reversed(ends)):
            self._world.network.block(source, target, keeps=False)
            self._later(block_ms, partial(self._world.network.unblock, source, target))

    def split(self) -> None:
        """Split all processes into two halves, cut off from each other, each with a broker."""
        cluster, network, draw = self._cluster, self._world.network, self._splits
        brokers = draw.sample(list(cluster.brokers), len(cluster.brokers))
        others = [each.name for each in cluster.alive()]
        others += [each.name for each in cluster.kafka.alive()]
        others += [each.name for each in cluster.producers]
        others += [each.name for each in cluster.name_servers]
        halves: tuple[list[str], list[str]] = (brokers[:1], brokers[1:2])
        for name in (*brokers[2:], *others):
            draw.choice(halves).append(name)
        if not halves[1]:
            return
        split_ms = draw.randint(SPLIT_MS_MIN, BLOCK_MS_MAX)
        self._happened(Happening.SPLIT)
        one, other = (" ".join(half) for half in halves)
        self._disturb(f"two halves are apart for {split_ms} ms: {one}; {other}")
        for pair in product(*halves):
            for source, target in (pair, reversed(pair)):
                network.block(source, target, keeps=False)
                self._later(split_ms, partial(network.unblock, source, target))

    def reset(self) -> None:
        """Break a connection."""
        somebody = self._anybody()
        mine = [
            connection
            for connection in self._world.network.connections()
            if somebody in (connection.ends[0].name, connection.ends[1].name)
        ]
        if mine:
            connection = self._random.choice(mine)
            names = " and ".join(process.name for process in connection.ends)
            self._happened(Happening.RESET)
            self._disturb(f"the connection of {names} breaks")
            connection.reset()

    def deafen(self) -> None:
        """Lose, delay or duplicate notifications."""
        network = self._world.network
        network.weather = Weather(
            latency_ms_max=self._random.choice((1, 3, 20)),
            loss_chance=self._random.choice((0.0, 0.5, 1.0)),
            double_chance=self._random.choice((0.0, 0.5)),
            late_chance=self._random.choice((0.0, 0.5)),
        )
        self._world.history.note("fault", f"notifications: {network.weather}")

    def spoil_disk(self) -> None:
        """Fill a disk for a while, or let a sync fail, or empty the page cache."""
        broker = self._broker()
        disk, kind = broker.disk, self._random.choice(("full", "broken", "cold"))
        self._disturb(f"the disk of {broker.name} is {kind}")
        if kind == "full":
            self._happened(Happening.DISK_FULL)
            disk.write_error_chance = 0.5
        elif kind == "broken":
            self._happened(Happening.DISK_BROKEN)
            disk.sync_error_chance = 0.5
        else:
            self._happened(Happening.DISK_COLD)
            disk.cold_chance = 0.7
        self._later(self._random.randint(10, TROUBLE_MS_MAX), disk.heal)


def _go(member: SimulatedConsumer) -> None:
    if member.is_alive:
        member.stop()


ACTIONS: Final[Mapping[str, Callable[[Faults], None]]] = {
    name: getattr(Faults, name)
    for name in (
        "join", "join_many", "join_hundred", "stop", "stop_stock", "kill", "pause", "flap", "bounce",
        "remove", "grow", "shrink", "make_again", "delete_group", "reset_offsets", "restart_broker",
        "kill_broker", "cut_power", "cut_off_broker", "restart_name_server", "split_name_servers",
        "set_clock", "partition", "split_brokers", "split", "reset", "deafen", "spoil_disk", "end_master",
        "end_slave", "part_slave", "end_acting", "freeze_master", "lose_slave", "reset_pops",
        "set_back_in_time", "kill_popper", "kafka_join", "kafka_stop", "kafka_kill", "kafka_sleep",
        "kafka_bounce", "kafka_oversleep", "kafka_cut_off", "end_coordinator",
    )
}  # fmt: skip
