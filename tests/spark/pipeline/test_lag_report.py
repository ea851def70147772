"""Tests of lag, rates and catch-up time, with handmade samples and with a broker's."""

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from libramq.client import ConsumeFrom
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, ConfigError
from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.spark.pipeline.lag_report import (
    SAMPLES,
    TABLES,
    LagReport,
    LagReportConfig,
    groups_to_sample,
    lag_page,
    lag_tables,
    sample,
)
from libramq.spark.pipeline.plan import Progress
from libramq.sync import Producer, PushConsumer

from ...fakes import ManualClock
from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from .test_ingest import ignore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
DDL = ", ".join(f"`{name}` {kind}" for name, kind in SAMPLES.items())


def taken(second: float, queue: int, end: int, committed: int) -> tuple[Any, ...]:
    return ("G", "T", "a", queue, NOON + timedelta(seconds=second), end, committed)


@pytest.fixture(scope="module")
def made(spark: "SparkSession") -> dict[str, list[dict[str, Any]]]:
    rows = [
        taken(0, 0, 1_000, 0),
        taken(10, 0, 1_100, 400),  # 10 arrive a second and 40 are read: 700 behind, 30 fewer each second.
        taken(10, 0, 1_100, 400),  # The same sample twice.
        taken(20, 0, 1_200, 1_200),
        taken(0, 1, 500, 100),
        taken(10, 1, 600, 150),  # Falls further behind.
        taken(20, 1, 10, 5),  # Recreated.
    ]
    found = lag_tables(spark.createDataFrame(rows, DDL))
    for name, table in found.items():
        assert table.column_names == list(TABLES[name])
    return {name: table.to_pylist() for name, table in found.items()}


def test_rates_and_times_of_queues_are_computed(made: dict[str, list[dict[str, Any]]]):
    told = {
        (row["queueId"], (row["at"] - NOON).seconds): (
            row["lag"],
            row["produced_per_s"],
            row["consumed_per_s"],
            row["caught_up_in_s"],
        )
        for row in made["lag"]
    }
    assert len(made["lag"]) == 6
    assert told == {
        (0, 0): (1_000, None, None, None),
        (0, 10): (700, 10, 40, pytest.approx(700 / 30)),
        (0, 20): (0, 10, 80, 0),
        (1, 0): (400, None, None, None),
        (1, 10): (450, 10, 5, None),
        (1, 20): (5, None, None, None),
    }


def test_groups_are_caught_up_with_their_last_queue(made: dict[str, list[dict[str, Any]]]):
    first, second, third = made["groups"]
    assert (first["queues"], first["lag"], first["caught_up_in_s"]) == (2, 1_400, None)
    assert (second["lag"], second["produced_per_s"], second["consumed_per_s"]) == (1_150, 20, 45)
    assert second["caught_up_in_s"] is None
    assert (third["lag"], third["produced_per_s"]) == (5, 10)


def test_the_page_shows_every_group(made: dict[str, list[dict[str, Any]]]):
    page = lag_page(made)
    assert "<polyline" in page
    assert "<b>5</b><span>messages are behind</span>" in page
    assert "G · T" in page


def test_messages_read_by_two_groups_count_as_produced_once():
    row = {"topic": "T", "at": NOON, "queues": 1, "lag": 0, "caught_up_in_s": 0}
    rates = {"produced_per_s": 500.0, "consumed_per_s": 400.0}
    page = lag_page({"groups": [row | rates | {"group": name} for name in "GH"], "lag": []})
    assert "<b>500</b><span>produced a second</span>" in page
    assert "<b>800</b><span>consumed a second</span>" in page


class Brokers:
    """Brokers that answer for two groups, one of which never committed."""

    def groups(self) -> list[str]:
        return ["G", "New"]

    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]:
        if group == "New":
            raise BrokerError(ResponseCode.QUERY_NOT_FOUND, "no offsets")
        ends = OffsetWrapper(broker_offset=7, consumer_offset=3)
        unread = OffsetWrapper(broker_offset=9, consumer_offset=0, is_unknown=True)
        found = {MessageQueue(topic, "a", 0): ends for topic in ("T", "U", "%RETRY%G")}
        return found | {MessageQueue("T", "a", 1): unread}


def test_retry_topics_and_queues_with_an_unknown_lag_are_not_sampled():
    groups = groups_to_sample(Brokers(), [])
    assert groups == ["G", "New"]
    assert [row["topic"] for row in sample(Brokers(), groups, [], 0)] == ["T", "U"]
    assert [row["topic"] for row in sample(Brokers(), groups, ["U"], 0)] == ["U"]
    with pytest.raises(ConfigError, match="no broker knows group H; there are: G, New"):
        groups_to_sample(Brokers(), ["H"])


def test_the_lag_of_a_real_broker_is_sampled(spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path):
    group = "G_lag_report"
    queue = MessageQueue(topic, "broker-a", 0)
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send_nowait(Message(topic, b"one"), queue=queue)
        producer.flush()
    consumed = threading.Event()
    consumer = PushConsumer(group=group, namesrv=up.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(topic, "*", lambda messages: consumed.set())
    consumer.start()
    assert consumed.wait(150)
    consumer.stop()
    directory = tmp_path / "lag"
    given = LagReportConfig(
        directory=str(directory), namesrv=up.namesrv, groups=[group], topics=[topic], samples=2
    )
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        clock = ManualClock()  # Days earlier.

        def send_between(seconds: float) -> None:
            clock.advance(5_000)
            producer.send_nowait(Message(topic, b"one"), queue=queue)
            producer.flush()

        report = LagReport(given, clock=clock, wait=send_between)
        assert "groups: G_lag_report" in report.plan().remarks
        assert not directory.exists()
        told: list[Progress] = []
        outcome = report.run(spark, told.append)
        assert [progress.text for progress in told] == ["groups 1, lag 1", "groups 1, lag 2"]
        assert all(Path(file).is_file() for file in outcome.files)
        LagReport(given, wait=send_between).run(spark, ignore)
    lag = [row["lag"] for row in pq.read_table(directory / "groups.parquet").to_pylist()]
    assert lag == [1, 2, 3, 4]
    kept = [path.name.partition("=")[0] for path in (directory / "samples").glob("*.parquet")]
    assert sorted(kept) == ["at", "at", "day"]
