"""Topics into tables, as seen by readers that know nothing of Spark."""

import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import msgspec
import pyarrow.dataset as ds
import pytest
from pyiceberg.catalog import load_catalog

from libramq.errors import ConfigError, RouteNotFound
from libramq.message import Message
from libramq.spark.pipeline.batches import Batch
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.spark.pipeline.plan import PipelineFailed, Progress
from libramq.sync import Admin, Producer

from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

FORMATS = ("parquet", "delta", "iceberg")


def send(up: LibraUp, topic: str, keys: list[str]) -> None:
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number, key in enumerate(keys):
            producer.send_nowait(Message(topic, f"{key} {number} \u00e4".encode(), keys=key))
        producer.flush()


def config(up: LibraUp, topic: str, directory: Path, **keys: Any) -> IngestConfig:
    given = {"topics": [topic], "table": str(directory / "t"), "namesrv": up.namesrv, **keys}
    if given.get("format") == "iceberg":
        given |= {
            "table": "shop.t",
            "checkpoint": str(directory / "t.checkpoint"),
            "catalog": catalog(directory),
        }
    return IngestConfig(**given)


def catalog(directory: Path) -> dict[str, str]:
    directory.mkdir(exist_ok=True)
    return {"uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/warehouse"}


def table(directory: Path, kind: str, name: str = "t") -> "pa.Table":
    if kind == "delta":
        return deltalake.DeltaTable(str(directory / name)).to_pyarrow_table()
    if kind == "iceberg":
        return load_catalog("default", **catalog(directory)).load_table(f"shop.{name}").scan().to_arrow()
    return ds.dataset(directory / name, format="parquet", partitioning="hive").to_table()


def ignore(_: Progress) -> None:
    """Ignore a report of progress."""


