"""Tests of the rebalance report's numbers, with handmade events and with a broker's."""

import json
import threading
from datetime import UTC, datetime
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from libramq.groups.rebalance_event import QueueMove, RebalanceEvent, encode_event
from libramq.message import Message
from libramq.spark.pipeline.rebalance_page import quantile, rebalance_page
from libramq.spark.pipeline.rebalance_report import RebalanceReport, RebalanceReportConfig
from libramq.spark.pipeline.rebalance_tables import TABLES, rebalance_tables
from libramq.sync import Producer, PushConsumer

from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from .test_ingest import ignore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

TEN = int(datetime(2026, 5, 1, 10, tzinfo=UTC).timestamp() * 1000)
HOUR_MS = 3_600_000
EVENTS = "key string, broker string, queueId int, offset bigint, body string"


def move(queue: int, pause_ms: int | None) -> QueueMove:
    """Return a move from alice to bob; the move of a queue without an owner has no pause."""
    return QueueMove(
        topic="T", broker="a", queue=queue, from_=None if pause_ms is None else "alice", to="bob",
        stopped_ms=None if pause_ms is None else 1_000, resumed_ms=1_000 + (pause_ms or 0), redelivered=1,
    )  # fmt: skip


def rebalance(
    at_ms: int,
    epoch: int,
    reason: str,
    who: str,
    pauses: list[int | None],
    *,
    broker: str = "a",
    **settled: Any,
) -> list[tuple[str, RebalanceEvent]]:
    """Return the events of one rebalance of group G, which is stable 100 ms after the longest pause."""
    worst = max((pause or 0 for pause in pauses), default=0)
    given = {
        "moved": len(pauses),
        "minimum": 1,
        "redelivered_upper_bound": len(pauses),
        "loads": {"a": 3, "b": 1},
    }
    parts: list[dict[str, Any]] = [
        {"at_ms": at_ms, "kind": "started", "reason": reason, "who": who, "member_count": 2},
        {"at_ms": at_ms + 900, "kind": "moved", "moves": [move(i, p) for i, p in enumerate(pauses)]},
        {
            "at_ms": at_ms + 1_000,
            "kind": "settled",
            "member_count": 2,
            "time_to_stable_ms": worst + 100,
            "worst_pause_ms": worst,
            **given,
            **settled,
        },
    ]
    return [
        (broker, RebalanceEvent(v=1, group="G", epoch=epoch, seq=seq, **part))
        for seq, part in enumerate(parts, 1)
    ]


def flapping(count: int) -> list[tuple[str, RebalanceEvent]]:
    found = []
    for number in range(count):
        at_ms = TEN + HOUR_MS + number * 60_000
        found += rebalance(at_ms, 10 + 2 * number, "connection_closed", "eve", [])
        found += rebalance(at_ms + 30_000, 11 + 2 * number, "member_joined", "eve", [])
    return found


def tables(spark: "SparkSession", told: list[tuple[str, RebalanceEvent]]) -> dict[str, list[dict[str, Any]]]:
    rows = [
        (event.group, broker, 0, offset, encode_event(event).decode())
        for offset, (broker, event) in enumerate(told)
    ]
    rows += [("G", "a", 0, len(rows), json.dumps({"v": 2, "what": "of a later version"}))]
    found = rebalance_tables(spark.createDataFrame(rows, EVENTS), wall_ms=TEN + 24 * HOUR_MS)
    for name, table in found.items():
        assert table.column_names == list(TABLES[name])
    return {name: table.to_pylist() for name, table in found.items()}


@pytest.fixture(scope="module")
def made(spark: "SparkSession") -> dict[str, list[dict[str, Any]]]:
    told = [
        *rebalance(TEN, 1, "member_joined", "bob", [None, 10, 20, 30, 40], duplicates_reported=2),
        *rebalance(TEN + 60_000, 2, "session_expired", "eve", [100], loads={"a": 4}, peak_catch_up_rate=70),
        # Two brokers report the same rebalance.
        *rebalance(TEN + 120_000, 3, "member_joined", "dan", [5], broker="a"),
        *rebalance(TEN + 120_100, 1, "member_joined", "dan", [7], broker="b"),
        *flapping(3),
        *rebalance(TEN + 2 * HOUR_MS, 30, "member_left", "bob", [1])[:1],  # Its broker was killed.
    ]
    return tables(spark, told)


