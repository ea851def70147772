"""Tests of bodies that become columns; unparsable bodies are kept unchanged and never fail a query."""

import datetime
import io
import json
import pickle
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

from libramq.errors import ConfigError
from libramq.spark import from_message
from libramq.spark.bodies.avro_bodies import AvroBodies
from libramq.spark.bodies.protobuf_bodies import ProtobufBodies

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

NOON = datetime.datetime(2024, 2, 29, 12, tzinfo=datetime.UTC)
AVRO: dict[str, Any] = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "item", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-millis"}},
        {
            "name": "price",
            "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        },
        {"name": "kind", "type": {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}},
        {"name": "tags", "type": {"type": "array", "items": "string"}},
        {"name": "counts", "type": {"type": "map", "values": "int"}},
        {
            "name": "place",
            "type": {"type": "record", "name": "Place", "fields": [{"name": "x", "type": "double"}]},
        },
        {"name": "other", "type": ["null", "Place"]},
    ],
}
ORDER: dict[str, Any] = {
    "id": 7,
    "item": None,
    "at": NOON,
    "price": Decimal("12.50"),
    "kind": "B",
    "tags": ["x", "y"],
    "counts": {"n": 3},
    "place": {"x": 0.5},
    "other": {"x": 1.5},
}


def avro(value: dict[str, Any]) -> bytes:
    stream = io.BytesIO()
    fastavro.schemaless_writer(stream, fastavro.parse_schema(AVRO), value)
    return stream.getvalue()


def descriptors() -> bytes:
    """Return the output of protoc --include_imports -o for a small file."""
    field = descriptor_pb2.FieldDescriptorProto
    file = descriptor_pb2.FileDescriptorProto(
        name="order.proto", package="shop", syntax="proto3", dependency=["google/protobuf/timestamp.proto"]
    )
    kind = file.enum_type.add(name="Kind")
    kind.value.add(name="A", number=0)
    kind.value.add(name="B", number=1)
    order = file.message_type.add(name="Order")
    once, many = field.LABEL_OPTIONAL, field.LABEL_REPEATED
    order.field.add(name="id", number=1, type=field.TYPE_INT64, label=once)
    order.field.add(name="big", number=2, type=field.TYPE_UINT64, label=once)
    order.field.add(name="kind", number=3, type=field.TYPE_ENUM, type_name=".shop.Kind", label=once)
    order.field.add(name="tags", number=4, type=field.TYPE_STRING, label=many)
    order.field.add(
        name="at", number=5, type=field.TYPE_MESSAGE, type_name=".google.protobuf.Timestamp", label=once
    )
    entry = order.nested_type.add(name="CountsEntry")
    entry.options.map_entry = True
    entry.field.add(name="key", number=1, type=field.TYPE_STRING, label=once)
    entry.field.add(name="value", number=2, type=field.TYPE_INT32, label=once)
    order.field.add(
        name="counts", number=6, type=field.TYPE_MESSAGE, type_name=".shop.Order.CountsEntry", label=many
    )
    order.field.add(name="place", number=7, type=field.TYPE_MESSAGE, type_name=".shop.Place", label=once)
    place = file.message_type.add(name="Place")
    place.field.add(name="x", number=1, type=field.TYPE_DOUBLE, label=once)
    timestamp = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(timestamp)
    return descriptor_pb2.FileDescriptorSet(file=[timestamp, file]).SerializeToString()


class TestAvro:
    bodies = AvroBodies(AVRO)

    def read(self, *bodies: bytes | None) -> list[Any]:
        travelled = pickle.loads(pickle.dumps(self.bodies))
        return travelled(pa.array(bodies, pa.binary())).to_pylist()

    def test_types(self):
        assert self.bodies.value_type.simpleString() == (
            "struct<id:bigint,item:string,at:timestamp,price:decimal(9,2),kind:string,tags:array<string>,"
            "counts:map<string,int>,place:struct<x:double>,other:struct<x:double>>"
        )

    def test_values_and_what_is_none(self):
        good = avro(ORDER)
        first, cut, longer, nothing, again = self.read(good, good[:-1], good + b"x", None, good)
        assert first == again == {"value": {**ORDER, "counts": [("n", 3)]}, "corrupt": None}
        assert cut == {"value": None, "corrupt": good[:-1]}
        assert longer == {"value": None, "corrupt": good + b"x"}
        assert nothing is None

    def test_value_that_does_not_fit_its_column(self):
        """Only Arrow notices a decimal with more digits than its schema allows."""
        wide = avro({**ORDER, "price": Decimal("1.00")}).replace(b"\x02\x64", b"\x0a\x7f\xff\xff\xff\xff")
        good = avro(ORDER)
        assert self.read(good, wide, good)[1] == {"value": None, "corrupt": wide}
        assert self.read(good, wide, good)[2]["corrupt"] is None

    @pytest.mark.parametrize(
        ("schema", "says"),
        [
            ("{", "no Avro schema"),
            ('{"type": "record"}', "no Avro schema"),
            (json.dumps(["int", "string"]), "no Avro schema|no Spark type"),
            (
                json.dumps(
                    {
                        "type": "record",
                        "name": "Node",
                        "fields": [{"name": "next", "type": ["null", "Node"]}],
                    }
                ),
                "contains itself",
            ),
        ],
    )
    def test_wrong_schemas(self, schema: str, says: str):
        with pytest.raises(ConfigError, match=says):
            AvroBodies(schema)


