"""The faults of members, brokers, disks, networks and clocks in a simulation, from beginning to end.

Operators also change topics, groups and members in use. A master or its slave may end for a while, or the two
may be separated.
"""

import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Final

from libramq.clock import MonotonicMs
from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.happening import Happening
from libramq.testing.history import KafkaGroupPlan
from libramq.testing.machine.network import Weather
from libramq.testing.nodes.broker_node import SimulatedBroker, SimulatedSlave
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.nodes.kafka_member import SimulatedKafkaMember
from libramq.testing.world import World

#: The longest time a broker is down.
DOWN_MS_MAX: Final = 4_000
#: The longest time a member is frozen.
PAUSE_MS_MAX: Final = 15_000
#: The longest time a link is blocked; longer than a session.
BLOCK_MS_MAX: Final = 14_000
SPLIT_MS_MIN: Final = 2_000  # Longer than a coordinator waits for fences.
TROUBLE_MS_MAX: Final = 3_000
BOUNCE_MS_MAX: Final = 3_000
JOIN_MANY: Final = 20
JOIN_HUNDRED: Final = 100
MEMBERS_MAX: Final = 30
#: The interval for checking whether a process has ended.
AGAIN_MS: Final = 100
#: The largest change of a clock, to the right time or to a wrong one.
SET_MS_MAX: Final = 3_600_000
#: The chance that all clocks are set forward and back, or back and forward.
SWING_CHANCE: Final = 0.5
#: The longest time between the two.
SWING_MS_MAX: Final = 1_500
#: Less than the allowed error of a delay (StoredMoments), so nothing notices it.
SLEWED_MS_MAX: Final = 45
QUEUES_MAX: Final = 12
#: The longest time that a topic has fewer queues.
SHRUNK_MS_MAX: Final = 3_000
#: The most that a broker's clock is set back while the broker is down.
BACK_MS_MAX: Final = 3_600_000
#: How long a master is away: long enough for members to turn to its slave.
MASTER_AWAY_MS_MIN: Final = 2_000
MASTER_AWAY_MS_MAX: Final = 8_000
#: How long a master with an acting slave is away. An acting slave looks for its master every 3 s.
ACTING_AWAY_MS: Final = (5_000, 20_000)
#: How long a master is away whose acting slave also ends.
LONG_AWAY_MS: Final = (25_000, 45_000)
#: When the acting slave ends after its master's end.
ACTS_MS: Final = (8_000, 15_000)
#: How long the acting slave is away if it is the only one.
SLAVE_AWAY_MS: Final = (500, 4_000)
#: How long a master is frozen. With acting slaves, name servers drop a broker after 10 s.
FROZEN_MS: Final = (12_000, 45_000)
#: The chance that a lost slave is frozen, not killed; its master then waits for it in vain for 20 s.
FROZEN_CHANCE: Final = 0.3
KAFKA_MEMBERS_MAX: Final = 12
#: The longest sleeps of members: below a grace period, below a rebalance timeout, below a session, and above
#: a session.
KAFKA_SLEEP_MS_MAX: Final = (300, 3_000, 15_000, 70_000)
#: The session of members (group.consumer.session.timeout.ms).
KAFKA_SESSION_MS: Final = 45_000
KAFKA_AWAY_MS_MAX: Final = 4_000
#: The longest time between a member's join or leave and its coordinator's end.
KAFKA_AMID_MS_MAX: Final = 150


