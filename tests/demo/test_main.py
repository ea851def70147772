"""The demonstration from beginning to end, with the flights of January's first days."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

#: Starts in two thirds of the time.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

pytestmark = pytest.mark.spark


def demo(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "libramq.demo.main", *arguments],
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
        env={**os.environ, "COLUMNS": "140", "JAVA_TOOL_OPTIONS": QUICK},
    )


def test_every_flight_is_accounted_for(tmp_path: Path):
    done = demo("--data", str(tmp_path / "demo"), "--flights", "6000")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WRONG" not in done.stdout
    for words in ("member joined", "member left", "connection closed", "bela is killed", "settled"):
        assert words in done.stdout
    for name in ("data", "tables/flights", "tables/delays", "group", "logs"):
        assert (tmp_path / "demo" / name).is_dir()


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["--flights", "0"], "give a number from 1"), (["--data", "{full}"], "is not empty; give --data a new")],
)
def test_wrong_arguments_are_one_clear_line(tmp_path: Path, arguments: list[str], says: str):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").touch()
    done = demo(*[argument.format(full=tmp_path / "full") for argument in arguments])
    assert done.returncode == 2
    assert says in " ".join((done.stdout + done.stderr).split())
    assert "Traceback" not in done.stderr
