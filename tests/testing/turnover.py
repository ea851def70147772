"""The turnover: for a long simulated time, members of every kind come and go, one every ten seconds.

    residents stay      visitors: join ─► leave, are killed, or freeze until their sessions are over ─► join

Afterwards only the residents are left, and every table of every process should be back to its first size.
"""

import itertools
import sys
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from libramq.testing.cluster import Cluster, ClusterPlan, GroupPlan
from libramq.testing.history import KafkaGroupPlan
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.nodes.kafka_member import SimulatedKafkaMember
from libramq.testing.nodes.producer_node import SimulatedProducer
from libramq.testing.world import World
from tests.testing.table_sizes import modules, table_sizes

EVENT_MS: Final = 10_000
#: Longer than any session, and than name servers and brokers wait for silent clients (120 s).
QUIET_MS: Final = 150_000
TOPICS: Final[Mapping[str, int]] = {"T1": 4, "T2": 4}
PRODUCER_INTERVAL_MS: Final = 10_000
BODY_BYTES: Final = 30
#: By then topics and routes exist.
SET_UP_MS: Final = 2_000
#: The number of size samples, and the time between them: a request in progress is not in all of them.
SAMPLES: Final = 4
SAMPLE_MS: Final = 3_730
#: The ways in which a visitor ends: it leaves, is killed, or freezes.
WAYS: Final = 3

_GROUP: Final = GroupPlan(name="", topics=(("T1", "T2"), ("T1",)), route_refresh_ms=30_000, persist_ms=5_000)
GROUPS: Final = (
    replace(_GROUP, name="Coordinated"),
    replace(_GROUP, name="Orderly", orderly=True),
    replace(_GROUP, name="Static", is_static=True),
    replace(_GROUP, name="Stock", stock_chance=1.0),
    replace(_GROUP, name="Asking", stock_chance=1.0, ask_chance=1.0),
    replace(_GROUP, name="Mixed", stock_chance=0.5),
    replace(_GROUP, name="Broadcasting", is_broadcasting=True),
)
KAFKA_GROUPS: Final = (
    KafkaGroupPlan(name="Kafka", topics=("T1",), members=1),
    KafkaGroupPlan(name="KafkaStatic", topics=("T2",), members=1, static_chance=1.0),
)

#: Tables that grow with time regardless of turnover, by the prefix of their name; and their limit.
MAY_GROW: Final = {
    "broker.processor.administration.runtime_info.": "samples of the last ten minutes, one a second",
    "broker.messages.throughput.": "counts of the last minute, hour and day, LONG_KEYS_MAX names in each",
    "message.stored_properties._needles": "our own names of properties, each from its first use on",
    "client.consuming.committing.commits.FirstCommits._known": "a member's topics, once committed in",
    "groups.rebalance.ContestedQueues._taken_at_ms": "queues moved since the rebalance began",
    "groups.coordinator.membership.GroupMembership.left": "members that have left, up to LEFT_MAX",
    "managedbuffer": "what a connection receives into, SMALL_READ_BYTES once a read has filled it",
    "store.log.segments.Segments.": "files of the commit log, until retention removes them",
    "store.open_files.OpenFiles.": "open files, up to the store's count_max",
}

Visitor = SimulatedConsumer | SimulatedKafkaMember | SimulatedProducer
#: The table sizes of each process.
Sizes = Mapping[str, Counter[str]]


@dataclass(frozen=True, slots=True)
class Change:
    """The size of a table at the beginning and at the end."""

    process: str
    table: str
    before: int
    after: int

    @property
    def reason(self) -> str | None:
        """Return why the table may grow; None if it may not."""
        return next((why for name, why in MAY_GROW.items() if self.table.startswith(name)), None)