class Faults:
    """Injects faults into a cluster one after another; targets are drawn when a fault happens."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        self._world = world
        self._cluster = cluster
        self._groups = groups
        self._random: random.Random = world.stream("faults")
        # Separate streams, so that existing seeds keep their histories.
        self._clocks: random.Random = world.stream("clocks")
        self._splits: random.Random = world.stream("splits")
        self._operations = world.stream("operations")
        self._pops = world.stream("operations on groups that pop")
        self._slaves = world.stream("slaves")
        self._kafka_random = world.stream("Kafka faults")
        self._ended = False
        self._shrunk: dict[str, int] = {}
        self._frozen_ms: dict[str, MonotonicMs] = {}

    def happen(self, name: str) -> None:
        """Inject one of FAULTS."""
        if not self._ended:
            getattr(self, name)()

    def end(self) -> None:
        """End all faults, and make sure that each group has a member."""
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

    def undo(self) -> None:
        """Restore all queues of topics and wake Kafka's members, at least one for each group."""
        for topic in list(self._shrunk):
            self._grow_back(topic)
        kafka = self._cluster.kafka
        for member in kafka.all:
            member.process.resume()
        for plan in kafka.plans:
            if not kafka.alive(plan.name):
                kafka.join(plan)

    # Members.

    def join(self) -> None:
        """Start a member."""
        if len(self._cluster.alive()) < MEMBERS_MAX:
            self._cluster.join(self._random.choice(self._groups))

    def join_many(self) -> None:
        """Start up to JOIN_MANY members at once."""
        plan = self._random.choice(self._groups)
        for _ in range(min(JOIN_MANY, MEMBERS_MAX - len(self._cluster.alive()))):
            self._cluster.join(plan)

    def join_hundred(self) -> None:
        """Start a hundred members, as in a deployment; most leave again soon."""
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
        """Kill or stop a member and start it again soon; a static member resumes its place."""
        member = self._member()
        if member is None:
            return
        plan = next(group for group in self._groups if group.name == member.group)
        away_ms = self._random.randint(1, BOUNCE_MS_MAX)
        self._disturb(f"{member.name} starts again after {away_ms} ms")
        (member.kill if self._random.random() < 0.5 else member.stop)()
        self._later(away_ms, lambda: self._come_back(plan, member))

    def _come_back(self, plan: GroupPlan, member: SimulatedConsumer) -> None:
        if member.is_broadcasting and member.process.is_alive:  # The old process still uses the offset file.
            self._later(AGAIN_MS, lambda: self._come_back(plan, member))
        elif not self._ended:
            if member.instance_id is not None:
                self._happened(Happening.CAME_BACK, member.instance_id)
            self._cluster.join(plan, instead_of=member)

    def stop_stock(self) -> None:
        """Stop the stock members of a group, so that only ours remain."""
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
        """Kill a member of the popping group and start another one."""
        alive = [member for member in self._cluster.pop_members if member.is_alive]
        if alive:
            member = self._pops.choice(alive)
            self._disturb(f"{member.name} is killed")
            member.kill()
            self._cluster.join_pops()

    # Servers.

    def restart_broker(self) -> None:
        """Stop a broker gracefully and start it again."""
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
        """End a broker between two disk calls of an operation."""
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

    def _end(self, node: SimulatedBroker, away_ms: int, *, is_power: bool) -> None:
        """Kill a broker or a slave or cut its power, and start it again after a while."""
        self._disturb(f"{node.name} {'loses power' if is_power else 'is killed'}, for {away_ms} ms")
        (node.cut_power if is_power else node.kill)()
        self._later(away_ms, node.start)

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
        """Separate a name server from one broker or from all, so that its routes become outdated."""
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
            self._part(broker, name_server, block_ms)

    def set_clock(self) -> None:
        """Set one machine's wall clock; perhaps also set all clocks by an hour and back."""
        nodes: list[SimulatedBroker | SimulatedConsumer] = [
            *self._cluster.brokers.values(),
            *self._cluster.alive(),
        ]
        node, by_ms = self._random.choice(nodes), self._random.randint(-SET_MS_MAX, SET_MS_MAX)
        self._happened(Happening.CLOCK_SET, f"{node.name} by {by_ms} ms")
        node.process.clock.set_wall(by_ms)
        if self._clocks.random() < SWING_CHANCE:
            self._swing_clocks(nodes)
        for node in nodes:  # Small corrections, as clock synchronisation makes all the time.
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
        """Block the network between two processes, at least one a server, in one direction or both."""
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
        self._part(ends[0], ends[1], block_ms)

    def split(self) -> None:
        """Split all processes into two halves, cut off from each other, each with a broker."""
        cluster, draw = self._cluster, self._splits
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
            self._part(*pair, split_ms)

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
        """Fill a disk for a while, make syncs fail, or empty the page cache."""
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

    # Operations.

    def remove(self) -> None:
        """Remove a member as an operator, preferably a static member that will not return."""
        spare = self._cluster.spare()
        gone = [m for m in self._cluster.members if m.instance_id is not None and not m.process.is_alive]
        ours = [m for m in gone[-1:] or spare if not m.plan.is_stock and not m.is_broadcasting]
        if ours:
            member = self._random.choice(ours)
            self._disturb(f"an operator removes {member.name}")
            self._cluster.remove(member)

    def grow(self) -> None:
        """Give a topic more queues."""
        topic = self._random.choice(sorted(self._cluster.topics))
        count = self._cluster.topics[topic]
        if count < QUEUES_MAX:
            count = min(count + self._random.randint(1, 3), QUEUES_MAX)
            self._happened(Happening.GREW, topic)
            self._world.history.note("admin", f"{topic} gets {count} queues at each broker")
            self._cluster.set_queues(topic, count)

    def make_again(self) -> None:
        """Delete a topic at one broker or all, and create it again at once or later."""
        cluster = self._cluster
        if any(member.plan.is_stock or member.is_broadcasting for member in cluster.members):
            return  # Such members may continue at their old offsets and miss new messages.
        topic, after_ms = (
            self._operations.choice(sorted(cluster.topics)),
            self._operations.choice((0, 5, 300, 2_500)),
        )
        names = self._operations.choice(
            (list(cluster.brokers), [self._operations.choice(list(self._cluster.brokers))])
        )
        self._disturb(f"{topic} is deleted at {' '.join(names)} and made again after {after_ms} ms")
        for name in names:
            cluster.make_again(name, topic, after_ms)

    def delete_group(self) -> None:
        """Delete a group at one broker or all while its members are alive."""
        group = self._operations.choice(self._groups).name
        names = self._operations.choice(
            (list(self._cluster.brokers), [self._operations.choice(list(self._cluster.brokers))])
        )
        self._disturb(f"{group} is deleted at {' '.join(names)}")
        for name in names:
            self._later(self._operations.choice((0, 0, 50)), partial(self._cluster.delete_group, name, group))

    def shrink(self) -> None:
        """Reduce a topic's readable queues for a while."""
        topic = self._operations.choice(sorted(self._cluster.topics))
        count = self._cluster.topics[topic]
        if count > 1 and topic not in self._shrunk:
            self._shrunk[topic] = count
            left = self._operations.randint(1, count - 1)
            self._happened(Happening.SHRANK, topic)
            self._disturb(f"{topic} has {left} queues at each broker")
            self._cluster.set_queues(topic, left)
            self._later(self._operations.randint(50, SHRUNK_MS_MAX), lambda: self._grow_back(topic))

    def _grow_back(self, topic: str) -> None:
        count = self._shrunk.pop(topic, 0)
        if count > self._cluster.topics[topic]:
            self._cluster.set_queues(topic, count)

    def reset_pops(self) -> None:
        """Reset a popping group to the beginning of a topic."""
        if not self._cluster.popping():
            return
        group, topics = self._pops.choice(sorted(self._cluster.popping().items()))
        topic = self._pops.choice(topics)
        self._disturb(f"popping {group} is set back in {topic}")
        for name in self._cluster.brokers:
            self._cluster.set_back_pops(name, group, topic)

    def set_back_in_time(self) -> None:
        """Kill a broker and start it again with its clock set back."""
        broker = self._cluster.brokers[self._pops.choice(list(self._cluster.brokers))]
        by_ms = self._pops.randint(1, BACK_MS_MAX)
        self._happened(Happening.SET_BACK_IN_TIME, broker.name)
        self._disturb(f"{broker.name} is killed, and its clock set back by {by_ms} ms")
        broker.kill()
        broker.process.clock.set_wall(-by_ms)
        self._later(self._pops.randint(1, SHRUNK_MS_MAX), broker.start)

    def reset_offsets(self) -> None:
        """Reset a group to the beginning of a topic."""
        group, topic = (
            self._operations.choice(self._groups),
            self._operations.choice(sorted(self._cluster.topics)),
        )
        self._disturb(f"{group.name} is set back in {topic}")
        for name in self._cluster.brokers:
            self._cluster.set_back(name, group.name, topic)

    # Masters and slaves.

    def end_master(self) -> None:
        """Kill a master or cut its power while its slave serves."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            self._happened(Happening.MASTER_AWAY, slave.master.name)
            self._end(slave.master, away_ms, is_power=self._slaves.random() < 0.5)

    def end_slave(self) -> None:
        """Kill a slave or cut its power."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            self._end(slave, away_ms, is_power=self._slaves.random() < 0.5)

    def part_slave(self) -> None:
        """Separate a slave from its master, while all other processes reach both."""
        slave, away_ms = self._slave(), self._away_ms()
        if slave is not None:
            self._happened(Happening.SLAVE_APART, slave.name)
            self._disturb(f"{slave.name} and its master are apart for {away_ms} ms")
            self._part(slave.name, slave.master.name, away_ms)

    def end_acting(self) -> None:
        """End a master, then its slave once it acts; a second slave, if any, continues to act."""
        slave, is_power = self._slave(), self._slaves.random() < 0.5
        away_ms, acts_ms = self._slaves.randint(*LONG_AWAY_MS), self._slaves.randint(*ACTS_MS)
        back_ms = self._slaves.randint(*SLAVE_AWAY_MS)
        end = self._slaves.choice((SimulatedSlave.stop, SimulatedSlave.kill, SimulatedSlave.cut_power))
        if slave is None:
            return
        master = slave.master
        self._end(master, away_ms, is_power=is_power)
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
        """Freeze a master until others consider it dead."""
        slave, frozen_ms = self._slave(), self._slaves.randint(*FROZEN_MS)
        if slave is not None and slave.master.process.is_alive:
            self._happened(Happening.MASTER_FROZE, slave.master.name)
            self._disturb(f"{slave.master.name} freezes for {frozen_ms} ms")
            slave.master.process.pause()
            self._later(frozen_ms, slave.master.process.resume)

    def lose_slave(self) -> None:
        """Kill or freeze a slave for so long that its SYNC_MASTER cannot confirm sends."""
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
        return self._slaves.randint(
            *(ACTING_AWAY_MS if is_long else (MASTER_AWAY_MS_MIN, MASTER_AWAY_MS_MAX))
        )

    # Kafka's groups.

    def kafka_join(self) -> None:
        """Start a member."""
        kafka, plan = self._cluster.kafka, self._plan()
        if plan is not None and len(kafka.alive(plan.name)) < KAFKA_MEMBERS_MAX:
            kafka.join(plan)

    def kafka_stop(self) -> None:
        """Stop a member gracefully."""
        member = self._kafka_member()
        if member is not None:
            self._world.history.note(member.name, "stops")
            member.stop()

    def kafka_kill(self) -> None:
        """Kill a member."""
        member = self._kafka_member()
        if member is not None:
            self._disturb(f"{member.name} is killed")
            member.kill()

    def kafka_sleep(self) -> None:
        """Freeze a member for a while; its connections stay open."""
        self._freeze_kafka(self._kafka_random.randint(10, self._kafka_random.choice(KAFKA_SLEEP_MS_MAX)))

    def kafka_oversleep(self) -> None:
        """Freeze a member for longer than its session."""
        self._freeze_kafka(KAFKA_SESSION_MS + self._kafka_random.randint(1_000, 10_000))

    def _freeze_kafka(self, sleep_ms: int) -> None:
        member = self._kafka_member()
        if member is not None:
            self._disturb(f"{member.name} freezes for {sleep_ms} ms")
            member.process.pause()
            self._later(sleep_ms, partial(self._wake_kafka, member, sleep_ms))

    def _wake_kafka(self, member: SimulatedKafkaMember, slept_ms: int) -> None:
        if member.process.is_paused and slept_ms > KAFKA_SESSION_MS:
            self._happened(Happening.KAFKA_SLEPT, member.name)
        member.process.resume()

    def kafka_bounce(self) -> None:
        """End a member and start it again soon; a static member resumes its place."""
        member = self._kafka_member()
        if member is not None:
            away_ms = self._kafka_random.randint(0, KAFKA_AWAY_MS_MAX)
            self._disturb(f"{member.name} starts again after {away_ms} ms")
            (member.kill if self._kafka_random.random() < 0.5 else member.stop)()
            self._later(away_ms, partial(self._replace_kafka, member))

    def _replace_kafka(self, member: SimulatedKafkaMember) -> None:
        if not self._ended:
            if member.instance_id is not None:
                self._happened(Happening.KAFKA_REPLACED, member.instance_id)
            self._cluster.kafka.join(member.plan, instead_of=member)

    def kafka_cut_off(self) -> None:
        """Separate a member from its coordinator while it continues to read."""
        member = self._kafka_member()
        if member is None or member.coordinator is None:
            return
        block_ms = self._kafka_random.randint(10, self._kafka_random.choice(KAFKA_SLEEP_MS_MAX))
        keeps = self._kafka_random.random() < 0.5
        self._disturb(f"{member.name} and its coordinator are apart for {block_ms} ms")
        self._part(member.name, member.coordinator, block_ms, keeps=keeps)

    def end_coordinator(self) -> None:
        """Kill a group's coordinator or cut its power soon after a member joins or leaves."""
        kafka, plan = self._cluster.kafka, self._plan()
        members = kafka.alive(plan.name) if plan is not None else []
        coordinators = [each.coordinator for each in members if each.coordinator is not None]
        if not coordinators or plan is None:
            return
        self._kafka_random.choice((self.kafka_join, self.kafka_kill, self.kafka_stop))()
        name = self._kafka_random.choice(coordinators)
        self._later(
            self._kafka_random.randint(0, KAFKA_AMID_MS_MAX), partial(self._end_coordinator, name, plan)
        )

    def _end_coordinator(self, name: str, plan: KafkaGroupPlan) -> None:
        node = self._cluster.brokers[name]
        if self._ended or node.broker is None:
            return
        if node.kafka is not None and not node.kafka.is_settled(plan.name):
            self._happened(Happening.KAFKA_AMID, plan.name)
        is_power = self._kafka_random.random() < 0.5
        self._end(node, self._kafka_random.randint(1, KAFKA_AWAY_MS_MAX), is_power=is_power)

    def _plan(self) -> KafkaGroupPlan | None:
        plans = self._cluster.kafka.plans
        return self._kafka_random.choice(plans) if plans else None

    def _kafka_member(self) -> SimulatedKafkaMember | None:
        """Draw a live member, but never the last of its group."""
        spare = self._cluster.kafka.spare()
        return self._kafka_random.choice(spare) if spare else None

    # Targets.

    def _member(self) -> SimulatedConsumer | None:
        """Draw a live member, but never the last of its kind."""
        spare = self._cluster.spare()
        return self._random.choice(spare) if spare else None

    def _broker(self) -> SimulatedBroker:
        return self._random.choice(list(self._cluster.brokers.values()))

    def _server(self) -> str:
        return self._random.choice(
            [
                *self._cluster.brokers,
                *self._cluster.brokers,
                *(each.name for each in self._cluster.name_servers),
            ]
        )

    def _anybody(self) -> str:
        producers = [producer.name for producer in self._cluster.producers]
        kafka = [each.name for each in self._cluster.kafka.alive()]
        return self._random.choice(
            [*(m.name for m in self._cluster.alive()), *kafka, *producers, *self._cluster.brokers]
        )

    def _part(self, one: str, other: str, part_ms: int, *, keeps: bool = False) -> None:
        """Block the network between two processes in both directions. keeps: frames wait, none are lost."""
        for source, target in ((one, other), (other, one)):
            self._world.network.block(source, target, keeps=keeps)
            self._later(part_ms, partial(self._world.network.unblock, source, target))

    def _disturb(self, what: str) -> None:
        self._world.history.disturbed(what)

    def _happened(self, what: Happening, about: str = "") -> None:
        self._world.history.happened(what, about)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._world.time.at(self._world.time.now_ms + delay_ms, action)


#: The names of all faults: all public methods except those that control faults.
FAULTS: Final = frozenset(name for name in vars(Faults) if name[0] != "_") - {"happen", "end", "undo"}


def _go(member: SimulatedConsumer) -> None:
    if member.is_alive:
        member.stop()
