"""Invariants: what they require, and what they must tolerate."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from libramq.clock import MonotonicMs
from libramq.message import names
from libramq.message.queue import MessageQueue
from libramq.testing.cluster import PopPlan
from libramq.testing.history import Commit, KafkaCommit, StoredMessage, Violation
from libramq.testing.invariants import pops
from libramq.testing.invariants.delays import DelayedMessagesComeOnce
from libramq.testing.invariants.kafka_groups import KafkaCommitsAreKept, KafkaConsumedAtLeastOnce
from libramq.testing.invariants.offsets import CommitIsKept
from libramq.testing.invariants.ownership import ReadersKeepTheirQueues
from libramq.testing.invariants.pops import AcknowledgedStaysDone, AttemptsComeOnce, ResetsReplay
from libramq.testing.invariants.slaves import OfPairs
from libramq.testing.nodes.consumer_node import Handling
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
    """The partition's queue is already known (seed 810099)."""
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
    """The topic had fewer queues for a while; the others stay as they are (seed 6112800129)."""
    pops = PopPlan(members=1, invisible_ms=1_000, retries_max=1, handling=Handling())
    cluster = Simulation(1, scenario=replace(draw_scenario(1), pops=pops)).cluster
    replays = ResetsReplay(cluster)
    left_out = MessageQueue("T", "broker-a", 1)
    replays.stored(StoredMessage(QUEUE, 0, 0, "named", MonotonicMs(0)))
    replays.stored(StoredMessage(left_out, 0, 0, "left out", MonotonicMs(0)))
    replays.pops_set_back("G", "T", "broker-a", None)
    replays.pops_set_back("G", "T", "broker-a", [QUEUE])
    assert not replays.is_met()
    replays.popped("G", "T", "broker-a", "named", cluster.now_ms)
    assert replays.is_met()


#: Where the logs of broker-a's slaves end when it is killed, and where its own log ends.
FIRST_END, SECOND_END, LOG_END = 100, 110, 120
#: A delivery attempt: its number, its broker, and its place in the broker's log.
BY_MASTER = 2, "broker-a", FIRST_END
BY_SLAVE = 2, "broker-b", 500


def test_an_attempt_that_no_slave_had_copied_when_its_master_was_killed_may_come_again(
    monkeypatch: pytest.MonkeyPatch,
):
    """Each of the two has later attempts (seeds 5240, 6115)."""
    rule = AttemptsComeOnce(_pair())
    _kill_master(rule)
    once = (1, "broker-a", 30)
    later = ((3, "broker-a", 200), (3, "broker-b", 600))
    _store(monkeypatch, [once, BY_MASTER, BY_SLAVE, *later])
    rule.finish()


@pytest.mark.parametrize(
    "attempts",
    [
        pytest.param([(2, "broker-a", FIRST_END - 1), BY_SLAVE], id="copied by the slave"),
        pytest.param([(2, "broker-a", LOG_END), BY_SLAVE], id="after the master's return"),
        pytest.param([BY_MASTER, BY_SLAVE, (2, "broker-b", 600)], id="three times"),
        pytest.param(
            [(1, "broker-a", 30), (1, "broker-b", 400), BY_MASTER, BY_SLAVE], id="and an earlier attempt"
        ),
    ],
)
def test_any_other_repeated_attempt_breaks_the_rule(
    monkeypatch: pytest.MonkeyPatch, attempts: list[tuple[int, str, int]]
):
    rule = AttemptsComeOnce(_pair())
    _kill_master(rule)
    _store(monkeypatch, attempts)
    with pytest.raises(Violation):
        rule.finish()


def test_attempts_not_copied_before_the_slaves_own_end_count(monkeypatch: pytest.MonkeyPatch):
    """The slave acted first, and is gone when the master returns."""
    cluster = _pair()
    rule = AttemptsComeOnce(cluster)
    rule.broker_died("broker-a", durable_to=None)
    cluster.every_slave[0].broker = None
    rule.step()
    rule.broker_recovered("broker-a", _with_log(LOG_END))
    _store(monkeypatch, [BY_MASTER, BY_SLAVE])
    rule.finish()


