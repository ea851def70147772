"""Invariants: what they require, and what they must not."""

from dataclasses import replace

from libramq.clock import MonotonicMs
from libramq.message.queue import MessageQueue
from libramq.testing.cluster import PopPlan
from libramq.testing.history import Commit
from libramq.testing.invariants.kafka_offsets import KafkaCommitsAreKept, KafkaConsumedAtLeastOnce
from libramq.testing.invariants.offsets import CommitIsKept
from libramq.testing.invariants.ownership import ReadersKeepTheirQueues
from libramq.testing.invariants.pops import ResetsReplay
from libramq.testing.nodes.handlers import Handling
from libramq.testing.nodes.kafka_facts import KafkaCommit
from libramq.testing.scenarios.scenario import draw_scenario
from libramq.testing.simulation import Simulation

QUEUE = MessageQueue("T", "broker-a", 0)


def test_a_commit_whose_answer_comes_after_a_power_cut_may_be_lost_with_it():
    """The answer was still in the network. Offsets are durable some seconds later (docs/design/store.md)."""
    simulation = Simulation(1)
    (kept,) = (each for each in simulation.invariants if isinstance(each, CommitIsKept))
    commit = Commit(5, MonotonicMs(1))
    kept.commit_requested("G", QUEUE, commit)
    kept.broker_died("broker-a", durable_to=0)
    kept.broker_recovered("broker-a", _broker(simulation))
    commit.answered_ms = MonotonicMs(3)
    kept.offset_read("G", QUEUE, None, MonotonicMs(4))


def test_readers_are_not_judged_any_more_once_the_network_failed():
    """This includes a broken direction that begins at a broker (seed 2000117)."""
    simulation = Simulation(1)
    (readers,) = (each for each in simulation.invariants if isinstance(each, ReadersKeepTheirQueues))
    readers.disturbed("broker-a is killed after 39 calls of its disk")
    readers.disturbed("broker-a loses power, for 300 ms")
    assert readers._is_judged
    readers.disturbed("broker-a to member-2: frames vanish for 5687 ms")
    assert not readers._is_judged


def test_a_read_whose_answer_comes_after_its_brokers_death_counts():
    """The partition's queue is known from before (seed 810099)."""
    simulation = Simulation(1)
    reads = KafkaConsumedAtLeastOnce(simulation.cluster)
    node = simulation.cluster.brokers["broker-a"]
    node.kafka = _Port()  # type: ignore[assignment]
    reads.kafka_handled("K", "broker-a", ("T", 0), 0, 29)
    node.kafka = None
    reads.kafka_handled("K", "broker-a", ("T", 0), 29, 30)
    assert reads._read["K", QUEUE] == [(0, 30)]


def test_a_kafka_commit_beyond_its_queues_end_sets_the_end():
    """A power cut took messages, and their reader does not know yet (seeds 2000345, 2000392)."""
    simulation = Simulation(1)
    kept = KafkaCommitsAreKept(simulation.cluster)
    simulation.cluster.brokers["broker-a"].kafka = _Port()  # type: ignore[assignment]
    commit = KafkaCommit("K", "kafka-1", 1, "broker-a", 1, 1, {("T", 0): 7}, False, MonotonicMs(1))
    kept.kafka_commit(commit)
    offsets = _broker(simulation).offsets
    offsets.commit("K", "T", 0, 7)
    assert offsets.query("K", "T", 0) == 0
    kept.kafka_committed(commit, {("T", 0): 0})
    kept.step()


def test_only_queues_that_a_broker_names_are_read_again_after_a_reset():
    """A topic had fewer queues for a while; the others were left as they are (seed 6112800129)."""
    pops = PopPlan(members=1, invisible_ms=1_000, retries_max=1, handling=Handling())
    cluster = Simulation(1, scenario=replace(draw_scenario(1), pops=pops)).cluster
    replays = ResetsReplay(cluster)
    left_out = MessageQueue("T", "broker-a", 1)
    replays.stored(QUEUE, 0, 0, "named", MonotonicMs(0))
    replays.stored(left_out, 0, 0, "left out", MonotonicMs(0))
    replays.pops_set_back("G", "T", "broker-a", None)
    replays.pops_set_back("G", "T", "broker-a", [QUEUE])
    assert not replays.is_met()
    replays.popped("G", "T", "broker-a", "named", cluster.now_ms)
    assert replays.is_met()


class _Port:
    def queue(self, topic: str, partition: int) -> MessageQueue:
        return MessageQueue(topic, "broker-a", partition)


def _broker(simulation: Simulation):
    broker = simulation.cluster.brokers["broker-a"].broker
    assert broker is not None
    return broker
