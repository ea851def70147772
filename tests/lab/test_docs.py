"""Everything that the documentation names exists."""

from pathlib import Path

from libramq.lab.entrant import STRATEGIES
from libramq.lab.histories import KINDS


def test_every_kind_is_documented():
    text = (Path(__file__).parents[2] / "docs" / "laboratory.md").read_text(encoding="utf-8")
    for name in (*KINDS, *STRATEGIES):
        assert f"`{name}`" in text