class TestProtobuf:
    bodies = ProtobufBodies(descriptors(), "shop.Order")

    def message(self, **fields: Any) -> bytes:
        return self.bodies._class(**fields).SerializeToString()

    def read(self, *bodies: bytes | None) -> list[Any]:
        travelled = pickle.loads(pickle.dumps(self.bodies))
        return travelled(pa.array(bodies, pa.binary())).to_pylist()

    def test_types(self):
        assert self.bodies.value_type.simpleString() == (
            "struct<id:bigint,big:decimal(20,0),kind:string,tags:array<string>,at:timestamp,"
            "counts:map<string,int>,place:struct<x:double>>"
        )

    def test_values_and_what_is_none(self):
        good = self.message(
            id=-7, big=2**64 - 1, kind=1, tags=["x"], at=NOON, counts={"n": 3}, place={"x": 0.5}
        )
        first, bad, empty, odd = self.read(good, b"\xff", b"", self.message(kind=9))
        assert first["value"] == {
            "id": -7,
            "big": Decimal(2**64 - 1),
            "kind": "B",
            "tags": ["x"],
            "at": NOON,
            "counts": [("n", 3)],
            "place": {"x": 0.5},
        }
        assert bad == {"value": None, "corrupt": b"\xff"}
        assert empty["value"]["id"] == 0
        assert empty["value"]["at"] is None
        assert empty["value"]["place"] is None
        assert odd["value"]["kind"] == "9"

    def test_wrong_schemas(self):
        with pytest.raises(ConfigError, match=r"no message shop\.Nothing"):
            ProtobufBodies(descriptors(), "shop.Nothing")
        with pytest.raises(ConfigError, match="no descriptor set"):
            ProtobufBodies(b"\xff\xff", "shop.Order")


@pytest.mark.spark
class TestInSpark:
    def read(self, spark: "SparkSession", bodies: list[bytes | None], *how: Any, **more: Any) -> list[Any]:
        frame = spark.createDataFrame([(body,) for body in bodies], "body binary")
        rows = frame.select(from_message("body", *how, **more).alias("read")).collect()
        return [
            None
            if row.read is None
            else (row.read.value, None if row.read.corrupt is None else bytes(row.read.corrupt))
            for row in rows
        ]

    def test_json(self, spark: "SparkSession"):
        bodies = [b'{"a": 1, "b": "x"}', b'{"a": "no number"}', b"{", b'{"c": 1}', b"\xff\xfe", None, b"null"]
        good, wrong, cut, other, binary, nothing, null = self.read(spark, bodies, "json", "a INT, b STRING")
        assert (good[0].asDict(), good[1]) == ({"a": 1, "b": "x"}, None)
        assert wrong == (None, b'{"a": "no number"}')
        assert cut == (None, b"{")
        assert (other[0].asDict(), other[1]) == ({"a": None, "b": None}, None)
        assert binary == (None, b"\xff\xfe")
        assert nothing is None
        assert null == (None, b"null")

    def test_string(self, spark: "SparkSession"):
        assert self.read(spark, ["größe".encode(), b"\xff"], "string") == [("größe", None), (None, b"\xff")]

    def test_avro_and_protobuf(self, spark: "SparkSession", tmp_path: Path):
        good, bad = self.read(spark, [avro(ORDER), b"\x01"], "avro", json.dumps(AVRO))
        assert good[0].asDict(recursive=True)["place"] == {"x": 0.5}
        assert bad == (None, b"\x01")
        (tmp_path / "order.desc").write_bytes(descriptors())
        message = ProtobufBodies(descriptors(), "shop.Order")._class(id=5).SerializeToString()
        good, bad = self.read(
            spark, [message, b"\xff"], "protobuf", tmp_path / "order.desc", message="shop.Order"
        )
        assert good[0].id == 5
        assert bad == (None, b"\xff")

    @pytest.mark.parametrize(
        ("how", "says"),
        [
            (("xml",), "knows json, avro, protobuf, string; not 'xml'"),
            (("json",), "json needs a schema"),
            (("string", "a INT"), "string takes neither"),
            (("protobuf", b""), "needs a schema .a descriptor set. and message="),
            (("json", "a INTTT"), "not a Spark schema"),
        ],
    )
    def test_wrong_ones(self, spark: "SparkSession", how: tuple[Any, ...], says: str):
        with pytest.raises(ConfigError, match=says):
            from_message("body", *how)
