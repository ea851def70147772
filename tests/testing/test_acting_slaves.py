"""Acting slaves in the simulator: waiting messages are delivered once, whether or not the master returns."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from libramq.broker.cluster.acting_slave.delay_levels import EscapingLevels
from libramq.broker.cluster.acting_slave.other_masters import OtherMasters, Outgoing, Window
from libramq.broker.cluster.acting_slave.pops import EscapingPops
from libramq.broker.cluster.acting_slave.timers import EscapingTimers
from libramq.broker.cluster.acting_slave.transactions import EscapingTransactions
from libramq.broker.cluster.returning_master import ReturningMaster
from libramq.broker.files.passed_on_file import PassedOnFile
from libramq.broker.files.pop_state import PopState
from libramq.broker.pop.reviving import Reviving
from libramq.broker.transactions import half
from libramq.broker.transactions.known_transactions import KnownTransactions
from libramq.codes import RequestCode
from libramq.filesystem import FileSystem
from libramq.kernel.work import Work
from libramq.message import names
from libramq.message.message import MessageExt
from libramq.message.properties import TRANSACTION_PREPARED
from libramq.pop.check_point import CheckPoint
from libramq.rpc.call import Call
from libramq.runtime.seams import Remotes
from libramq.testing.cluster import GroupPlan
from libramq.testing.happening import Happening
from libramq.testing.invariants.delays import DelayedMessagesArrive, DelayedMessagesComeOnce
from libramq.testing.invariants.invariant import Invariant
from libramq.testing.invariants.messages import RolledBackStaysHidden
from libramq.testing.invariants.offsets import DoneWhenDurable
from libramq.testing.invariants.pops import AcknowledgedStaysDone, AttemptsComeOnce, PoppedAtLeastOnce
from libramq.testing.invariants.slaves import SlavesOnlyRead
from libramq.testing.machine.network import ask
from libramq.testing.nodes import popper_node
from libramq.testing.scenarios.scenario import Scenario
from libramq.testing.simulation import Report, Simulation

SEEDS_MAX = 12
#: A seed in which the master is away for long.
LONG = 12
#: A seed in which many acknowledgements reach the slave.
BUSY = 27
#: A seed in which a slave receives acknowledgements just before it is restarted.
RESTARTED = 2
GROUP = GroupPlan(name="G", topics=(("T",),), route_refresh_ms=500)


def run(
    seed: int,
    *actions: str,
    every_ms: int = 14_000,
    groups: tuple[GroupPlan, ...] = (GROUP,),
    **other: object,
) -> Report:
    """Run two brokers; the first one has a slave that acts while its master is gone."""
    times = range(3_000, 3_000 + every_ms * len(actions), every_ms)
    scenario = Scenario(
        broker_count=2,
        is_sync=True,
        topics={"T": 2},
        groups=groups,
        members=(2,),
        producer_interval_ms=60,
        body_bytes=30,
        duration_ms=times[-1] + every_ms,
        actions=tuple(zip(times, actions, strict=True)),
        slave_count=1,
        has_acting_slaves=True,
        **other,  # type: ignore[arg-type]
    )
    return Simulation(seed, scenario=scenario).run()


def caught(rule: type[Invariant], *first: int) -> None:
    """Check that some seed breaks this rule, and that no earlier seed breaks another one."""
    for seed in (*(first or (LONG,)), *range(SEEDS_MAX)):
        report = run(seed, "end_master", "end_master")
        if report.violation is not None:
            assert report.violation.invariant == rule.name, f"seed {seed}: {report.violation}"
            return
    pytest.fail(f"{SEEDS_MAX} seeds did not break the rule that {rule.name}")


@pytest.mark.parametrize("waits_for_slaves", [pytest.param(False, marks=pytest.mark.thorough), True])
def test_waiting_messages_are_delivered_once(waits_for_slaves: bool) -> None:
    report = run(LONG, "end_master", "end_master", waits_for_slaves=waits_for_slaves)
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)
    happened = report.happenings
    assert happened[Happening.ESCAPED]
    assert happened[Happening.PASSED_ON]
    assert happened[Happening.REVIVED_ELSEWHERE]
    assert happened[Happening.READ_FROM_SLAVE]
    assert happened[Happening.POPPED_AT_SLAVE]


def test_a_transaction_whose_end_the_slave_had_not_copied_may_be_ended_again() -> None:
    report = run(26, "end_master", "end_master")
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)


def test_slaves_that_end_and_are_out_of_reach_lose_nothing() -> None:
    ends = ("end_master", "end_slave", "part_slave", "end_master", "kill_broker", "end_slave", "end_master")
    report = run(0, *ends, every_ms=4_000)
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)


@pytest.mark.thorough
def test_levels_that_a_slave_drops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def drop(self: OtherMasters, window: Window, outgoing: object, accepted: Callable[[], None]) -> None:
        for place in range(len(window.messages)):
            window.messages[place] = None
        accepted()

    monkeypatch.setattr(OtherMasters, "send", drop)
    caught(DoneWhenDurable)


@pytest.mark.thorough
def test_timers_that_a_slave_drops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EscapingTimers, "_find", lambda self, *slot: [])
    caught(DelayedMessagesArrive)


@pytest.mark.thorough
def test_a_master_that_does_not_ask_its_slave_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def nobody(_: ReturningMaster) -> Work[list[str]]:
        yield None
        return []

    monkeypatch.setattr(ReturningMaster, "_find", nobody)
    caught(DelayedMessagesComeOnce)


@pytest.mark.thorough
def test_a_slave_that_forgets_its_sent_messages_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(self: EscapingLevels, level: int, window: Window) -> None:
        if window.is_done:
            self._windows.pop(level, None)

    monkeypatch.setattr(EscapingLevels, "_accepted", forget)
    caught(DelayedMessagesComeOnce)


@pytest.mark.thorough
def test_half_messages_that_a_slave_sends_as_committed_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    outgoing = EscapingTransactions._outgoing

    def committed(self: EscapingTransactions, message: MessageExt) -> Outgoing:
        out = outgoing(self, message)
        properties = {name: value for name, value in out.properties.items() if name != TRANSACTION_PREPARED}
        return out._replace(properties=properties, transaction=0)

    monkeypatch.setattr(EscapingTransactions, "_outgoing", committed)
    caught(RolledBackStaysHidden)


@pytest.mark.thorough
def test_half_messages_that_a_slave_drops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def skip(self: EscapingTransactions, open_: KnownTransactions) -> tuple[list[MessageExt], bool]:
        open_.passed(self._store.max_offset(names.TRANS_HALF_TOPIC, half.QUEUE_ID))
        return [], False

    monkeypatch.setattr(EscapingTransactions, "_find", skip)
    caught(DelayedMessagesArrive)


@pytest.mark.thorough
def test_pops_that_a_slave_drops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EscapingPops, "_messages", lambda self, check_point: [])
    caught(PoppedAtLeastOnce)


@pytest.mark.thorough
def test_an_acknowledgement_at_a_slave_that_counts_for_others_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(CheckPoint, "open_bits_in", lambda self, bit_set: self.open_bits)
    caught(PoppedAtLeastOnce, BUSY)


@pytest.mark.thorough
def test_pops_that_a_slave_forgets_it_has_passed_on_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EscapingPops, "_finish", EscapingPops._end_window)
    caught(AttemptsComeOnce)


@pytest.mark.thorough
def test_a_master_that_redelivers_what_its_slave_has_passed_on_is_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(PopState, "passed_on", lambda self, what: iter(()))
    caught(AttemptsComeOnce)


@pytest.mark.thorough
def test_a_master_that_redelivers_before_it_has_asked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    begin = Reviving.__init__

    def begin_at_once(self: Reviving, *parts: Any) -> None:
        begin(self, *parts)
        self.rounds.is_held = False

    monkeypatch.setattr(Reviving, "__init__", begin_at_once)
    caught(AttemptsComeOnce)


def test_acknowledgements_that_are_forgotten_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def forget(remotes: Remotes, address: str, call: Call[Any], answered: Callable[[Any], None]) -> None:
        if call.code == RequestCode.ACK_MESSAGE:
            answered(None)
        else:
            ask(remotes, address, call, answered)

    monkeypatch.setattr(popper_node, "ask", forget)
    caught(AcknowledgedStaysDone)


@pytest.mark.thorough
def test_acknowledgements_that_a_slave_drops_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(EscapingPops, "acknowledge", lambda self, done: True)
    caught(AcknowledgedStaysDone, BUSY)


def test_an_acting_slaves_deliveries_outlive_it() -> None:
    report = run(1, "end_acting", every_ms=30_000, has_second_slaves=True)
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)
    assert report.happenings[Happening.ACTING_ENDED]


def test_acknowledgements_at_a_restarted_slave_persist() -> None:
    """Otherwise the message would become visible again after the slave's return."""
    report = run(RESTARTED, "end_acting", every_ms=50_000, has_long_pops=True)
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)
    assert report.happenings[Happening.ACTING_ENDED]