class Turnover:
    """One cluster with its residents and visitors: members of each group, and producers."""

    def __init__(
        self,
        seed: int,
        *,
        brokers: int = 2,
        groups: Sequence[GroupPlan] = GROUPS,
        kafka_groups: Sequence[KafkaGroupPlan] = KAFKA_GROUPS,
    ) -> None:
        self.world = World(seed, lines_kept=0)
        self.cluster = Cluster(
            self.world, ClusterPlan(broker_count=brokers, is_sync=False, kafka_groups=tuple(kafka_groups))
        )
        #: The number of joins and leaves so far.
        self.events = 0
        self._groups = groups
        self._joins: list[Callable[[], Visitor]] = [
            *(partial(self.cluster.join, plan) for plan in groups),
            *(partial(self.cluster.kafka.join, plan) for plan in kafka_groups),
            self._produce,
        ]

    def set_up(self) -> None:
        """Start the residents, and have each kind of visitor come and go once in every way."""
        for topic, queues in TOPICS.items():
            self.cluster.set_queues(topic, queues)
        self._pass(SET_UP_MS)
        for topic in TOPICS:
            self.cluster.produce(topic, interval_ms=PRODUCER_INTERVAL_MS, body_bytes=BODY_BYTES)
        for plan in self._groups:
            self.cluster.join(plan, kind=0)  # All topics of the group are known from the start.
        self.cluster.kafka.join_all()
        self.come_and_go(2 * WAYS * len(self._joins))

    def come_and_go(self, events: int) -> None:
        """Make this many joins and leaves, one every ten seconds; then have all visitors leave."""
        places = [_visits(join) for join in self._joins]
        for _, place in zip(range(events), itertools.cycle(places), strict=False):
            next(place)
            self._forget_the_dead()
            self.events += 1
            self._pass(EVENT_MS)
        for place in places:
            place.close()
        self._forget_the_dead()
        self._pass(QUIET_MS)

    def sizes(self) -> list[Sizes]:
        """Return several samples of the sizes of all tables of the resident processes."""
        of_modules = table_sizes(modules(sys.modules))  # Nothing is in progress there.
        taken: list[Sizes] = []
        for _ in range(SAMPLES):
            of_processes = {name: table_sizes(*roots) for name, roots in self._processes().items()}
            taken.append(of_processes | {"modules": of_modules})
            self._pass(SAMPLE_MS)
        return taken

    def _processes(self) -> dict[str, tuple[object, ...]]:
        """Return the roots of each resident process."""
        cluster = self.cluster
        found: dict[str, tuple[object, ...]] = {}
        for nodes in (cluster.name_servers, cluster.members, cluster.producers):
            found |= {node.name: (node,) for node in nodes}
        for broker in cluster.brokers.values():
            found[broker.name] = (broker,) if broker.kafka is None else (broker, broker.kafka)
        return found

    def _produce(self) -> SimulatedProducer:
        self.cluster.produce("T1", interval_ms=PRODUCER_INTERVAL_MS, body_bytes=BODY_BYTES)
        return self.cluster.producers[-1]

    def _forget_the_dead(self) -> None:
        """Drop ended processes from the cluster's lists, which would otherwise grow with each visitor."""
        cluster = self.cluster
        cluster.members[:] = [one for one in cluster.members if one.process.is_alive]
        cluster.kafka.all[:] = [one for one in cluster.kafka.all if one.process.is_alive]
        cluster.producers[:] = [one for one in cluster.producers if one.process.is_alive]

    def _pass(self, ms: int) -> None:
        self.world.time.run_until(self.world.time.now_ms + ms)


def grown(before: Iterable[Sizes], after: Iterable[Sizes]) -> list[Change]:
    """Return the tables that are larger in all later samples than in any earlier one."""
    most, least = _extremes(before, max), _extremes(after, min)
    return [
        Change(process, table, most[process][table], size)
        for process, tables in least.items()
        for table, size in sorted(tables.items())
        if size > most[process][table]
    ]


def _visits(join: Callable[[], Visitor]) -> Generator[None]:
    """Run one visitor after the other; every step is a join or a leave."""
    for way in itertools.cycle(range(WAYS)):
        visitor = join()
        try:
            yield
            stop = visitor.leave if isinstance(visitor, SimulatedProducer) else visitor.stop
            (stop, visitor.kill, visitor.process.pause)[way]()
            yield
        finally:
            visitor.kill()  # A frozen visitor has lost its session by now.


def _extremes(samples: Iterable[Sizes], choose: Callable[[Iterable[int]], int]) -> Sizes:
    """Return the largest or the smallest size of each table; a missing table has none."""
    taken = list(samples)
    return {
        process: Counter(
            {
                table: choose(sample[process][table] for sample in taken)
                for table in set().union(*(sample[process] for sample in taken))
            }
        )
        for process in taken[0]
    }
