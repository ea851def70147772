"""All members of Kafka's groups in a simulation."""

from collections.abc import Sequence

from libramq.testing.nodes.kafka_facts import KafkaGroupPlan
from libramq.testing.nodes.kafka_member import SimulatedKafkaMember
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World


class KafkaMembers:
    """The members, alive or not. brokers: their addresses for Kafka's clients."""

    def __init__(self, world: World, plans: Sequence[KafkaGroupPlan], brokers: Sequence[str]) -> None:
        self.plans = plans
        self.all: list[SimulatedKafkaMember] = []
        self._world = world
        self._brokers = brokers
        self._random = world.stream("Kafka members")

    def join_all(self) -> None:
        """Start the first members of each group."""
        for plan in self.plans:
            for _ in range(plan.members):
                self.join(plan)

    def join(
        self, plan: KafkaGroupPlan, *, instead_of: SimulatedKafkaMember | None = None
    ) -> SimulatedKafkaMember:
        """Start a member. instead_of: a static one whose place it takes."""
        name = f"kafka-{len(self.all) + 1}"
        instance_id = name if self._random.random() < plan.static_chance else None
        if instead_of is not None:
            instance_id = instead_of.instance_id
        self._world.history.note(name, f"joins {plan.name} as {instance_id or name}")
        self._world.history.happened(Happening.KAFKA_GROUP, plan.name)
        member = SimulatedKafkaMember(self._world, name, plan, self._brokers, instance_id=instance_id)
        self.all.append(member)
        return member

    def alive(self, group: str | None = None) -> list[SimulatedKafkaMember]:
        """Return the active members, of one group or of all."""
        return [each for each in self.all if each.is_alive and group in (None, each.plan.name)]

    def spare(self) -> list[SimulatedKafkaMember]:
        """Return the active members that are not the last of their group."""
        return [each for each in self.alive() if len(self.alive(each.plan.name)) > 1]
