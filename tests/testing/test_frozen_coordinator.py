"""A frozen coordinator in the simulator, unannounced: its group reads on at the other brokers."""

from libramq.client.consuming.handling.handler_result import HandlerOutcome
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import MonotonicMs
from libramq.groups.cluster_view import coordinator_of
from libramq.testing.cluster import Cluster, GroupPlan
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.nodes.consumer_node import SimulatedConsumer
from libramq.testing.scenarios.scenario import Scenario
from libramq.testing.simulation import Simulation

SEED = 1
GROUP = GroupPlan(name="G", topics=(("T",),), route_refresh_ms=500)
FROZEN_AT_MS, FROZEN_FOR_MS = 5_000, 16_000
#: Members read on until their leases end, after at most 10 s; then the frozen broker is missed as well.
STALL_MS_MAX = 6_000


class Frozen(Invariant):
    """Freezes the coordinator, and records the longest time for which a queue elsewhere is not read."""

    def __init__(self, cluster: Cluster) -> None:
        super().__init__(cluster)
        name = coordinator_of("G", list(cluster.brokers))
        assert name is not None
        self.coordinator = cluster.brokers[name]
        self.began_ms = cluster.now_ms
        self.is_frozen = False
        self.handled_ms: dict[str, MonotonicMs] = {}
        self.longest_ms = 0

    def step(self) -> None:
        passed_ms = self.cluster.now_ms - self.began_ms
        if not self.is_frozen and passed_ms >= FROZEN_AT_MS:
            self.is_frozen = True
            self.cluster.world.history.disturbed(f"{self.coordinator.name} freezes")
            self.coordinator.process.pause()
        elif self.is_frozen and passed_ms >= FROZEN_AT_MS + FROZEN_FOR_MS:
            self.coordinator.process.resume()

    def handled(self, member: SimulatedConsumer, delivery: Delivery, outcome: HandlerOutcome) -> None:
        queue, now_ms = delivery.owned.queue, self.cluster.now_ms
        if queue.broker_name != self.coordinator.name and queue.topic == "T":
            if self.is_frozen:
                self.longest_ms = max(self.longest_ms, now_ms - self.handled_ms.get(str(queue), now_ms))
            self.handled_ms[str(queue)] = now_ms


def test_the_other_brokers_are_read_on_after_some_seconds() -> None:
    """It took 20 s: name servers checked for silent brokers every 5 s, members kept asking the frozen one,
    and its successor waited for members that had returned under new ids.
    """
    scenario = Scenario(
        broker_count=3,
        is_sync=False,
        topics={"T": 2},
        groups=(GROUP,),
        members=(2,),
        producer_interval_ms=50,
        body_bytes=30,
        duration_ms=FROZEN_AT_MS + FROZEN_FOR_MS + 1_000,
        actions=(),
    )
    simulation = Simulation(SEED, scenario=scenario)
    frozen = Frozen(simulation.cluster)
    simulation.invariants.append(frozen)
    simulation.world.history.watchers.append(frozen)
    report = simulation.run()
    print(f"seed {SEED}: {frozen.longest_ms} ms")
    assert report.violation is None
    assert frozen.longest_ms < STALL_MS_MAX
