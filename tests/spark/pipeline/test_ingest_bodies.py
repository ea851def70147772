"""Bodies become columns of the table; bodies that do not fit go to a separate table."""

from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from libramq.errors import ConfigError
from libramq.message import Message
from libramq.spark.bodies.protobuf_bodies import ProtobufBodies
from libramq.spark.pipeline.ingest import Ingest, IngestConfig
from libramq.sync import Producer

from ...interop.cluster import SEND_TIMEOUT_MS
from ...interop.libra import LibraUp
from ..test_bodies import NOON, descriptors
from .test_ingest import FORMATS, config, ignore, table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

AVRO = '{"type": "record", "name": "Sale", "fields": [{"name": "shop", "type": "string"}]}'
LONG = b'{"shop": "%s"}' % (b"/" * 84)
NAMELESS = [b'{"shop": "\\u0000"}', b'{"shop": "__HIVE_DEFAULT_PARTITION__"}']
COLUMNS = {"shop": "string", "at": "timestamp", "cents": "int"}


def send(up: LibraUp, topic: str, bodies: list[bytes]) -> None:
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for body in bodies:
            producer.send(Message(topic, body))


@pytest.mark.spark
@pytest.mark.parametrize("kind", FORMATS)
def test_json_becomes_columns_and_rejects_are_kept_with_the_reason(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    keys: dict[str, Any] = {"format": kind, "body": "json", "event_time": "at"}
    given = config(up, topic, tmp_path, **keys, columns=COLUMNS, partitioned_by=["date", "shop"])
    send(
        up,
        topic,
        [
            b'{"shop": "Harbour", "at": "2026-05-01T10:00:00Z", "cents": 1, "till": 2}',
            b'{"shop": "Caf\\u00e9 1/2", "cents": 3}',  # The directory's name for Café 1%2F2.
            b'{"shop": "Harbour", "cents": "many"}',
            b"[1]",
            b"not JSON",
            b"\xff",
            b'\n {"cents": "many"}',
            LONG,
            *NAMELESS,
            b'{"shop": "Harbour", "at": 1700000000000}',
        ],
    )
    sentence = Ingest(given).run(spark, ignore).sentence
    assert "11 messages" in sentence
    assert "2 rows written" in sentence
    assert "9 bodies did not fit, see " in sentence
    more = config(
        up, topic, tmp_path, **keys, columns={**COLUMNS, "till": "int"}, partitioned_by=["date", "shop"]
    )
    send(up, topic, [b'{"shop": "Harbour", "at": "2026-05-02T10:00:00Z", "cents": 4, "till": 7}'])
    Ingest(more).run(spark, ignore)
    other = config(
        up, topic, tmp_path, **keys, columns={**COLUMNS, "cents": "string"}, partitioned_by=["date", "shop"]
    )
    with pytest.raises(ConfigError, match=r"has a column cents int(32)?, which is to be string; give anoth"):
        Ingest(other).plan()  # The table would be unreadable afterwards.
    if kind != "parquet":  # Some of its readers merge files of several schemas, some do not.
        rows = sorted(table(tmp_path, kind).to_pylist(), key=lambda row: row["cents"])
        assert [(row["shop"], row["cents"], row["till"]) for row in rows] == [
            ("Harbour", 1, None), ("Café 1/2", 3, None), ("Harbour", 4, 7),
        ]  # fmt: skip
        assert [str(row["date"]) for row in rows if row["at"]] == ["2026-05-01", "2026-05-02"]
        assert rows[1]["date"] == rows[1]["timestamp"].date()
        assert "body" not in rows[0]
    rejected = {row["body"]: row["reason"] for row in table(tmp_path, kind, "t_rejected").to_pylist()}
    assert rejected == {
        b'{"shop": "Harbour", "cents": "many"}': "cents is not of type int",
        b"[1]": "not a JSON object",
        b"not JSON": "not JSON",
        b"\xff": "not UTF-8",
        b'\n {"cents": "many"}': "cents is not of type int",
        b'{"shop": "Harbour", "at": 1700000000000}': "at is not in the years 1 to 9999",
        LONG: "shop is too long for a partition, above 83 bytes",
        **dict.fromkeys(NAMELESS, "shop cannot be the name of a partition's directory"),
    }


@pytest.mark.spark
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_another_type_inside_a_nested_column_is_refused_before_anything_is_read(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    """Parquet accepted it, and then no reader could read the table; Delta's error advised a second run."""

    def run(columns: dict[str, str]) -> str:
        given = config(up, topic, tmp_path, format=kind, body="json", columns=columns)
        return Ingest(given).run(spark, ignore).sentence

    send(up, topic, [b'{"tags": [1], "line": {"a": 1, "b": 2}}'])
    assert "1 rows written" in run({"tags": "array<int>", "line": "struct<a:int,b:int>"})
    send(up, topic, [b'{"line": {"a": 1}}'])
    with pytest.raises(ConfigError, match=r"a column tags list<.*int32>, which is to be list<.*string>; giv"):
        run({"tags": "array<string>"})
    assert "1 rows written" in run({"line": "struct<a:int>"})
    with pytest.raises(ConfigError, match=r"a column line struct<.*>, which is to be struct<.*>; give anoth"):
        run({"line": "struct<a:int,b:string>"})


@pytest.mark.spark
@pytest.mark.parametrize("kind", FORMATS)
def test_protobuf_becomes_columns_of_all_its_types(
    spark: "SparkSession", up: LibraUp, topic: str, tmp_path: Path, kind: str
):
    schema = tmp_path / "order.desc"
    schema.write_bytes(descriptors())
    encode = ProtobufBodies(descriptors(), "shop.Order")._class
    whole = encode(
        id=-7, big=2**64 - 1, kind=1, tags=["x", "y"], at=NOON, counts={"n": 3}, place={"x": 0.5}
    ).SerializeToString()
    future = encode(id=3, at={"seconds": 2**40}).SerializeToString()  # Milliseconds instead of seconds.
    send(up, topic, [whole, encode(big=1).SerializeToString(), b"\xff", future])
    keys: dict[str, Any] = {"format": kind, "body": "protobuf", "schema": str(schema), "event_time": "at"}
    given = config(up, topic, tmp_path, **keys, message="shop.Order", partitioned_by=["kind", "date"])
    sentence = Ingest(given).run(spark, ignore).sentence
    assert "4 messages" in sentence
    assert "2 rows written" in sentence
    assert Ingest(given).plan().message_count == 0
    empty, full = sorted(table(tmp_path, kind).to_pylist(), key=lambda row: row["big"])
    assert (full["id"], full["big"], full["kind"], full["tags"]) == (-7, Decimal(2**64 - 1), "B", ["x", "y"])
    assert (full["at"], dict(full["counts"]), full["place"]) == (NOON, {"n": 3}, {"x": 0.5})
    assert str(full["date"]) == str(NOON.date())
    assert (empty["id"], empty["kind"], empty["at"], empty["place"]) == (0, "A", None, None)
    assert str(empty["date"]) == str(empty["timestamp"].date())
    rejected = {row["body"]: row["reason"] for row in table(tmp_path, kind, "t_rejected").to_pylist()}
    assert rejected[b"\xff"] == "cannot be decoded as shop.Order"
    assert rejected.keys() == {b"\xff", future}


def test_avro_bodies_have_the_columns_of_their_schema(up: LibraUp, topic: str, tmp_path: Path):
    file = tmp_path / "sale.avsc"
    file.write_text(AVRO)
    given = config(up, topic, tmp_path, body="avro", schema=str(file), partitioned_by=["shop"])
    good, rejected = Ingest(given).plan().tables
    assert (good.columns["shop"], good.partitioned_by) == ("string", ("batch", "shop"))
    assert "body" not in good.columns
    assert (rejected.name, rejected.columns["reason"]) == ("t_rejected", "string")


def test_a_table_of_misfits_that_another_checkpoint_has_written_is_refused(tmp_path: Path):
    (tmp_path / "t_rejected" / "batch=0").mkdir(parents=True)
    given = IngestConfig(topics=["A"], table=str(tmp_path / "t"), body="json", columns={"a": "int"})
    with pytest.raises(ConfigError, match="was not written with the checkpoint"):
        Ingest(given).plan()


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"body": "json"}, "body = 'json' needs a table .columns. with names and types"),
        ({"body": "avro"}, "body = 'avro' needs schema, a file with Avro's schema"),
        ({"body": "avro", "schema": "nowhere.avsc"}, "schema: cannot read nowhere.avsc: No such file"),
        ({"body": "protobuf", "schema": "x"}, "message is the type of Protocol Buffers bodies"),
        ({"columns": {"a": "int"}}, "body = 'binary' takes no columns, schema or message"),
        ({"body": "json", "columns": {"Key": "int"}}, "column Key has the name of a message's; rename it"),
        (
            {"body": "json", "columns": {"a": "int", "A": "int"}},
            "columns a and A differ in case alone; leave",
        ),
        (
            {"body": "json", "columns": {"a.b": "int"}},
            "column 'a.b': a name has a letter, no dot and no",
        ),
        ({"body": "json", "columns": {"a": "number"}}, "column a: no type number; there are string, int"),
        ({"body": "json", "columns": {"a": "int"}, "event_time": "a"}, "with the type timestamp or date"),
        (
            {"partitioned_by": ["date", "shop"]},
            "partitioned_by=.'date', 'shop'.: shop is not a column; give columns of the types string, int",
        ),
        ({"partitioned_by": ["body"]}, "partitioned_by=.'body'.: body is a binary; give columns of"),
        ({"partitioned_by": ["topic"], "dedup": "key"}, "dedup looks into the days of storing"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, keys: dict[str, Any], said: str):
    with pytest.raises(ConfigError, match=said):
        Ingest(IngestConfig(topics=["A"], table=str(tmp_path / "t"), **keys))
