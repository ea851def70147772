"""Simulated clusters: whatever a seed does to one, every invariant holds."""

import functools
import os
import subprocess
import sys

import pytest

from libramq.testing.cluster import GroupPlan
from libramq.testing.handlers import Handling
from libramq.testing.happening import Happening
from libramq.testing.scenario import Scenario
from libramq.testing.simulation import Report, Simulation

SEEDS_A_TEST = 20
SEEDS = 200
#: Fences behind a change of mode, locks that nobody gave back, groups of brokers that started together,
#: queues of a broker that had just come, epochs that went with the power, or that nobody but members knew.
FOUND_SOMETHING = (330, 599, 784, 825, 3005, 5415, 5559, 6419, 3447, 100332)


@functools.cache
def run(seed: int) -> Report:
    """What comes of a seed, for all tests that look at it."""
    report = Simulation(seed).run()
    assert report.is_ok, f"seed {seed}: {report.violation}\n" + "\n".join(report.lines)
    return report


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_every_invariant_holds(first: int):
    for seed in range(first, first + SEEDS_A_TEST):
        run(seed)


@pytest.mark.timeout(900)  # By itself it runs every seed.
def test_everything_happens_that_can():
    missing = set(Happening)
    for seed in range(SEEDS):
        missing -= run(seed).happenings.keys()
        if not missing:
            return
    pytest.fail(f"{SEEDS} seeds, and never: {', '.join(sorted(missing))}")


def test_a_member_leaves_while_brokers_find_each_other():
    """Seed 487, once: it was waited for a session, and no queue had an owner meanwhile."""
    scenario = Scenario(
        broker_count=3,
        is_sync=True,
        topics={"T1": 3, "T2": 4},
        groups=(GroupPlan(name="G1", topics=(("T1", "T2"),), handling=Handling(50), persist_ms=500),),
        members=(3,),
        producer_interval_ms=300,
        body_bytes=30,
        duration_ms=6_000,
        actions=((1_168, "stop"), (1_181, "join"), (4_275, "join")),
        name_server_count=3,
    )
    report = Simulation(487, scenario=scenario).run()
    assert report.is_ok, f"{report.violation}\n" + "\n".join(report.lines)


def test_one_seed_is_one_history_in_any_process():
    """Whatever order the hashes of texts give to sets."""
    program = (
        "from libramq.testing.simulation import Simulation\n"
        "print(*(Simulation(seed).run().checksum for seed in range(6)))"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", program],
            env=os.environ | {"PYTHONHASHSEED": hash_seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hash_seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert outputs[0].split() == [run(seed).checksum for seed in range(6)]


@pytest.mark.parametrize("stock_chance", [0.0, 1.0])
def test_a_hundred_members_come_at_once_and_half_of_them_go(stock_chance: float):
    scenario = Scenario(
        broker_count=2,
        is_sync=False,
        topics={"T": 32},
        groups=(GroupPlan(name="G", topics=(("T",),), stock_chance=stock_chance),),
        members=(100,),
        producer_interval_ms=30,
        body_bytes=30,
        duration_ms=6_000,
        actions=tuple((2_500 + 40 * number, "stop") for number in range(50)),
    )
    report = Simulation(1, scenario=scenario).run()
    assert report.is_ok, report.violation
    assert report.stored > 100
    if not stock_chance:
        assert report.duplicates == 0
