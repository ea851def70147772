"""The operations: changes of topics, groups and members by administrators, while all of them are in use."""

from functools import partial
from typing import Final

from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.scenarios.fault_targets import FaultTargets
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World

QUEUES_MAX: Final = 12
#: How long a topic has fewer queues.
AWAY_MS_MAX: Final = 3_000
#: By how much a broker's clock is set back while it does not run.
BACK_MS_MAX: Final = 3_600_000


class Operations(FaultTargets):
    """Performs operations one after the other."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        super().__init__(world, cluster, groups)
        self._operations = world.stream("operations")  # A separate stream: seeds keep their histories.
        self._pops = world.stream("operations on groups that pop")
        self._shrunk: dict[str, int] = {}

    def remove(self) -> None:
        """Remove a member as an operator, preferably a static one that will not return."""
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
        """Delete a topic at a broker, or at all of them, and create it again at once or later."""
        cluster = self._cluster
        if any(member.plan.is_stock or member.is_broadcasting for member in cluster.members):
            return  # Such members may read on at their offsets, and miss new messages.
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
        """Delete a group at one broker or at all of them, while its members are alive."""
        group = self._operations.choice(self._groups).name
        names = self._operations.choice(
            (list(self._cluster.brokers), [self._operations.choice(list(self._cluster.brokers))])
        )
        self._disturb(f"{group} is deleted at {' '.join(names)}")
        for name in names:
            self._later(self._operations.choice((0, 0, 50)), partial(self._cluster.delete_group, name, group))

    def _one_or_all_brokers(self) -> list[str]:
        names = list(self._cluster.brokers)
        return names if self._operations.random() < 0.5 else [self._operations.choice(names)]

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
            self._later(self._operations.randint(50, AWAY_MS_MAX), lambda: self._grow_back(topic))

    def _grow_back(self, topic: str) -> None:
        count = self._shrunk.pop(topic, 0)
        if count > self._cluster.topics[topic]:
            self._cluster.set_queues(topic, count)

    def undo(self) -> None:
        """Give topics all their queues again."""
        for topic in list(self._shrunk):
            self._grow_back(topic)

    def reset_pops(self) -> None:
        """Reset a group that pops to the beginning of a topic."""
        if not self._cluster.popping():
            return
        group, topics = self._pops.choice(sorted(self._cluster.popping().items()))
        topic = self._pops.choice(topics)
        self._disturb(f"popping {group} is set back in {topic}")
        for name in self._cluster.brokers:
            self._cluster.set_back_pops(name, group, topic)

    def set_back_in_time(self) -> None:
        """Kill a broker, and start it again with its clock set back."""
        broker = self._cluster.brokers[self._pops.choice(list(self._cluster.brokers))]
        by_ms = self._pops.randint(1, BACK_MS_MAX)
        self._happened(Happening.SET_BACK_IN_TIME, broker.name)
        self._disturb(f"{broker.name} is killed, and its clock set back by {by_ms} ms")
        broker.kill()
        broker.process.clock.set_wall(-by_ms)
        self._later(self._pops.randint(1, AWAY_MS_MAX), broker.start)

    def reset_offsets(self) -> None:
        """Reset a group to the beginning of a topic."""
        group, topic = (
            self._operations.choice(self._groups),
            self._operations.choice(sorted(self._cluster.topics)),
        )
        self._disturb(f"{group.name} is set back in {topic}")
        for name in self._cluster.brokers:
            self._cluster.set_back(name, group.name, topic)
