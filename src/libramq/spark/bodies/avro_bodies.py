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
from functools import cached_property
from typing import Any, Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    NullType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)  # fmt: skip

from libramq.errors import ConfigError, needs_extra
from libramq.spark.bodies.decoded import decoded, decoded_type

_PRIMITIVES: Final[Mapping[str, DataType]] = {
    "null": NullType(), "boolean": BooleanType(), "int": IntegerType(), "long": LongType(),
    "float": FloatType(), "double": DoubleType(), "bytes": BinaryType(), "string": StringType(),
}  # fmt: skip
_LOGICAL: Final[Mapping[str, DataType]] = {
    "date": DateType(), "timestamp-millis": TimestampType(), "timestamp-micros": TimestampType(),
    "uuid": StringType(),
}  # fmt: skip


class AvroBodies:
    """Decodes a binary array; a value, so that it can be sent to workers."""

    def __init__(self, schema: str | Mapping[str, Any]) -> None:
        with needs_extra("Avro", "formats"):
            import fastavro
        try:
            self._schema = json.loads(schema) if isinstance(schema, str) else dict(schema)
            fastavro.parse_schema(self._schema)
        except (ValueError, KeyError, fastavro.schema.SchemaParseException) as error:
            raise ConfigError(f"from_message: no Avro schema: {error!r}") from None
        self.value_type = _type(self._schema, {})
        self.spark_type = decoded_type(self.value_type)

    @cached_property
    def _parsed(self) -> Any:
        import fastavro

        return fastavro.parse_schema(self._schema)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_parsed"}

    def __call__(self, bodies: pa.Array) -> pa.Array:
        return decoded(bodies, self._decode, to_arrow_type(self.value_type, timezone="UTC"))

    def _decode(self, body: bytes) -> Any:
        import fastavro

        stream = io.BytesIO(body)
        value = fastavro.schemaless_reader(stream, self._parsed, None)
        if stream.tell() != len(body):
            raise ValueError("bytes follow the datum")
        return value


def _type(schema: Any, named: Mapping[str, DataType | None]) -> DataType:
    if isinstance(schema, list):
        kinds = [kind for kind in schema if kind != "null"]
        if len(kinds) != 1:
            raise ConfigError(f"from_message: the Avro union {schema} has no type of Spark's")
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
        return DecimalType(schema["precision"], schema.get("scale", 0))
    match schema["type"]:
        case "record":
            return _record(schema, dict(named))
        case "array":
            return ArrayType(_type(schema["items"], named))
        case "map":
            return MapType(StringType(), _type(schema["values"], named))
        case "enum":
            return StringType()
        case "fixed":
            return BinaryType()
        case kind:
            return _type(kind, named)


def _record(schema: Mapping[str, Any], named: dict[str, DataType | None]) -> StructType:
    named[schema["name"]] = None
    fields = []
    for field in schema["fields"]:
        kind = field["type"]
        fields.append(StructField(field["name"], _type(kind, named)))
        if isinstance(kind, Mapping) and "name" in kind:
            named[kind["name"]] = fields[-1].dataType
    return StructType(fields)
