"""`libra simulate`: its output after success and after a violation."""

import builtins
import dataclasses
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from libramq.cli.main import run
from libramq.cli.simulating import simulate
from libramq.offsets.journal import OffsetJournal
from libramq.testing.happening import Happening
from libramq.testing.history import Violation
from libramq.testing.scenarios.scenario import draw_scenario
from libramq.testing.simulation import Report, RunSeed, run_seeds
from tests.cli.commands import SECONDS_MAX


def test_passing_seeds_are_counted(capsys: pytest.CaptureFixture[str]):
    assert run(["simulate", "--seeds", "3", "--jobs", "2", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "3 seeds from 0 on: every invariant held" in said
    (line,) = [line for line in said.splitlines() if Happening.COORDINATED in line]
    assert re.search(r" [1-3] +[1-9]\d*", line)


def test_a_missing_extra_is_named_before_any_seed_runs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """Only seeds with groups of Kafka's clients need it; the first seeds have none."""
    imported = builtins.__import__

    def without_extra(name: str, *arguments: Any, **options: Any) -> Any:
        if name == "libramq.testing.nodes.kafka_port":
            raise ModuleNotFoundError("No module named 'google_crc32c'", name="google_crc32c")
        return imported(name, *arguments, **options)

    monkeypatch.setattr(builtins, "__import__", without_extra)
    first = next(seed for seed in range(100) if draw_scenario(seed).kafka_groups)
    assert run(["simulate", "--seeds", str(first + 1)]) == 2
    told = capsys.readouterr()
    assert f"seed {first} " in told.err
    assert "pip install 'libramq[kafka]'" in told.err
    assert len(told.err.splitlines()) == 1
    assert run(["simulate", "--seeds", "1"]) == 0


def test_a_failure_names_rule_seed_and_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The printed command reproduces the same failure."""
    monkeypatch.setattr(OffsetJournal, "replay", lambda self: iter(()))
    assert run(["simulate", "--seeds", "50"]) == 1
    said = capsys.readouterr().out
    assert "broke the rule that an acknowledged commit is not forgotten" in said
    command = re.search(r"libra (simulate --seed \d+ --steps \d+ --log)", said)
    assert command is not None
    assert run(command[1].split()) == 1
    again = capsys.readouterr().out
    assert "broke the rule that an acknowledged commit is not forgotten" in again
    assert "joins G1" in again


def run_with_broken_seeds(seed: int) -> Report:
    """Run only the first action of a seed; seeds 34 and 36 end with a violation."""
    report = RunSeed(steps=1)(seed)
    violation = Violation("a rule", f"of {seed}") if seed in (34, 36) else report.violation
    return dataclasses.replace(report, violation=violation)


def test_several_jobs_report_in_the_order_of_one():
    seeds, once = range(32, 37), RunSeed(steps=2, lines_kept=None)
    reports = list(run_seeds(seeds, once, jobs=2))
    assert [report.seed for report in reports] == list(seeds)
    assert reports == list(run_seeds(seeds, once))


#: Simulates two seeds endlessly, each in a separate process.
FOR_EVER = """
import threading
from libramq.testing.simulation import run_seeds

def run(seed):
    print(seed, flush=True)
    threading.Event().wait()

if __name__ == "__main__":
    list(run_seeds(range(2), run, jobs=2))
"""


def test_jobs_end_with_a_process_that_is_killed(tmp_path: Path):
    script = tmp_path / "for_ever.py"
    script.write_text(FOR_EVER)
    process = subprocess.Popen([sys.executable, script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert {process.stdout.readline() for _ in range(2)} == {"0\n", "1\n"}
    process.kill()
    assert process.communicate(timeout=SECONDS_MAX) == ("", None)  # Nothing holds its output open any more.


def test_the_first_failing_seed_ends_the_run_with_any_number_of_jobs(capsys: pytest.CaptureFixture[str]):
    outputs = []
    for jobs in (1, 2):
        assert simulate(32, 6, steps=1, jobs=jobs, run=run_with_broken_seeds) == 1
        outputs.append(capsys.readouterr().out)
    assert outputs[0] == outputs[1]
    assert "seed 34 broke the rule that a rule:" in outputs[0]
    assert "libra simulate --seed 34 --steps 1 --log" in outputs[0]
    assert "seed 36" not in outputs[0]


def test_all_failing_seeds_are_listed_by_a_run_that_keeps_going(capsys: pytest.CaptureFixture[str]):
    assert simulate(32, 6, steps=1, keeps_going=True, run=run_with_broken_seeds) == 1
    said = capsys.readouterr().out
    for seed in (34, 36):
        assert f"libra simulate --seed {seed} --steps 1 --log" in said
    assert "6 seeds from 32 on: 2 failed" in said
    assert said.rstrip().endswith("failed: 34 36")
