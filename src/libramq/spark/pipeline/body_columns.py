"""Body columns: columns decoded from message bodies, and the reason for each body that does not decode."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from libramq.errors import ConfigError
from libramq.spark.bodies.bodies import from_message
from libramq.spark.pipeline.data_files import NO_VALUE
from libramq.spark.schema import COLUMNS

if TYPE_CHECKING:
    from pyspark.sql import Column

#: Types recognised without a Spark session; nested types have parameters.
SIMPLE_TYPES: Final = (
    "string", "int", "bigint", "float", "double", "boolean", "date", "timestamp", "binary",
)  # fmt: skip
_TAKEN: Final = {*map(str.lower, COLUMNS), "date", "batch", "reason"}
#: The longest directory name on Linux (NAME_MAX).
NAME_BYTES_MAX: Final = 255
EVENT_TIME_TYPES: Final = ("timestamp", "date")


class BodyColumns:
    """The columns of JSON, Avro or Protocol Buffers bodies. Raises ConfigError for an invalid schema.

    columns: for JSON, names and Spark types. schema: the file with the Avro schema or with a descriptor set,
    in which `message` names the type.
    """

    def __init__(
        self, kind: str, columns: Mapping[str, str], schema: str | None, message: str | None
    ) -> None:
        if bool(columns) != (kind == "json") or (schema is None) != (kind == "json"):
            raise ConfigError(f"body = {kind!r} needs {_NEEDS[kind]}")
        if (message is None) == (kind == "protobuf"):
            raise ConfigError(
                "message is the type of Protocol Buffers bodies, which need it, and of no others"
            )
        self._kind, self._message = kind, message
        data = b"" if schema is None else _read(Path(schema))
        self._schema: Any = data.decode() if kind == "avro" else data
        self.columns = dict(columns) if schema is None else self._columns_of_schema()
        twins = {name.lower(): name for name in self.columns}  # Spark's names are case-insensitive.
        for name, type_ in self.columns.items():
            if name.lower() in _TAKEN:
                raise ConfigError(f"the body's column {name} has the name of a message's; rename it")
            if twins[name.lower()] != name:
                raise ConfigError(
                    f"the body's columns {name} and {twins[name.lower()]} differ in case alone; leave one out"
                )
            if not name or set(name) & set(".`"):
                raise ConfigError(
                    f"the body's column {name!r}: a name has a letter, no dot and no backtick; leave it out"
                )
            if type_ not in SIMPLE_TYPES and not any(mark in type_ for mark in "<("):
                raise ConfigError(
                    f"column {name}: no type {type_}; there are {', '.join(SIMPLE_TYPES)}, decimal(10,2), "
                    "array<…>, map<…,…> and struct<…:…>"
                )

    def decoded(self) -> "Column":
        """Return `from_message` of the body: the decoded value, or the body itself in `corrupt`."""
        if self._kind != "json":
            return from_message("body", self._kind, self._schema, message=self._message)
        return from_message("body", "json", ", ".join(map(self._ddl, self.columns)))

    def reason(self, read: "Column", partitioned_by: Sequence[str]) -> "Column":
        """Return why a body does not fit, naming its columns; null if it fits. read: from `decoded`."""
        from pyspark.sql import functions as f

        misfits = [
            f.when(is_misfit, f.lit(f"{name} {reason}"))
            for name, kind in self.columns.items()
            for is_misfit, reason in _misfits(read["value"][name], name, kind, name in partitioned_by)
        ]
        return f.when(read["corrupt"].isNotNull(), self._corrupt()).otherwise(
            f.nullif(f.concat_ws(", ", *misfits), f.lit(""))
        )

    def _corrupt(self) -> "Column":
        from pyspark.sql import functions as f

        if self._kind != "json":
            return f.lit(f"cannot be decoded as {self._message or 'this Avro schema'}")
        text = f.col("body").cast("string")
        misfits = [
            f.when(
                from_message("body", "json", self._ddl(name))["corrupt"].isNotNull(),
                f.lit(f"{name} is not of type {kind}"),
            )
            for name, kind in self.columns.items()
        ]
        return (
            f.when(~f.is_valid_utf8(text), "not UTF-8")
            .when(f.try_parse_json(text).isNull(), "not JSON")
            .when(~text.rlike(r"^\s*\{"), "not a JSON object")
            .otherwise(f.concat_ws(", ", *misfits))
        )

    def _ddl(self, name: str) -> str:
        return f"`{name}` {self.columns[name]}"

    def _columns_of_schema(self) -> dict[str, str]:
        from pyspark.sql.types import StructType

        if self._kind == "avro":
            from libramq.spark.bodies.avro_bodies import AvroBodies

            value = AvroBodies(self._schema).value_type
        else:
            from libramq.spark.bodies.protobuf_bodies import ProtobufBodies

            assert self._message is not None, "checked before"
            value = ProtobufBodies(self._schema, self._message).value_type
        if not isinstance(value, StructType):
            raise ConfigError(f"the schema is that of a {value.simpleString()}; columns need a record")
        return {field.name: field.dataType.simpleString() for field in value.fields}


def _misfits(value: "Column", name: str, kind: str, is_partition: bool) -> "Iterator[tuple[Column, str]]":
    """Yield conditions under which a well-typed value cannot be written, each with the reason to report."""
    from pyspark.sql import functions as f

    if kind in EVENT_TIME_TYPES:  # Python's limits; usually milliseconds mistaken for seconds.
        yield ~f.year(value).between(1, 9999), "is not in the years 1 to 9999"
    if is_partition and kind == "string":
        # The directory is name=value, in which a byte may take three characters (%2F).
        bytes_max = (NAME_BYTES_MAX - len(quote(name, safe="")) - 1) // 3
        yield f.octet_length(value) > bytes_max, f"is too long for a partition, above {bytes_max} bytes"
        yield value.contains("\0") | (value == NO_VALUE), "cannot be the name of a partition's directory"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"schema: cannot read {path}: {error.strerror}") from None


_NEEDS: Final[Mapping[str, str]] = {
    "json": "a table [columns] with names and types, and takes no schema",
    "avro": "schema, a file with Avro's schema, and takes no columns",
    "protobuf": "schema, a descriptor set (of protoc --include_imports -o FILE), and takes no columns",
}
