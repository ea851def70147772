"""KIP-848 groups in the simulator: deliberate faults of their coordinator are noticed.

Each test begins with seeds known to notice the fault, as in test_broken_fences.py.
"""

import os

import msgspec
import pytest

from libramq.broker.cluster.kafka.group_copies import GroupCopies
from libramq.broker.cluster.kafka.nodes import Nodes
from libramq.broker.files.tables import Entries
from libramq.broker.groups.group_offsets import GroupOffsets
from libramq.groups.modern.group import ModernGroup
from libramq.groups.protocol_groups import Refusal
from libramq.protocols.kafka.group_records import ModernGroupRecords
from libramq.testing.cluster import GroupPlan
from libramq.testing.history import KafkaGroupPlan
from libramq.testing.scenarios.scenario import Scenario
from libramq.testing.simulation import Simulation

SEEDS_MAX = 40


def scenario(*actions: str, brokers: int = 1, every_ms: int = 1_000, **plan: object) -> Scenario:
    """One topic, one KIP-848 group; an action every second."""
    times = range(4_000, 4_000 + every_ms * len(actions), every_ms)
    settings: dict[str, object] = {"members": 3, "commit_ms": 300} | plan
    return Scenario(
        broker_count=brokers,
        is_sync=True,
        topics={"T": 4},
        groups=(GroupPlan(name="G", topics=(("T",),)),),
        members=(1,),
        producer_interval_ms=50,
        body_bytes=30,
        duration_ms=times[-1] + 3_000,
        actions=tuple(zip(times, actions, strict=True)),
        kafka_groups=(KafkaGroupPlan(name="K", topics=("T",), **settings),),  # type: ignore[arg-type]
    )


CHANGES = scenario("kafka_join", "kafka_stop", "kafka_join", "kafka_kill", "kafka_join", "kafka_bounce")
RESTARTS = scenario("kill_broker", "kafka_join", "kill_broker", "kafka_stop", "kill_broker", every_ms=5_000)
SEVERAL = scenario(
    "end_coordinator", "kafka_join", "end_coordinator", "kafka_stop", brokers=3, every_ms=4_000
)


def noticed(what: Scenario, *first: int) -> str:
    """Return the invariant that breaks first; `first` lists the seeds to begin with."""
    first = () if os.environ.get("FIRST_SEEDS") == "none" else first
    for seed in [*first, *(seed for seed in range(SEEDS_MAX) if seed not in first)]:
        report = Simulation(seed, scenario=what).run()
        if report.violation is not None:
            print(f"seed {seed}: {report.violation.invariant}: {report.violation.what[:200]}")
            return report.violation.invariant
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


@pytest.mark.parametrize("what", [CHANGES, RESTARTS, SEVERAL])
def test_without_a_deliberate_fault_it_passes(what: Scenario):
    report = Simulation(0, scenario=what).run()
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)


@pytest.mark.thorough
def test_partitions_that_are_granted_before_they_are_given_up(monkeypatch: pytest.MonkeyPatch):
    def next_step(self, member):  # type: ignore[no-untyped-def]
        target = self.target.get(member.member_id, frozenset())
        return member.next_step(target, self.target_epoch, lambda _: True)

    monkeypatch.setattr(ModernGroup, "_next", next_step)
    assert noticed(CHANGES) == "a partition of a Kafka group has one owner, and others are fenced"


@pytest.mark.thorough
def test_epochs_that_a_restart_forgets(monkeypatch: pytest.MonkeyPatch):
    """Members are forgotten as well, so they join a group that starts from scratch."""
    monkeypatch.setattr(ModernGroupRecords, "begin", lambda *_: None)
    monkeypatch.setattr(ModernGroupRecords, "restored", lambda *_: iter(()))
    noticed(RESTARTS)


@pytest.mark.thorough
def test_members_that_a_restart_forgets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ModernGroupRecords, "restored", lambda *_: iter(()))
    assert noticed(RESTARTS) == "nothing moves in a Kafka group that is balanced"


@pytest.mark.thorough
def test_commits_under_any_epoch(monkeypatch: pytest.MonkeyPatch):
    check = ModernGroup.may_use_offsets

    def may_use(self, member_id, epoch):  # type: ignore[no-untyped-def]
        refusal = check(self, member_id, epoch)
        return Refusal.NONE if refusal is Refusal.STALE_EPOCH else refusal

    monkeypatch.setattr(ModernGroup, "may_use_offsets", may_use)
    assert noticed(CHANGES) == "a partition of a Kafka group has one owner, and others are fenced"


@pytest.mark.thorough
def test_sessions_that_never_end(monkeypatch: pytest.MonkeyPatch):
    """A killed member's partitions are left without an owner."""

    def tick(self, now_ms):  # type: ignore[no-untyped-def]
        if self._assign_at_ms is not None and self._assign_at_ms <= now_ms:
            self._assign(now_ms)
        self._due_ms = self._assign_at_ms

    monkeypatch.setattr(ModernGroup, "tick", tick)
    assert noticed(CHANGES) == "every partition of a Kafka group is owned by one member soon after faults end"


@pytest.mark.thorough
def test_revocations_that_are_forgotten_in_a_restart(monkeypatch: pytest.MonkeyPatch):
    put = Entries.put

    def forget(self, key, entry):  # type: ignore[no-untyped-def]
        if entry is not None and entry.member is not None:
            entry = msgspec.structs.replace(entry, member=msgspec.structs.replace(entry.member, assigned={}))
        put(self, key, entry)

    monkeypatch.setattr(Entries, "put", forget)
    noticed(RESTARTS)


@pytest.mark.thorough
def test_commits_that_stay_at_the_coordinator(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GroupOffsets, "commit", lambda self, group, commits, done: done({}))
    assert noticed(SEVERAL) == "an acknowledged commit of a Kafka group does not go back"


@pytest.mark.thorough
def test_partitions_whose_numbers_are_forgotten_in_a_restart(monkeypatch: pytest.MonkeyPatch):
    """Until other brokers have answered, all numbers seemed to belong to this broker's queues."""
    monkeypatch.setattr(Nodes, "_numbers_itself", lambda self, topic: not self.known)
    noticed(SEVERAL)


@pytest.mark.thorough
def test_members_that_the_next_coordinator_forgets(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(GroupCopies, "claim_modern", lambda _: {})
    one = scenario("kill_broker", brokers=3)
    assert noticed(one, 2) == "nothing moves in a Kafka group that is balanced"
