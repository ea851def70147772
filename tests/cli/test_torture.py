"""`libra torture` kills a real broker, and says what became of what it had acknowledged."""

import re
from pathlib import Path

from tests.cli.commands import libra, one_line


def test_a_broker_that_is_killed_loses_nothing(tmp_path: Path) -> None:
    result = libra("torture", "--rounds", "2", "--dir", str(tmp_path / "new"), seconds=300)
    assert result.code == 0, result
    *rounds, verdict = result.out.splitlines()
    assert [line.startswith(f"round {number}: killed after ") for number, line in enumerate(rounds, 1)] == [
        True,
        True,
    ]
    counts = r"2 kills: [\d,]+ messages and [\d,]+ commits were acknowledged"
    assert re.fullmatch(f"{counts}; 0 messages lost, 0 commits gone back", verdict)
    assert (tmp_path / "new" / "store" / "commitlog").is_dir()


def test_a_pair_of_which_one_or_both_are_killed_loses_nothing(tmp_path: Path) -> None:
    """A slave of ours: it has what was acknowledged, and in the end the same log."""
    result = libra("torture", "--replicated", "--rounds", "2", "--dir", str(tmp_path / "pair"), seconds=380)
    assert result.code == 0, result
    *rounds, verdict = result.out.splitlines()
    assert all(re.match(r"round \d: killed (the master|the slave|both) after ", line) for line in rounds)
    assert len(rounds) == 2
    assert verdict.endswith("0 messages lost, 0 commits gone back")


def test_a_directory_with_something_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("data")
    assert "is not empty; name a new directory" in one_line(libra("torture", "--dir", str(tmp_path)))
    assert [path.name for path in tmp_path.iterdir()] == ["precious"]
