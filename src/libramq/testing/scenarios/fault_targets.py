"""The targets of faults, drawn when a fault happens."""

import random
from collections.abc import Callable

from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.nodes.broker_node import SimulatedBroker
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.scenarios.happening import Happening
from libramq.testing.world import World


class FaultTargets:
    """The cluster, and a source of randomness."""

    def __init__(self, world: World, cluster: Cluster, groups: tuple[GroupPlan, ...]) -> None:
        self._world = world
        self._cluster = cluster
        self._groups = groups
        self._random: random.Random = world.stream("faults")
        # Streams of their own: seeds keep their histories.
        self._clocks: random.Random = world.stream("clocks")
        self._splits: random.Random = world.stream("splits")
        self._ended = False

    def _member(self) -> SimulatedConsumer | None:
        """Draw a live member; the last of its kind is spared."""
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

    def _disturb(self, what: str) -> None:
        self._world.history.disturbed(what)

    def _happened(self, what: Happening, about: str = "") -> None:
        self._world.history.happened(what, about)

    def _later(self, delay_ms: int, action: Callable[[], None]) -> None:
        self._world.time.at(self._world.time.now_ms + delay_ms, action)