@pytest.mark.parametrize("kind", FORMATS)
def test_of_two_first_runs_with_checkpoints_of_their_own_one_writes(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    """The second run begins before the first has written anything."""
    send(up, topic, ["a"] * 20)
    given = config(up, topic, tmp_path, format=kind)
    other = Ingest(msgspec.structs.replace(given, checkpoint=str(tmp_path / "other.checkpoint")))
    refused = list[str]()

    class First(Ingest):
        def _write(self, messages: "DataFrame", batch: Batch) -> None:
            with pytest.raises(ConfigError) as refusal:
                other.run(spark, ignore)
            refused.append(str(refusal.value))
            super()._write(messages, batch)

    First(given).run(spark, ignore)
    assert len(refused) == 1
    assert re.search("another run, with another checkpoint|was not written with the checkpoint", refused[0])
    assert table(tmp_path, kind).num_rows == 20
    with pytest.raises(ConfigError, match="was not written with the checkpoint"):
        other.plan()


@pytest.mark.parametrize("kind", FORMATS)
def test_every_message_is_written_once_over_runs_and_repeated_batches(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    send(up, topic, [f"a{number}" for number in range(200)])
    given = config(up, topic, tmp_path, format=kind, batch_messages=120, body="string", properties=True)
    told: list[Progress] = []
    assert Ingest(given).run(spark, told.append).sentence.startswith("200 messages of")
    assert told[-1].done == told[-1].total == 200
    send(up, topic, ["b"] * 49)
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        producer.send(Message(topic, b"\xff\xfe bad", keys="bad"))
    assert Ingest(given).plan().message_count == 50
    # Killed after its rows were in the table: Spark does not know of the last batch, and repeats it.
    Ingest(given).run(spark, ignore)
    commits = tmp_path / "t.checkpoint" / "commits"
    newest = max(int(path.name) for path in commits.iterdir() if path.name.isdecimal())
    for name in (str(newest), f".{newest}.crc"):
        (commits / name).unlink(missing_ok=True)
    Ingest(given).run(spark, ignore)
    found = table(tmp_path, kind)
    rows = found.to_pylist()
    assert all(row["body"].endswith(" \u00e4") for row in rows if row["body"])
    assert len({(row["broker"], row["topic"], row["queueId"], row["offset"]) for row in rows}) == 250
    assert len(rows) == 250
    assert Counter(str(row["body"]).partition(" ")[0] for row in rows)["b"] == 49
    # DuckDB, polars and pyarrow refuse a file with a string that is not UTF-8.
    found.validate(full=True)
    assert [(row["key"], row["body"]) for row in rows if row["corrupt"]] == [("bad", None)]
    assert {row["corrupt"] for row in rows} == {None, b"\xff\xfe bad"}
    assert {str(row["date"]) for row in rows} == {row["timestamp"].date().isoformat() for row in rows}
    assert dict(rows[0]["properties"])["KEYS"] == rows[0]["key"]
    assert set(found.column_names) - {"batch"} == set(Ingest(given).plan().tables[0].columns)


@pytest.mark.parametrize("kind", FORMATS)
def test_duplicates_are_left_out_within_and_between_batches(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    directory = tmp_path / "ä [1]"  # Spark would take it for a pattern, and delta-rs for a URL's path.
    given = config(up, topic, directory, format=kind, dedup="key")
    place = given.table
    send(up, topic, ["a", "b", "a", "c"])
    Ingest(given).run(spark, ignore)
    send(up, topic, ["c", "a"])  # A batch of duplicates only.
    only = Ingest(given).run(spark, ignore).sentence
    assert only == f"2 messages of {topic} read, 0 rows written to {place}"
    send(up, topic, ["d", "b", "d"])
    some = Ingest(given).run(spark, ignore).sentence
    assert some == f"3 messages of {topic} read, 1 rows written to {place}"
    assert sorted(table(directory, kind)["key"].to_pylist()) == ["a", "b", "c", "d"]


def test_small_files_are_written_together(spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path):
    send(up, topic, [str(number) for number in range(60)])
    given = config(up, topic, tmp_path, format="delta", batch_messages=20, compact=True)
    assert "small files were merged" in Ingest(given).run(spark, ignore).sentence
    assert len(deltalake.DeltaTable(str(tmp_path / "t")).file_uris()) == 1
    assert len(table(tmp_path, "delta")) == 60


def test_a_dry_run_changes_nothing(up: LibraUp, topic: str, tmp_path: Path):
    send(up, topic, ["a"] * 10)
    plan = Ingest(config(up, topic, tmp_path)).plan()
    assert plan.message_count == 10
    assert len(plan.reads) == 4
    assert list(tmp_path.iterdir()) == []


def test_mistakes_are_reported_before_spark_starts(up: LibraUp, topic: str, tmp_path: Path):
    with pytest.raises(RouteNotFound, match="knows no topic nowhere"):
        Ingest(config(up, "nowhere", tmp_path)).plan()
    with pytest.raises(ConfigError, match="failOnDataLoss='maybe': give true or false"):
        Ingest(config(up, topic, tmp_path, source={"failOnDataLoss": "maybe"})).plan()
    (tmp_path / "t").mkdir()
    (tmp_path / "t" / "a.parquet").touch()
    with pytest.raises(ConfigError, match="was not written with the checkpoint"):
        Ingest(config(up, topic, tmp_path)).plan()


def test_a_failed_run_names_the_reason_in_one_line(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path
):
    send(up, topic, ["a"] * 10)
    given = config(up, topic, tmp_path)
    Ingest(given).run(spark, ignore)
    with Admin(namesrv=up.namesrv) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, queues=4)
    send(up, topic, ["b"] * 5)
    with pytest.raises(PipelineFailed) as caught:
        Ingest(given).run(spark, ignore)
    said = str(caught.value)
    assert said.startswith(f"ingest ended early: queue {topic}:broker-a:")
    assert said.endswith("failOnDataLoss=false continues without; run it again and it continues")
    assert "\n" not in said
