"""The columns of `format("rocketmq")` with their Spark types; libramq.columns.records has the Arrow types."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from libramq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "topic": "string",
        "broker": "string",
        "queueId": "int",
        "offset": "bigint",
        "timestamp": "timestamp",  # When the broker stored the message.
        "bornTimestamp": "timestamp",  # When the producer created it.
        "key": "string",  # The property KEYS: words separated by spaces.
        "tag": "string",  # The property TAGS.
        "msgId": "string",  # The producer's unique id (UNIQ_KEY), else the offset id.
        "body": "binary",
        "reconsumeTimes": "int",
        "properties": "map<string,string>",
    }
)


def ddl(columns: Mapping[str, str]) -> str:
    """Return columns and types as a Spark DDL string."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def columns_of(schema: "StructType") -> tuple[str, ...]:
    """Return the columns that a reader yields: all, or the selection in the user's `.schema(…)`."""
    names = []
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if COLUMNS.get(field.name) != kind:
            there_are = ", ".join(f"{name} {kind}" for name, kind in COLUMNS.items())
            raise ConfigError(f"format rocketmq has no column {field.name} {kind}; there are {there_are}")
        names.append(field.name)
    return tuple(names)
