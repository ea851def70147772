"""The faults of Kafka's groups: their members come, go, sleep and are replaced, and coordinators end."""

from functools import partial
from typing import Final

from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.nodes.kafka_facts import KafkaGroupPlan
from libramq.testing.nodes.kafka_member import SimulatedKafkaMember
from libramq.testing.scenarios.happening import Happening
from libramq.testing.scenarios.slave_faults import SlaveFaults
from libramq.testing.world import World

MEMBERS_MAX: Final = 12
#: How long members sleep at most: less than a grace, a rebalance timeout, a session; or longer than one.
SLEEP_MS_MAX: Final = (300, 3_000, 15_000, 70_000)
#: The session of members (group.consumer.session.timeout.ms).
SESSION_MS: Final = 45_000
AWAY_MS_MAX: Final = 4_000
#: How soon after a member joins or leaves its coordinator ends.
AMID_MS_MAX: Final = 150


class KafkaFaults(SlaveFaults):
    """Performs these faults, where there are such groups."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        super().__init__(world, cluster, groups)
        self._kafka_random = world.stream("Kafka faults")  # A separate stream: seeds keep their histories.

    def undo(self) -> None:
        """Wake all members up; each group has some then."""
        super().undo()
        kafka = self._cluster.kafka
        for member in kafka.all:
            member.process.resume()
        for plan in kafka.plans:
            if not kafka.alive(plan.name):
                kafka.join(plan)

    def kafka_join(self) -> None:
        """Start a member."""
        kafka, plan = self._cluster.kafka, self._plan()
        if plan is not None and len(kafka.alive(plan.name)) < MEMBERS_MAX:
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
        """Freeze a member for a while; its connections stay."""
        self._freeze(self._kafka_random.randint(10, self._kafka_random.choice(SLEEP_MS_MAX)))

    def kafka_oversleep(self) -> None:
        """Freeze a member for longer than its session."""
        self._freeze(SESSION_MS + self._kafka_random.randint(1_000, 10_000))

    def _freeze(self, sleep_ms: int) -> None:
        member = self._kafka_member()
        if member is not None:
            self._disturb(f"{member.name} freezes for {sleep_ms} ms")
            member.process.pause()
            self._later(sleep_ms, partial(self._wake, member, sleep_ms))

    def _wake(self, member: SimulatedKafkaMember, slept_ms: int) -> None:
        if member.process.is_paused and slept_ms > SESSION_MS:
            self._happened(Happening.KAFKA_SLEPT, member.name)
        member.process.resume()

    def kafka_bounce(self) -> None:
        """End a member, and start it again soon: a static one in its own place."""
        member = self._kafka_member()
        if member is not None:
            away_ms = self._kafka_random.randint(0, AWAY_MS_MAX)
            self._disturb(f"{member.name} starts again after {away_ms} ms")
            (member.kill if self._kafka_random.random() < 0.5 else member.stop)()
            self._later(away_ms, partial(self._replace, member))

    def _replace(self, member: SimulatedKafkaMember) -> None:
        if not self._ended:
            if member.instance_id is not None:
                self._happened(Happening.KAFKA_REPLACED, member.instance_id)
            self._cluster.kafka.join(member.plan, instead_of=member)

    def kafka_cut_off(self) -> None:
        """Part a member from its coordinator, while it reads on."""
        member = self._kafka_member()
        if member is None or member.coordinator is None:
            return
        block_ms = self._kafka_random.randint(10, self._kafka_random.choice(SLEEP_MS_MAX))
        keeps = self._kafka_random.random() < 0.5
        self._disturb(f"{member.name} and its coordinator are apart for {block_ms} ms")
        ends = (member.name, member.coordinator)
        for source, target in (ends, ends[::-1]):
            self._world.network.block(source, target, keeps=keeps)
            self._later(block_ms, partial(self._world.network.unblock, source, target))

    def end_coordinator(self) -> None:
        """Kill the coordinator of a group, or cut its power, soon after a member joins or leaves."""
        kafka, plan = self._cluster.kafka, self._plan()
        members = kafka.alive(plan.name) if plan is not None else []
        coordinators = [each.coordinator for each in members if each.coordinator is not None]
        if not coordinators or plan is None:
            return
        self._kafka_random.choice((self.kafka_join, self.kafka_kill, self.kafka_stop))()
        name = self._kafka_random.choice(coordinators)
        self._later(self._kafka_random.randint(0, AMID_MS_MAX), partial(self._end_coordinator, name, plan))

    def _end_coordinator(self, name: str, plan: KafkaGroupPlan) -> None:
        node = self._cluster.brokers[name]
        if self._ended or node.broker is None:
            return
        if node.kafka is not None and not node.kafka.is_settled(plan.name):
            self._happened(Happening.KAFKA_AMID, plan.name)
        is_power, away_ms = self._kafka_random.random() < 0.5, self._kafka_random.randint(1, AWAY_MS_MAX)
        self._disturb(f"{name} {'loses power' if is_power else 'is killed'}, for {away_ms} ms")
        (node.cut_power if is_power else node.kill)()
        self._later(away_ms, node.start)

    def _plan(self) -> KafkaGroupPlan | None:
        plans = self._cluster.kafka.plans
        return self._kafka_random.choice(plans) if plans else None

    def _kafka_member(self) -> SimulatedKafkaMember | None:
        """Draw a live member; the last of its group is spared."""
        spare = self._cluster.kafka.spare()
        return self._kafka_random.choice(spare) if spare else None
