"""`bench/soak` counts what is lost and judges what grows; a short one runs with everything."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from bench.soaking.measures import DESCRIPTORS, MEMORY, judge, of_process, slope_an_hour, store_mib
from bench.soaking.tally import Tally

from tests.cli.commands import SOURCE

BENCH = Path(__file__).resolve().parent.parent.parent / "bench" / "soak"


def test_messages_that_were_acknowledged_and_not_handled_wait() -> None:
    tally = Tally()
    tally.handled([2])  # Before its acknowledgement was heard.
    tally.acknowledged([0, 1, 2], now_s=10.0)
    tally.acknowledged([3], now_s=20.0)
    tally.handled([0, 100_000])
    tally.handled([0])
    assert (tally.acknowledged_count, tally.handled_count, tally.twice_count) == (4, 3, 1)
    assert tally.waiting_count == 2
    assert (tally.overdue(15.0), tally.overdue(30.0)) == ([1], [1, 3])


def test_a_sawtooth_is_flat_and_a_leak_is_not() -> None:
    sawtooth = [(float(minute), 100.0 + 30 * (minute % 7)) for minute in range(120)]
    assert abs(slope_an_hour(sawtooth)) < 1
    assert judge("broker", MEMORY, sawtooth).is_flat
    leak = [(minute, value + 0.2 * minute) for minute, value in sawtooth]
    verdict = judge("broker", MEMORY, leak)
    assert verdict.is_flat is False
    assert verdict.text.startswith("broker: memory GROWS: median ")


def test_what_happens_before_caches_are_full_is_not_judged() -> None:
    filling = [(float(minute), min(minute, 20) * 10.0) for minute in range(60)]
    assert judge("broker", MEMORY, filling).is_flat
    assert judge("broker", MEMORY, filling[:25]).is_flat is None


def test_a_descriptor_in_an_hour_is_none_that_leaks() -> None:
    rows = [(float(minute), 10.0 + minute // 60) for minute in range(120)]
    assert judge("broker", DESCRIPTORS, rows).is_flat
    rows = [(float(minute), 10.0 + minute // 15) for minute in range(120)]
    assert judge("broker", DESCRIPTORS, rows).is_flat is False


def test_a_process_is_measured_with_its_children(tmp_path: Path) -> None:
    memory, descriptors = of_process(os.getpid())
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        with_child = of_process(os.getpid())
        assert child.stdin is not None
        child.stdin.close()
    assert with_child[0] > memory > 1
    assert with_child[1] > descriptors > 3
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "x.journal.1").write_bytes(b"x" * 8192)
    (tmp_path / "log").write_bytes(b"x" * 8192)
    journals, store = store_mib(tmp_path)
    assert journals * 1024 == 8
    assert store >= 16 / 1024


def test_a_process_that_has_ended_is_not_measured_as_nothing() -> None:
    """A soak would go on without a server that has died."""
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        ended.wait()
    with pytest.raises(OSError, match=str(ended.pid)):
        of_process(ended.pid)


@pytest.mark.thorough
def test_a_short_soak_loses_nothing(tmp_path: Path) -> None:
    """Clients of every kind at once, Spark too; members change, and broker-b is killed and restarted."""
    result = subprocess.run(
        [sys.executable, BENCH, "--minutes", "1.1", "--rate", "100", "--dir", str(tmp_path / "new")],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=390,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    *_, verdict = result.stdout.splitlines()
    assert verdict.startswith("sound: SoakPlain: ")
    for stream in ("SoakPlain", "SoakTimers", "SoakPopped", "SoakKafka", "spark"):
        assert re.search(rf"{stream}: [1-9][\d,]* acknowledged, 0 lost", verdict), verdict
    assert re.search(r"3 changes of members, [1-9] kills and [1-9] restarts of broker-b", verdict), verdict


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    result = subprocess.run(
        [sys.executable, BENCH, "--dir", str(tmp_path)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    assert result.stderr.endswith(f"{tmp_path} is not empty; name a new directory\n")