def test_rebalances_are_summed_up_by_hour(made: dict[str, list[dict[str, Any]]]):
    ten, eleven, twelve = made["hourly"]
    assert ten["hour"] == datetime(2026, 5, 1, 10, tzinfo=UTC)
    assert (ten["rebalances"], ten["interrupted"], ten["moved"], ten["minimum"]) == (3, 0, 8, 4)
    # Pauses of 10, 20, 30, 40, 100, 5 and 7; the queue without an owner did not pause.
    assert (ten["pause_p50_ms"], ten["pause_max_ms"]) == (20, 100)
    assert ten["pause_p95_ms"] == pytest.approx(40 + 0.7 * 60)
    # 140, 200, and 207 because the second broker began 100 ms later.
    assert (ten["stable_p50_ms"], ten["stable_max_ms"]) == (200, 207)
    assert (ten["redelivered_upper_bound"], ten["duplicates_reported"]) == (8, 2)
    assert [hour["redelivered_unknown"] for hour in (ten, eleven, twelve)] == [0, 0, 1]
    assert (ten["unevenness_max"], ten["peak_catch_up_rate"]) == (4, 70)
    assert (eleven["rebalances"], eleven["moved"], eleven["pause_p50_ms"]) == (6, 0, None)
    assert (twelve["rebalances"], twelve["interrupted"], twelve["moved"]) == (1, 1, None)


def test_rebalances_are_summed_up_by_reason(made: dict[str, list[dict[str, Any]]]):
    counts = {(row["hour"].hour, row["reason"]): row["rebalances"] for row in made["reasons"]}
    assert counts == {
        (10, "member_joined"): 2,
        (10, "session_expired"): 1,
        (11, "connection_closed"): 3,
        (11, "member_joined"): 3,
        (12, "member_left"): 1,
    }


def test_joins_and_departures_are_counted(made: dict[str, list[dict[str, Any]]]):
    flaps = {
        (row["hour"].hour, row["member"]): (row["joined"], row["gone"])
        for row in made["members"]
        if row["is_flapping"]
    }
    assert flaps == {(11, "eve"): (3, 3)}
    assert {(row["hour"].hour, row["member"]) for row in made["members"]} == {
        (10, "bob"), (10, "eve"), (10, "dan"), (11, "eve"), (12, "bob"),
    }  # fmt: skip


def test_events_of_two_brokers_are_one_rebalance(made: dict[str, list[dict[str, Any]]]):
    (both,) = (row for row in made["rebalances"] if len(row["brokers"]) == 2)
    assert (both["moved"], both["minimum"], both["worst_pause_ms"]) == (2, 2, 7)
    assert both["time_to_stable_ms"] == 207
    assert len([row for row in made["moves"] if row["at"] == both["at"]]) == 2


class Balanced(HTMLParser):
    """A parser that fails on tags that are not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        if tag != "meta" and not (self.get_starttag_text() or "").endswith("/>"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        """Accept a tag that closes itself."""

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_shows_the_tables_and_loads_nothing(made: dict[str, list[dict[str, Any]]]):
    page = rebalance_page(made, TEN + 24 * HOUR_MS)
    read = Balanced()
    read.feed(page)
    assert read.open == []
    assert "10rebalances of 1 groups" in read.text
    assert "8 / 4queues moved / minimum" in read.text  # The necessary moves never exceed the actual ones.
    assert "Members that left again and again" in read.text
    assert page.count("<circle") == 10
    assert "src=" not in page
    assert "href=" not in page
    assert "nan" not in page


def test_names_from_users_are_escaped(made: dict[str, list[dict[str, Any]]]):
    row = {**made["rebalances"][0], "causes": [{"reason": "member_joined", "who": "<script>"}]}
    assert "<script>" not in rebalance_page({**made, "rebalances": [row]}, TEN)


def test_quantiles_equal_sparks():
    assert [quantile([4, 1, 3, 2], share) for share in (0, 0.5, 1)] == [1, 2.5, 4]
    assert quantile([7], 0.95) == 7


def test_the_report_reads_a_real_brokers_events(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path
):
    group = "G_rebalance_report"
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"one"))
    consumer = PushConsumer(group=group, namesrv=up.namesrv, consume_from="earliest")
    consumed = threading.Event()
    consumer.subscribe(topic, "*", lambda messages: consumed.set())
    consumer.start()
    assert consumed.wait(150)
    consumer.stop()
    report = RebalanceReport(RebalanceReportConfig(directory=str(tmp_path / "r"), namesrv=up.namesrv))
    plan = report.plan()
    assert set(TABLES) < {table.name for table in plan.tables}
    assert "deliveries" not in {table.name for table in plan.tables}
    assert any(remark.startswith("no client traces to RMQ_SYS_TRACE_TOPIC") for remark in plan.remarks)
    assert list(tmp_path.iterdir()) == []
    outcome = report.run(spark, ignore)
    assert "; no client traces to RMQ_SYS_TRACE_TOPIC" in outcome.sentence
    for file in outcome.files:
        assert Path(file).is_file()
    found = [row for row in rows(tmp_path, "rebalances") if row["group"] == group]
    assert found[0]["reason"] == "member_joined"
    before = len(rows(tmp_path, "rebalances"))
    report.run(spark, ignore)  # Run again, with little or no new data.
    assert len(rows(tmp_path, "rebalances")) >= before
    places = [(row["broker"], row["offset"]) for row in pq.read_table(tmp_path / "r" / "events").to_pylist()]
    assert len(places) == len(set(places))


def rows(directory: Path, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pq.read_table(directory / "r" / f"{name}.parquet").to_pylist()
    return found
