"""One group as a line: in 80 columns, with distinguishable names."""

import io
import time
from dataclasses import replace

from rich.console import Console

from libramq.cli.groups.history import MemberNames
from libramq.cli.groups.row import COLUMNS, GroupRow, Trouble, queue_ranges
from libramq.cli.output import table
from libramq.clock import WallMs
from libramq.groups.rebalance_history import Cause, Rebalance, RebalanceState
from libramq.remoting.body.consumers import ClientConnection, GroupDiagnosis

FIRST, SECOND, STATIC = "10.0.0.1@26622#16918612000", "10.0.0.1@26623#16918612001", "10.0.0.2@host-7"
NOON_MS = round(time.mktime((2026, 11, 22, 12, 0, 0, 0, 0, -1)) * 1000)


def member(client_id, instance=None):
    return ClientConnection(
        client_id=client_id, client_addr="10.0.0.1:5", language="PYTHON", version=479, instance=instance
    )


def row(at_ms=NOON_MS):
    last = Rebalance(
        group="billing", at_ms=at_ms, state=RebalanceState.SETTLED, brokers=("broker-a",), member_count=3,
        causes=(Cause("member_joined", f"{FIRST}, {STATIC}"),), moves=(), moved=12, minimum=12,
        time_to_stable_ms=40, worst_pause_ms=31, redelivered_upper_bound=0, duplicates_reported=0,
        peak_catch_up_rate=None, unowned=0, loads={FIRST: 12, SECOND: 12, STATIC: 12},
    )  # fmt: skip
    members = [member(FIRST), member(SECOND), member(STATIC, "worker-1")]
    return GroupRow(group="billing", members=members, queue_count=36, lag=1_204, last=last)


def test_a_group_fits_in_80_columns():
    screen = Console(file=io.StringIO(), width=80)
    screen.print(table(COLUMNS, [row().cells(WallMs(NOON_MS + 60_000))], width=80))
    lines = [line.rstrip() for line in screen.file.getvalue().splitlines() if line.strip()]
    assert lines[2:] == [
        " billing        3      36  1,204     0  settled  12:00:00 member_joined",
        "                                                 10.0.0.1@26622, worker-1;",
        "                                                 moved 12 (minimum 12), worst",
        "                                                 pause 31 ms",
    ]


def test_in_40_columns_each_of_its_values_has_a_line():
    """Seven columns of three letters would be unreadable."""
    screen = Console(file=io.StringIO(), width=40)
    screen.print(table(COLUMNS, [row().cells(WallMs(NOON_MS + 60_000))], width=40))
    lines = [line.rstrip() for line in screen.file.getvalue().splitlines() if line.strip()]
    assert lines == [
        "group          billing",
        "members        3",
        "queues         36",
        "lag            1,204",
        "dead           0",
        "state          settled",
        "last rebalance 12:00:00 member_joined",
        "               10.0.0.1@26622, worker-1;",
        "               moved 12 (minimum 12),",
        "               worst pause 31 ms",
    ]


def test_a_rebalance_of_another_day_is_shown_with_its_date():
    yesterday = row(NOON_MS - 86_400_000).cells(WallMs(NOON_MS))[-1]
    assert yesterday.startswith("2026-11-21 12:00 member_joined")


def test_names_are_not_shortened_where_they_would_become_equal():
    twin = f"{FIRST}9"
    names = MemberNames([f"{FIRST}, {twin} and 3 more", SECOND])
    assert names.short(f"{FIRST}, {twin} and 3 more") == f"{FIRST}, {twin} and 3 more"
    assert names.short(f"root@10.0.0.9 removed {SECOND}") == "root@10.0.0.9 removed 10.0.0.1@26623"


def test_queues_are_named_by_ranges():
    queues = {"Orders": {"b": [0], "a": [7, 0, 1, 2, 4, 5]}, "%RETRY%g": {"a": [0]}}
    assert queue_ranges(queues) == "%RETRY%g a 0; Orders a 0-2 4-5 7, b 0"
    assert queue_ranges({}) == ""


def test_groups_are_ordered_by_their_problems():
    """Groups with problems come before healthy ones, regardless of their lag."""

    def found(kind):
        return [GroupDiagnosis(kind=kind, about="", text="…")]

    well = row()
    assert well.trouble is Trouble.NONE
    assert replace(well, diagnoses=found("no_members")).trouble is Trouble.UNREAD
    assert replace(well, diagnoses=found("strategies_differ")).trouble is Trouble.UNHEALTHY
    assert replace(well, last=replace(well.last, unowned=2)).trouble is Trouble.UNHEALTHY
    assert replace(well, diagnoses=found("idle_members")).trouble is Trouble.REMARKABLE
    assert replace(well, dead_letters=1).trouble is Trouble.REMARKABLE
    assert replace(well, last=replace(well.last, state=RebalanceState.MOVING)).trouble is Trouble.REMARKABLE
