"""Tests of the laboratory on Spark: a seed always yields the same tables, and a real broker's events are
replayed.
"""

import math
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from libramq.admin.groups import group_rebalances
from libramq.errors import ConfigError
from libramq.groups.rebalance_history import RebalanceState
from libramq.lab.config import read_experiment
from libramq.lab.cost import COSTS, HANDOVER
from libramq.lab.entrant import Allocator
from libramq.lab.laboratory import Laboratory, Result
from libramq.lab.tables import STEPS, TABLES
from libramq.message.queue import MessageQueue
from libramq.sync import Admin, PushConsumer
from libramq.testing import Broker

from .pipeline.test_ingest import ignore
from .pipeline.test_rebalance_report import Balanced

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

#: Columns that no seed determines.
TIMES = {"assignor_ms", "assignor_p50_ms", "assignor_p95_ms", "assignor_max_ms"}

SUMS = [
    "steps", "moved", "minimum", "fullest_mean", "fullest_worst", "unowned_most", "doubled_most", "still_s",
    "still_s_a_queue", "worst_pause_ms", "idle_s", "repeated", "assignor_p50_ms", "assignor_p95_ms",
    "assignor_max_ms",
]  # fmt: skip
COLUMNS = {
    "steps": list(STEPS),
    "histories": ["kind", "group", "strategy", "allocator", "members_most", "queues", *SUMS],
    "strategies": ["kind", "strategy", "allocator", "histories", *SUMS],
}


def run(spark: "SparkSession", directory: Path, **given: Any) -> Result:
    return Laboratory(read_experiment(output=str(directory), **given)).run(spark, ignore)


def tables(directory: Path) -> dict[str, list[dict[str, Any]]]:
    found = {}
    for name in TABLES:
        table = pq.read_table(directory / f"{name}.parquet")
        assert table.column_names == COLUMNS[name]
        found[name] = table.drop_columns(sorted(TIMES & {*table.column_names})).to_pylist()
    return found


def test_the_same_seed_gives_the_same_tables(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rules_of_the_user.py").write_text(
        "def last(me, queues, ids):\n    return queues if me == ids[-1] else []\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    given: dict[str, Any] = {
        "members": 30, "queues": 60, "groups": 5, "seed": 3,
        "strategies": ["AVG", "balanced_sticky", "rules_of_the_user:last"],
    }  # fmt: skip
    result = run(spark, tmp_path / "one", **given)
    assert result.costs == COSTS
    assert all(file.is_file() for file in result.files)
    first = tables(tmp_path / "one")
    run(spark, tmp_path / "two", **given)
    assert tables(tmp_path / "two") == first

    overall = {row["strategy"]: row for row in first["strategies"] if row["kind"] == "all"}
    sticky, avg, last = (overall[name] for name in ("balanced_sticky", "AVG", "rules_of_the_user:last"))
    assert sticky["moved"] == sticky["minimum"] == avg["minimum"] == last["minimum"]
    assert avg["moved"] > sticky["moved"]
    assert (sticky["fullest_mean"], sticky["unowned_most"], sticky["histories"]) == (1, 0, 5)
    assert last["fullest_worst"] > 5
    of_avg = [row for row in first["steps"] if row["strategy"] == "AVG"]
    assert avg["still_s"] == pytest.approx(math.fsum(row["still_ms"] for row in of_avg) / 1000)

    page = (tmp_path / "one" / "report.html").read_text(encoding="utf-8")
    read = Balanced()
    read.feed(page)
    assert read.open == []
    assert "src=" not in page
    assert "nan" not in page
    for kind in ("rolling_deploy", "autoscaling", "flapping", "zone_loss", "subscriptions"):
        assert f"One history: {kind}" in read.text


class Member:
    """A consumer that signals when it has been assigned queues."""

    def __init__(self, broker: Broker, instance_name: str) -> None:
        self.has_queues = threading.Event()
        self._consumer = PushConsumer(
            group="G_lab", namesrv=broker.namesrv, instance_name=instance_name, on_assigned=self._assigned
        )
        self._consumer.subscribe("T", "*", lambda messages: None)
        self._consumer.start()
        assert self.has_queues.wait(150)

    def stop(self) -> None:
        self._consumer.stop()

    def _assigned(self, queues: "Sequence[MessageQueue]") -> None:
        self.has_queues.set()


def wait_settled(broker: Broker, count: int) -> None:
    """Wait until `count` rebalances have settled."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = group_rebalances(broker.namesrv, "G_lab", last=10)
        if sum(one.state is RebalanceState.SETTLED for one in found) >= count:
            return
    raise AssertionError(f"no {count} rebalances: {found}")


def test_a_recorded_history_is_replayed(spark: "SparkSession", tmp_path: Path):
    """Member b joins a, and stops. That makes two steps, each of which moves at least two queues."""
    with Broker() as broker:
        with Admin(namesrv=broker.namesrv) as admin:
            admin.create_topic("T", queues=4)
        a = Member(broker, "a")
        wait_settled(broker, 1)
        b = Member(broker, "b")
        wait_settled(broker, 2)
        b.stop()
        wait_settled(broker, 3)
        a.stop()
        result = run(
            spark,
            tmp_path,
            events=broker.namesrv,
            histories=["recorded"],
            strategies=["AVG", "sticky", "MACHINE_ROOM"],
        )
    found = tables(tmp_path)
    joined, left, *_ = [
        row for row in found["steps"] if row["strategy"] == "sticky" and row["group"] == "G_lab"
    ]
    assert (joined["kind"], joined["what"], joined["queues"]) == ("recorded", "member_joined", 4)
    assert (joined["members"], joined["moved"], joined["minimum"]) == (2, 2, 2)
    assert (left["members"], left["moved"], left["what"]) == (1, 2, "member_left")
    # Rooms are not recorded.
    assert {row["strategy"] for row in found["strategies"]} == {"AVG", "sticky"}
    assert result.costs[Allocator.CLIENTS, HANDOVER] == result.costs[Allocator.COORDINATOR, HANDOVER]
    assert result.costs[Allocator.CLIENTS, "crashed"] == COSTS[Allocator.CLIENTS, "crashed"]
    assert joined["worst_pause_ms"] == result.costs[Allocator.COORDINATOR, HANDOVER].pause_ms


def test_a_strategy_that_fails_is_named(
    spark: "SparkSession", tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    (tmp_path / "rules_that_fail.py").write_text("def none(me, queues, ids):\n    return 1 / 0\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    from libramq.spark.pipeline.plan import PipelineFailed

    with pytest.raises(
        PipelineFailed,
        match=r"the strategy rules_that_fail:none failed in a group of .*; nothing was written$",
    ):
        run(spark, tmp_path / "lab", small=True, strategies=["rules_that_fail:none"])
    assert not (tmp_path / "lab").exists()


@pytest.mark.parametrize(
    ("events", "said"),
    [
        ("nowhere", "events='nowhere': there is no such directory"),
        (".", "this directory has no events of a rebalance_report"),
    ],
)
def test_missing_events_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, events: str, said: str):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=said):
        Laboratory(read_experiment(events=events, small=True)).check()
