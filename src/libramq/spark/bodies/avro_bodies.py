"""Avro bodies: one datum of a known schema each, read by fastavro.

    null boolean int long float double bytes string     void boolean int bigint float double binary string
    record array map enum fixed                         struct array map string binary
    date timestamp-millis/-micros decimal uuid          date timestamp decimal string
    ["null", T]                                         T, which may be null

Unions of several types, and recursive types, cannot be columns.
"""

import io
import json
from collections.abc import Mapping
from typing import Any, Final

from pyspark.sql import types as t

from libramq.errors import ConfigError, needs_extra
from libramq.spark.bodies.decoded import BodyDecoder

_PRIMITIVES: Final[Mapping[str, t.DataType]] = {
    "null": t.NullType(), "boolean": t.BooleanType(), "int": t.IntegerType(), "long": t.LongType(),
    "float": t.FloatType(), "double": t.DoubleType(), "bytes": t.BinaryType(), "string": t.StringType(),
}  # fmt: skip
_LOGICAL: Final[Mapping[str, t.DataType]] = {
    "date": t.DateType(), "timestamp-millis": t.TimestampType(), "timestamp-micros": t.TimestampType(),
    "uuid": t.StringType(),
}  # fmt: skip


class AvroBodies(BodyDecoder):
    """Decodes Avro datums of one schema."""

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        with needs_extra("Avro", "formats"):
            import fastavro
        try:
            whole = json.loads(schema) if isinstance(schema, str) else dict(schema)
            self._parsed = fastavro.parse_schema(whole)
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"from_message: no Avro schema: {error!r}") from None
        super().__init__(_type(whole, {}))

    def decode(self, body: bytes) -> Any:
        import fastavro

        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._parsed, None)
        if stream.tell() != len(body):
            raise ValueError("bytes follow the datum")
        return value


def _type(schema: Any, named: Mapping[str, t.DataType | None]) -> t.DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise ConfigError(f"from_message: the Avro union {schema} has no Spark type")
        return _type(kinds[0], named)
    if isinstance(schema, str):
        known = _PRIMITIVES.get(schema) or named.get(schema)
        if known is None:
            raise ConfigError(f"from_message: the Avro type {schema} contains itself or is not known")
        return known
    logical = schema.get("logicalType")
    if logical in _LOGICAL:
        return _LOGICAL[logical]
    if logical == "decimal":
        return t.DecimalType(schema["precision"], schema.get("scale", 0))
    match schema["type"]:
        case "record":
            return _record(schema, dict(named))
        case "array":
            return t.ArrayType(_type(schema["items"], named))
        case "map":
            return t.MapType(t.StringType(), _type(schema["values"], named))
        case "enum":
            return t.StringType()
        case "fixed":
            return t.BinaryType()
        case kind:
            return _type(kind, named)


def _record(schema: Mapping[str, Any], named: dict[str, t.DataType | None]) -> t.StructType:
    named[schema["name"]] = None
    fields = []
    for field in schema["fields"]:
        kind = field["type"]
        fields.append(t.StructField(field["name"], _type(kind, named)))
        if isinstance(kind, Mapping) and "name" in kind:
            named[kind["name"]] = fields[-1].dataType
    return t.StructType(fields)
