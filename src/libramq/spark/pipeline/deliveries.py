"""Deliveries, from message traces: each time a consumer began to handle a message, with the group's previous
delivery of it.

        bodies ─► trace records ─ by message ─► deliveries, each with its group's previous one

All records of one message are in one partition, so the records are shuffled once. A killed client's last
records are missing: Java clients send a batch after ten records or every 5 s.
"""

from collections.abc import Callable, Sequence
from datetime import tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from pyspark.sql import functions as f
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.window import Window

from libramq.errors import RemoteProtocolError
from libramq.message.ids import born_ms, decode_unique_id
from libramq.message.trace import ABSENT, Pub, SubAfter, SubBefore, Trace, decode_trace

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Ours: synchronised clocks differ by less. A message handled more than this long before it was created has
#: an id from another time zone.
CLOCKS_APART_MS: Final = 1_000

#: The fields of a trace record and their Arrow types. call: the id of the listener call; empty in a
#: producer's record.
_RECORD: Final = {
    "msgId": "string",
    "call": "string",
    "group": "string",
    "client": "string",
    "topic": "string",
    "published_ms": "int64",
    "born_ms": "int64",
    "began_ms": "int64",
    "ended_ms": "int64",
    "cost_ms": "int64",
    "succeeded": "bool",
    "retry_times": "int32",
    "unreadable": "int32",
}
_DDL: Final = {"string": "string", "int64": "bigint", "int32": "int", "bool": "boolean"}


def deliveries(bodies: "DataFrame", *, broadcasting: Sequence[str], zone: tzinfo | None) -> "DataFrame":
    """Return a row per delivery from a table with `body`, and a row without msgId for unreadable records.

    broadcasting: broadcasting groups to leave out; every member of these gets each message.
    zone: the producers' time zone, because times in unique ids count from the start of a month; None for
    this machine's.
    """
    ddl = ", ".join(f"{name}:{_DDL[kind]}" for name, kind in _RECORD.items())
    read: Any = arrow_udf  # The stub requires the function type, which Spark infers.
    records = bodies.select(
        f.inline(read(_reader(zone), f"array<struct<{ddl}>>")(f.col("body").cast("binary")))
    )
    calls = (
        records.repartition("msgId")
        .groupBy("msgId", "call")
        .agg(
            *(f.max(name).alias(name) for name in ("group", "client", "topic", "ended_ms", "cost_ms")),
            *(f.min(name).alias(name) for name in ("published_ms", "born_ms", "began_ms")),
            *(f.max(name).alias(name) for name in ("succeeded", "retry_times")),
            f.sum("unreadable").alias("unreadable"),
        )
    )
    message, attempts = Window.partitionBy("msgId"), Window.partitionBy("msgId", "group")
    before = attempts.orderBy("began_ms", "call")
    first = (f.col("attempt") == 1) & (f.col("retry_times") == 0)
    delay = f.col("began_ms") - f.coalesce("published_ms", "born_ms")
    return (
        calls.withColumn("topic", f.max("topic").over(message))
        .withColumn("published_ms", f.min("published_ms").over(message))
        .where("call != '' or msgId is null")
        .withColumn("began_ms", f.coalesce("began_ms", f.col("ended_ms") - f.col("cost_ms")))
        .withColumn("retry_times", f.coalesce("retry_times", f.lit(0)))
        .where("msgId is null or (began_ms is not null and `group` is not null)")
        .where(f.col("msgId").isNull() | ~f.col("group").isin(*broadcasting))
        .withColumn("attempt", f.row_number().over(before))
        .withColumn("before_ms", f.lag("began_ms").over(before))
        .withColumn("before_client", f.lag("client").over(before))
        .withColumn("before_succeeded", f.lag("succeeded").over(before))
        .withColumn("is_retry", f.col("retry_times") > f.lag("retry_times").over(before))
        .withColumn("delay_ms", f.when(first & (delay >= -CLOCKS_APART_MS), f.greatest(delay, f.lit(0))))
        .withColumn("is_too_soon", f.coalesce(first & (delay < -CLOCKS_APART_MS), f.lit(False)))
        .drop("published_ms", "born_ms", "cost_ms")
    )


def _reader(zone: tzinfo | None) -> "Callable[[pa.Array], pa.Array]":
    """Return the function that Spark runs over bodies; it returns each body's records."""

    import pyarrow as pa

    def read(bodies: pa.Array) -> pa.Array:
        offsets = [0]
        columns: dict[str, list[Any]] = {name: [] for name in _RECORD}
        for body in bodies:
            rows = _rows(decode_trace(body.as_py() or b""), zone)
            for row in rows:
                for name, values in columns.items():
                    values.append(row.get(name))
            offsets.append(offsets[-1] + len(rows))
        fields = [pa.array(columns[name], pa.type_for_alias(kind)) for name, kind in _RECORD.items()]
        records = pa.StructArray.from_arrays(fields, list(_RECORD))
        return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), records)

    return read


def _rows(trace: Trace, zone: tzinfo | None) -> list[dict[str, Any]]:
    """Return the columns of each record that the table uses."""
    rows: list[dict[str, Any]] = []
    for record in trace.records:
        match record:
            case Pub(unique_id=str(ids), topic=topic, at_ms=at_ms):
                rows += [
                    {"msgId": one, "call": "", "topic": topic, "published_ms": at_ms}
                    for one in ids.split(",")
                ]
            case SubBefore() | SubAfter() if record.unique_id in ("", ABSENT):
                continue  # The message is unknown.
            case SubBefore():
                rows.append(
                    {
                        **_call(record),
                        "began_ms": record.at_ms,
                        "retry_times": record.retry_times,
                        "born_ms": _born_ms(record, zone),
                    }
                )
            case SubAfter():
                rows.append(
                    {
                        **_call(record),
                        "ended_ms": record.at_ms,
                        "cost_ms": record.cost_ms,
                        "succeeded": record.is_success,
                    }
                )
    if trace.unreadable:
        rows.append({"call": "", "unreadable": trace.unreadable})
    return rows


def _call(record: SubBefore | SubAfter) -> dict[str, Any]:
    return {
        "msgId": record.unique_id,
        "call": record.request_id,
        "group": record.group,
        "client": client_of(record.request_id),
    }


@lru_cache(maxsize=4096)  # A call has two records, before and after, for each message.
def client_of(call: str) -> str | None:
    """Return "address@pid", the start of Java's client ids; the same for all clients of a process."""
    try:
        made = decode_unique_id(call)
    except RemoteProtocolError:
        return None
    return f"{made.ip}@{made.pid}"


def _born_ms(record: SubBefore, zone: tzinfo | None) -> int | None:
    try:
        return born_ms(decode_unique_id(record.unique_id).since_month_ms, record.at_ms, zone)
    except RemoteProtocolError:
        return None