@pytest.mark.thorough
def test_acknowledgements_that_a_slave_forgets_at_its_restart_are_caught(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begin = PassedOnFile.__init__

    def forget(self: PassedOnFile, filesystem: FileSystem, directory: Path) -> None:
        begin(self, filesystem, directory)
        self.keep(())

    monkeypatch.setattr(PassedOnFile, "__init__", forget)
    report = run(RESTARTED, "end_acting", every_ms=50_000, has_long_pops=True)
    assert report.violation is not None
    assert report.violation.invariant == AcknowledgedStaysDone.name


def test_a_master_that_was_taken_for_dead_repeats_nothing() -> None:
    report = run(1, "freeze_master", every_ms=30_000)
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)
    assert report.happenings[Happening.ESCAPED]


@pytest.mark.parametrize("stock_chance", [0.0, 1.0])
def test_members_read_on_and_only_stock_ones_commit_at_the_slave(
    monkeypatch: pytest.MonkeyPatch, stock_chance: float
) -> None:
    """Members of coordinated groups read under their master's openings."""
    commits: list[str] = []
    monkeypatch.setattr(SlavesOnlyRead, "changed_at_slave", lambda *which: commits.append(which[3]))
    report = run(0, "end_master", groups=(replace(GROUP, stock_chance=stock_chance),))
    assert report.is_ok, report.violation
    assert bool(commits) == bool(stock_chance)
    assert bool(report.happenings[Happening.READ_FROM_SLAVE]) != bool(stock_chance)
