"""Simulated clusters: whatever a seed does to one, every invariant holds."""

import os
import subprocess
import sys

import pytest

from libramq.testing.cluster import GroupPlan
from libramq.testing.scenario import Scenario
from libramq.testing.simulation import Simulation

SEEDS_A_TEST = 20
SEEDS = 200
#: Fences behind a change of mode, locks that nobody gave back, groups of brokers that started together,
#: queues of a broker that had just come.
FOUND_SOMETHING = (330, 599, 784, 825, 3005, 5415, 5559, 6419)


@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_A_TEST))
def test_every_invariant_holds(first: int):
    for seed in range(first, first + SEEDS_A_TEST):
        report = Simulation(seed).run()
        assert report.is_ok, f"seed {seed}: {report.violation}\n" + "\n".join(report.lines)


@pytest.mark.parametrize("seed", FOUND_SOMETHING)
def test_seeds_that_found_something_once(seed: int):
    report = Simulation(seed).run()
    assert report.is_ok, f"seed {seed}: {report.violation}\n" + "\n".join(report.lines)


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
    assert outputs[0].split() == [Simulation(seed).run().checksum for seed in range(6)]


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
