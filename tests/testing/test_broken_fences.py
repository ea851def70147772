"""Fence, lease and what outlives a process, each broken alone: the simulator must notice within 60 seeds.

Everything else works, the members' lease included. Any invariant may be the one that breaks.
"""

from dataclasses import replace

import pytest

from libramq.broker.committing import Committing
from libramq.broker.reading import Reading
from libramq.client.core.lease import Lease
from libramq.offsets.fence import Fences, Opening
from libramq.testing.cluster import GroupPlan
from libramq.testing.handlers import Handling
from libramq.testing.scenario import Scenario
from libramq.testing.simulation import Simulation

SEEDS_MAX = 60

#: Handlers that are slower than their members may be with giving queues up: what these do last is late.
SLOW = GroupPlan(
    name="G",
    topics=(("T",),),
    session_ms=2_000,
    revoke_timeout_ms=1_000,
    handling=Handling(duration_ms_max=20, slow_chance=0.1, slow_ms=1_500),
)


def scenario(*actions: str, **other: object) -> Scenario:
    """Two brokers, one topic, one group; an action every second."""
    times = range(2_000, 2_000 + 1_000 * len(actions), 1_000)
    return replace(
        Scenario(
            broker_count=2,
            is_sync=True,
            topics={"T": 3},
            groups=(SLOW,),
            members=(3,),
            producer_interval_ms=30,
            body_bytes=30,
            duration_ms=times[-1] + 2_000,
            actions=tuple(zip(times, actions, strict=True)),
        ),
        **other,  # type: ignore[arg-type]
    )


CHANGES = scenario("join", "partition", "stop", "join", "pause", "kill", "join", "partition", "stop")
RESTARTS = scenario(
    "join", "kill_broker", "partition", "restart_broker", "join", "kill_broker", "pause", "stop"
)


def noticed(what: Scenario) -> str:
    """Return the invariant that breaks first."""
    for seed in range(SEEDS_MAX):
        report = Simulation(seed, scenario=what).run()
        if report.violation is not None:
            print(f"seed {seed}: {report.violation.invariant}: {report.violation.what[:200]}")
            return report.violation.invariant
    pytest.fail(f"{SEEDS_MAX} seeds did not notice")


def test_nothing_breaks_where_nothing_is_broken():
    for what in (CHANGES, RESTARTS):
        for seed in range(5):
            report = Simulation(seed, scenario=what).run()
            assert report.is_ok, f"seed {seed}: {report.violation}"


def test_commits_that_no_fence_checks(monkeypatch: pytest.MonkeyPatch):
    commit = Committing.commit

    def unchecked(self, *what, **whose):  # type: ignore[no-untyped-def]
        fences, self._fences = self._fences, Fences("nowhere")
        self._fences.check = lambda *_: None
        try:
            commit(self, *what, **whose)
        finally:
            self._fences = fences

    monkeypatch.setattr(Committing, "commit", unchecked)
    noticed(CHANGES)


def test_pulls_that_no_fence_checks(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Reading, "_check_fence", lambda self, pull: None)
    noticed(CHANGES)


def test_openings_that_do_not_outlive_their_broker(monkeypatch: pytest.MonkeyPatch):
    apply = Fences.apply

    def forget(self, name, opening):  # type: ignore[no-untyped-def]
        if opening is None or not isinstance(opening, Opening):
            apply(self, name, opening)

    monkeypatch.setattr(Fences, "apply", forget)
    noticed(RESTARTS)


def test_members_without_a_lease(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Lease, "renew", lambda *_: None)
    noticed(scenario("pause", "join", "pause", "partition", "pause", duration_ms=25_000))
