"""Tests of the laboratory's page: a strategy has one colour, and one that leaves queues unread is marked."""

import re

from libramq.clock import WallMs
from libramq.lab.cost import COSTS
from libramq.lab.page import lab_page
from libramq.lab.tables import ALL

STRATEGIES = ("balanced_sticky", "a-strategy-with-a-long-name-that-is-not-cut", "AVG")
FAILING = "AVG"


def summary(name, kind):
    return {
        "strategy": name, "kind": kind, "allocator": "coordinator", "moved": 4 + len(name), "minimum": 4,
        "fullest_mean": 1.2, "fullest_worst": 2.0, "unowned_most": int(name == FAILING), "repeated": 3,
        "still_s_a_queue": 0.5, "worst_pause_ms": 30.0, "assignor_p50_ms": 0.1, "assignor_p95_ms": 0.2,
        "assignor_max_ms": 0.3,
    }  # fmt: skip


def made():
    """Return a page with two kinds of histories in which strategies move queues at different steps."""
    kinds = ("flapping", "zone_loss")
    steps = [
        {
            "strategy": name, "kind": kind, "group": f"g-{kind}", "step": step, "at_ms": 60_000 * step,
            "moved": len(name) * step, "minimum": 1, "queues": 12, "members": 3,
        }
        for kind in kinds for name in STRATEGIES for step in (1, 2)
    ]  # fmt: skip
    histories = [
        {"strategy": name, "kind": kind, "group": f"g-{kind}", "members_most": 3, "queues": 12}
        for kind in kinds for name in STRATEGIES
    ]  # fmt: skip
    strategies = [summary(name, kind) for name in STRATEGIES for kind in (*kinds, ALL)]
    return lab_page({"steps": steps, "histories": histories, "strategies": strategies}, COSTS, WallMs(0))


def colours(page, pattern):
    """Return the colours that a pattern finds, by strategy."""
    found: dict[str, set[str]] = {}
    for colour, names in re.findall(pattern, page):
        for name in names.replace("✗ ", "").split(", "):
            found.setdefault(name.partition(":")[0], set()).add(colour)
    return found


def test_a_strategy_has_one_colour_in_all_plots():
    page = made()
    points = colours(page, r'class="(c\d|ring)"><title>([^<]*)</title></circle>')
    lines = colours(page, r'class="(c\d) line"><title>([^<]*)</title>')
    entries = colours(page, r'<i class="(c\d)"></i>([^<]*)</span>')
    for name in STRATEGIES:
        assert len(lines[name]) == 1
        assert entries[name] == lines[name]
        assert points[name] == ({"ring"} if name == FAILING else lines[name])
    assert len({colour for name in STRATEGIES for colour in lines[name]}) == len(STRATEGIES)


def test_strategies_that_leave_queues_unread_are_marked_everywhere():
    page = made()
    drawn = re.findall(rf'<text[^>]*class="([^"]*)"[^>]*>(✗ )?{FAILING}</text>', page)
    assert len(drawn) == 6, "the scatter plot, four matrices and the times"
    assert all("failing" in kind and mark for kind, mark in drawn)
    assert f"✗ {STRATEGIES[0]}" not in page


def test_names_are_not_truncated():
    assert made().count(f">{STRATEGIES[1]}</text>") == 6
    assert "…" not in made()
