"""Apache's Java consumers trace, and one is killed: the report has all redeliveries and their cause."""

from collections import Counter
from datetime import UTC
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest

from libramq.message.trace import Pub, SubAfter, SubBefore, TraceRecord, decode_trace
from libramq.spark.pipeline.plan import Progress
from libramq.spark.pipeline.rebalance_report import RebalanceReport, RebalanceReportConfig
from tests.interop.capture_traces import trace_bodies
from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S, Program
from tests.spark.conftest import spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["spark"]

pytestmark = [pytest.mark.interop, pytest.mark.spark]

QUEUES = 4
MESSAGES = 40


def ignore(_: Progress) -> None:
    """Ignore progress."""


def told(cluster: Cluster) -> list[TraceRecord]:
    return [record for body in trace_bodies(cluster.namesrv) for record in decode_trace(body).records]


def given_to(consumer: Program) -> list[str]:
    return [event["msgId"] for event in consumer.of("message")]


def has_its_half(consumer: Program, topic: str) -> bool:
    return len(consumer.of("queues", topic=topic)[-1]["queues"]) == QUEUES // 2


def process_of(consumer: Program) -> str:
    """Return the end of a client's id: traces identify a client by its process only."""
    return f"@{consumer.pid & 0xFFFF}"


def rows(directory: Path, name: str, group: str) -> list[dict[str, Any]]:
    found = pq.read_table(directory / name).to_pylist()
    return [row for row in found if row["group"] == group]


def test_traces_show_what_was_redelivered_after_a_consumer_was_killed(
    cluster: Cluster, spark: "SparkSession", tmp_path: Path
) -> None:
    topic, group = cluster.fresh_name("Traced"), cluster.fresh_name("tracing")
    cluster.create_topic(topic, QUEUES)
    # A handler that hangs on a queue's first message holds the offset there: the whole queue is redelivered.
    alice = cluster.consumer_process(group, topic, trace=True, hold=",".join(map(str, range(QUEUES))))
    bob = cluster.consumer_process(group, topic, trace=True)
    for consumer in (alice, bob):
        consumer.wait_until(partial(has_its_half, consumer, topic), "half the queues", within_s=PATIENCE_S)
    producer = cluster.start("Produce", {"group": "traced_producers", "trace": True})
    producer.wait_event("started")
    for number in range(MESSAGES):
        sent = producer.ask(
            "sent", {"kind": "queue", "topic": topic, "queueId": number % QUEUES, "body": f"{number}"}
        )
        assert sent["status"] == "SEND_OK"

    def all_told(begun: int, ended: int) -> bool:
        mine = [one for one in told(cluster) if isinstance(one, SubBefore | SubAfter) and one.group == group]
        kinds = Counter(type(one) for one in mine)
        return (kinds[SubBefore], kinds[SubAfter]) == (begun, ended)

    # A client that is killed before it has sent its traces loses them.
    hung = QUEUES // 2
    cluster.wait_until(lambda: all_told(MESSAGES, MESSAGES - hung), "traces", within_s=PATIENCE_S)
    alice.kill()
    bob.wait_count(MESSAGES, "message")
    bob.finish()
    producer.finish()
    again = set(given_to(alice)) & set(given_to(bob))
    assert len(again) == MESSAGES // 2
    begun, ended = MESSAGES + len(again), MESSAGES - hung + len(again)
    cluster.wait_until(lambda: all_told(begun, ended), "traces of who took over", within_s=PATIENCE_S)
    cluster.wait_until(
        lambda: sum(isinstance(one, Pub) and one.topic == topic for one in told(cluster)) == MESSAGES,
        "traces of the producer",
        within_s=PATIENCE_S,
    )

    report = RebalanceReport(RebalanceReportConfig(directory=str(tmp_path), namesrv=cluster.namesrv))
    outcome = report.run(spark, ignore)
    duplicates = rows(tmp_path, "duplicates", group)
    assert sorted(row["msgId"] for row in duplicates) == sorted(again)
    for row in duplicates:
        assert (row["topic"], row["succeeded"]) == (topic, True)
        assert row["before_client"].endswith(process_of(alice))
        assert row["client"].endswith(process_of(bob))
    assert sum(row["before_succeeded"] is None for row in duplicates) == hung
    hours = rows(tmp_path, "deliveries.parquet", group)
    assert sum(row["deliveries"] for row in hours) == MESSAGES + len(again)
    assert all(row["delay_max_ms"] is None or 0 <= row["delay_max_ms"] < PATIENCE_S * 1000 for row in hours)
    assert sum(row["succeeded_twice"] for row in hours) == len(again) - hung
    missing = "no broker records rebalances in LIBRA_REBALANCE_EVENTS"
    if cluster.kind == "apache":
        assert {row["cause"] for row in duplicates} == {"unknown"}
        assert missing in outcome.sentence
        assert any(missing in remark for remark in report.plan().remarks)
        assert not (tmp_path / "rebalances.parquet").exists()
    else:
        assert {row["cause"] for row in duplicates} == {"rebalance"}
        assert {row["reason"] for row in duplicates} <= {"connection_closed", "session_expired"}
        assert missing not in outcome.sentence
        (effect,) = (row for row in rows(tmp_path, "effects.parquet", group) if row["duplicates"])
        assert (effect["duplicates"], effect["succeeded_twice"]) == (len(again), len(again) - hung)
        assert effect["at"] == duplicates[0]["rebalance_at"].replace(tzinfo=UTC)
    assert "Redelivered messages" in (tmp_path / "report.html").read_text()
