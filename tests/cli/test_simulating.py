"""`libra simulate`: what it says when all is well, and when something broke."""

import re

import pytest

from libramq.cli.main import run
from libramq.offsets.journal import OffsetJournal
from libramq.testing.happening import Happening


def test_seeds_that_hold_are_counted(capsys: pytest.CaptureFixture[str]):
    assert run(["simulate", "--seeds", "3", "--verbose"]) == 0
    said = capsys.readouterr().out
    assert "3 seeds from 0 on: every invariant held" in said
    (line,) = [line for line in said.splitlines() if Happening.COORDINATED in line]
    assert re.search(r" [1-3] +[1-9]\d*", line)


def test_a_failure_names_rule_seed_and_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    """The command it gives shows the same failure again."""
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
