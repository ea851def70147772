"""`bench/torture` kills a real broker, and reports whether acknowledged messages and commits survived."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.cli.commands import SOURCE, Result

BENCH = Path(__file__).resolve().parent.parent.parent / "bench" / "torture"

LATER = (
    r"[\d,]+ transactions committed and delivered, [\d,]+ of them twice, "
    r"[\d,]+ rolled back and never delivered; [\d,]+ timer messages delivered, [\d,]+ of them twice"
)


def torture(*arguments: str, seconds: float = 60) -> Result:
    done = subprocess.run(
        [sys.executable, BENCH, *arguments],
        env={**os.environ, "PYTHONPATH": SOURCE},
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
    )
    return Result(done.returncode, done.stdout, done.stderr)


def test_a_broker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    result = torture("--rounds", "2", "--dir", str(tmp_path / "new"), seconds=300)
    assert result.code == 0, result.out + result.err
    *rounds, verdict, later = result.out.splitlines()
    assert [line.startswith(f"round {number}: killed after ") for number, line in enumerate(rounds, 1)] == [
        True,
        True,
    ]
    counts = r"2 kills: [\d,]+ messages and [\d,]+ commits were acknowledged"
    assert re.fullmatch(f"{counts}; 0 messages lost, 0 commits gone back", verdict)
    assert re.fullmatch(LATER, later)
    assert (tmp_path / "new" / "store" / "commitlog").is_dir()


def test_a_pair_loses_nothing_whatever_happens_to_it_and_its_link(tmp_path: Path) -> None:
    """Our slave has every acknowledged message, takes its master's place, and has the same log."""
    result = torture("--replicated", "--rounds", "3", "--dir", str(tmp_path / "pair"), seconds=380)
    assert result.code == 0, result.out + result.err
    lines = [line for line in result.out.splitlines() if not line.startswith("the link is not")]
    *rounds, verdict, later = lines
    faults = "killed the master|killed the slave|killed both|cut the link|cut the link, killed both and .*"
    found = [re.match(rf"round \d: ({faults}) after .*: nothing lost$", line) for line in rounds]
    assert all(found), rounds
    assert len({match[1] for match in found if match}) == 3  # No kind repeats before all have occurred.
    assert verdict.endswith("0 messages lost, 0 commits gone back")
    assert re.fullmatch(LATER, later)


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    result = torture("--dir", str(tmp_path))
    assert (result.code, result.out) == (2, "")
    assert result.err.endswith(f"{tmp_path} is not empty; name a new directory\n")
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