@pytest.mark.parametrize("place", [FIRST_END, FIRST_END - 1, LOG_END])
@pytest.mark.parametrize("is_frozen", [False, True])
def test_a_delivery_that_no_slave_had_copied_may_come_again(
    monkeypatch: pytest.MonkeyPatch, place: int, is_frozen: bool
):
    """This holds if the master was killed or frozen (seed 8100467)."""
    rule = DelayedMessagesComeOnce(_pair())
    rule.deferred("broker-a", "T", "id", MonotonicMs(0))
    if is_frozen:
        _freeze_master(rule)
    else:
        _kill_master(rule)
    is_broken = place != FIRST_END
    placed = {
        names.SCHEDULE_TOPIC: [("broker-a", "id", 10)],
        "T": [("broker-a", "id", place), ("broker-b", "id", 500)],
    }
    monkeypatch.setattr(rule, "_messages", lambda topic: placed.get(topic, []))
    assert _breaks(rule) == is_broken


@pytest.mark.parametrize(("place", "is_broken"), [(FIRST_END, False), (FIRST_END - 1, True)])
def test_one_of_two_copies_may_be_popped_after_the_other_is_acknowledged(
    monkeypatch: pytest.MonkeyPatch, place: int, is_broken: bool
):
    """Two copies exist only if the master redelivered the message just before its end."""
    rule = AcknowledgedStaysDone(_pair())
    _kill_master(rule)
    rule.acknowledged("POPPERS", "T", "id", "broker-a")
    rule.popped("POPPERS", "T", "broker-b", "id", MonotonicMs(0))
    _store(monkeypatch, [(2, "broker-a", place), BY_SLAVE], first=LOG_END - 1)
    assert _breaks(rule) == is_broken


def _pair() -> Any:
    """Return a cluster in which broker-a has two slaves."""
    process = SimpleNamespace(is_paused=False)
    master = SimpleNamespace(name="broker-a", broker=_with_log(LOG_END), process=process)
    slaves = [
        SimpleNamespace(name=name, master=master, broker=_with_log(end), is_caught_up=False)
        for name, end in (("slave of broker-a", FIRST_END), ("slave 2 of broker-a", SECOND_END))
    ]
    history = SimpleNamespace(happened=lambda *_: None)
    return SimpleNamespace(
        now_ms=MonotonicMs(100_000),
        is_sync=False,
        has_acting_slaves=True,
        brokers={},
        slaves={"broker-a": slaves[0]},
        every_slave=slaves,
        poppers=[SimpleNamespace(topic="T", group="POPPERS")],
        world=SimpleNamespace(history=history),
    )


def _with_log(end: int) -> Any:
    return SimpleNamespace(store=SimpleNamespace(end=end))


def _kill_master(rule: OfPairs) -> None:
    rule.broker_died("broker-a", durable_to=None)
    rule.step()
    rule.broker_recovered("broker-a", _with_log(LOG_END))


def _freeze_master(rule: OfPairs) -> None:
    """Freeze the master for a while, and let the slaves copy the rest when it is awake."""
    master, *slaves = rule.cluster.every_slave[0].master, *rule.cluster.every_slave
    master.process.is_paused = True
    rule.step()
    master.process.is_paused = False
    for slave in slaves:
        slave.broker = _with_log(LOG_END)
    rule.step()


def _store(
    monkeypatch: pytest.MonkeyPatch, attempts: Sequence[tuple[int, str, int]], first: int = 20
) -> None:
    """Send a message once, with these delivery attempts."""

    def message(times: int, place: int) -> SimpleNamespace:
        return SimpleNamespace(message_id="id", reconsume_times=times, physical_offset=place)

    placed = {
        "T": [("broker-a", message(0, first))],
        names.pop_retry_topic("T", "POPPERS"): [(broker, message(n, place)) for n, broker, place in attempts],
    }
    monkeypatch.setattr(pops, "messages_at", lambda _, topic: iter(placed[topic]))


def _breaks(rule: OfPairs) -> bool:
    try:
        rule.finish()
    except Violation:
        return True
    return False


class _Port:
    def queue(self, topic: str, partition: int) -> MessageQueue:
        return MessageQueue(topic, "broker-a", partition)


def _broker(simulation: Simulation):
    broker = simulation.cluster.brokers["broker-a"].broker
    assert broker is not None
    return broker
