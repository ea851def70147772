"""Message bodies (`from_message`): JSON, Avro, Protocol Buffers or text decoded into columns, and the bodies
that do not decode kept beside them.

    from libramq.spark import from_message

    read = messages.select(from_message("body", "json", "carrier STRING, delay INT").alias("read"), "offset")
    good = read.where("read.corrupt IS NULL").select("read.value.*", "offset")
    dead = read.where("read.corrupt IS NOT NULL").select("read.corrupt", "offset")

A body that does not match the schema is returned unchanged in `corrupt` with a null value; it never fails the
query. Spark itself decodes JSON and text. Python decodes Avro and Protocol Buffers in the workers (the extra
`formats`), because PySpark does not include Spark's own decoders for these.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from libramq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import Column

    from libramq.spark.bodies.decoded import BodyDecoder

_CORRUPT: Final = "_libra_corrupt"


def from_message(
    column: "Column | str", kind: str, schema: Any = None, *, message: str | None = None
) -> "Column":
    """Return a struct of `value` and `corrupt` (binary): exactly one is null, or both if the body is null.

    kind         schema
    json         Spark's: a DDL string or a StructType; fields may be missing, unknown ones are ignored
    avro         Avro's: JSON text, a mapping, or a file path; a body is one datum without a header
    protobuf     a descriptor set (protoc --include_imports -o FILE), bytes or a path; `message` is the type
    string       none; a body must be UTF-8

    Raises ConfigError for an unknown kind or an unusable schema.
    """
    from pyspark.sql import functions as f

    body = f.col(column) if isinstance(column, str) else column
    if kind not in _KINDS:
        raise ConfigError(f"from_message knows {', '.join(_KINDS)}; not {kind!r}")
    if (schema is None) != (kind == "string") or (message is None) == (kind == "protobuf"):
        raise ConfigError(f"from_message: {kind} {_NEEDS[kind]}")
    return _KINDS[kind](body, schema, message)


def _from_string(body: "Column", _schema: Any, _message: str | None) -> "Column":
    from pyspark.sql import functions as f

    text = body.cast("string")
    is_text = f.is_valid_utf8(text)
    return f.struct(
        f.when(is_text, text).alias("value"), f.when(~is_text, body.cast("binary")).alias("corrupt")
    )


def _from_json(body: "Column", schema: Any, _message: str | None) -> "Column":
    from pyspark.errors import ParseException
    from pyspark.sql import functions as f
    from pyspark.sql.types import StringType, StructField, StructType

    try:
        fields = schema if isinstance(schema, StructType) else StructType.fromDDL(schema)
    except ParseException as error:
        reason = str(error).strip()  # The message begins with an empty line.
        raise ConfigError(f"from_message: {schema!r} is not a Spark schema: {reason}") from None
    assert isinstance(fields, StructType), "a DDL text is one"
    with_corrupt = StructType([*fields.fields, StructField(_CORRUPT, StringType())])
    text = body.cast("string")
    parsed = f.from_json(text, with_corrupt, {"columnNameOfCorruptRecord": _CORRUPT})

    def judged(one: "Column") -> "Column":
        is_good = f.is_valid_utf8(text) & one.isNotNull() & one[_CORRUPT].isNull()
        value = f.struct(*(one[name].alias(name) for name in fields.names))
        return f.struct(
            f.when(is_good, value).alias("value"), f.when(~is_good, body.cast("binary")).alias("corrupt")
        )

    # Wrapped in an array of one element, so that Spark parses the body only once.
    return f.when(body.isNotNull(), f.transform(f.array(parsed), judged)[0])


def _from_avro(body: "Column", schema: Any, _message: str | None) -> "Column":
    from libramq.spark.bodies.avro_bodies import AvroBodies

    text = schema.read_text() if isinstance(schema, Path) else schema
    return _read_by(AvroBodies(text), body)


def _from_protobuf(body: "Column", schema: Any, message: str | None) -> "Column":
    from libramq.spark.bodies.protobuf_bodies import ProtobufBodies

    assert message is not None, "checked by from_message"
    data = schema if isinstance(schema, bytes) else Path(schema).read_bytes()
    return _read_by(ProtobufBodies(data, message), body)


def _read_by(bodies: "BodyDecoder", body: "Column") -> "Column":
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    def read(column: pa.Array) -> pa.Array:
        return bodies(column)

    udf: Any = arrow_udf  # The stub requires the function type, which Spark infers.
    made: Column = udf(read, bodies.spark_type)(body.cast("binary"))
    return made


_KINDS: Final[Mapping[str, Callable[["Column", Any, str | None], "Column"]]] = MappingProxyType(
    {"json": _from_json, "avro": _from_avro, "protobuf": _from_protobuf, "string": _from_string}
)
_NEEDS: Final = {
    "json": "needs a schema (DDL or StructType) and takes no message",
    "avro": "needs a schema (Avro's JSON) and takes no message",
    "protobuf": "needs a schema (a descriptor set) and message='PACKAGE.NAME'",
    "string": "takes neither schema nor message",
}
