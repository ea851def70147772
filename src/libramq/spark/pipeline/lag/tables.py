"""The tables of lag: samples of groups' offsets, with rates between two samples of a queue, and sums.

samples ─► lag (each queue) ─► groups (each group and topic)
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyspark.sql import functions as f
from pyspark.sql.window import Window

from libramq.spark.pipeline.small_table import computed

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame

Columns = Mapping[str, str]

SAMPLES: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "topic": "string",
        "broker": "string",
        "queueId": "int",
        "at": "timestamp",
        "broker_offset": "bigint",  # The queue's end.
        "consumer_offset": "bigint",  # What the group has committed.
    }
)
LAG: Final[Columns] = MappingProxyType(
    {
        **SAMPLES,
        "lag": "bigint",
        "produced_per_s": "double",  # Since the sample before; null where offsets went back.
        "consumed_per_s": "double",
        "caught_up_in_s": "double",  # At these rates; null where the lag does not shrink.
    }
)
GROUPS: Final[Columns] = MappingProxyType(
    {
        "group": "string",
        "topic": "string",
        "at": "timestamp",
        "queues": "bigint",
        "lag": "bigint",
        "produced_per_s": "double",
        "consumed_per_s": "double",
        "caught_up_in_s": "double",  # When the last queue is; null where one of them does not come nearer.
    }
)
TABLES: Final[Mapping[str, Columns]] = MappingProxyType({"lag": LAG, "groups": GROUPS})


def lag_tables(samples: "DataFrame") -> "dict[str, pa.Table]":
    """Compute both tables; a duplicate sample counts once."""
    queue = ["group", "topic", "broker", "queueId"]
    in_time = Window.partitionBy(*queue).orderBy("at")
    seconds = (f.unix_millis("at") - f.unix_millis(f.lag("at").over(in_time))) / 1000

    def rate(offset: str) -> "Column":
        gained = f.col(offset) - f.lag(offset).over(in_time)
        return f.when(gained >= 0, gained / seconds)

    lag = (
        samples.dropDuplicates([*queue, "at"])
        .withColumn("lag", f.greatest(f.col("broker_offset") - f.col("consumer_offset"), f.lit(0)))
        .withColumn("produced_per_s", rate("broker_offset"))
        .withColumn("consumed_per_s", rate("consumer_offset"))
        .withColumn("nearer", f.col("consumed_per_s") - f.col("produced_per_s"))
        .withColumn(
            "caught_up_in_s",
            f.when(f.col("lag") == 0, f.lit(0.0)).when(f.col("nearer") > 0, f.col("lag") / f.col("nearer")),
        )
        .select(*LAG)
    )
    groups = (
        lag.groupBy("group", "topic", "at")
        .agg(
            f.count("*").alias("queues"),
            f.sum("lag").alias("lag"),
            f.sum("produced_per_s").alias("produced_per_s"),
            f.sum("consumed_per_s").alias("consumed_per_s"),
            f.when(f.count("caught_up_in_s") == f.count("*"), f.max("caught_up_in_s")).alias(
                "caught_up_in_s"
            ),
        )
        .select(*GROUPS)
    )
    return computed(lag, {"lag": lag.orderBy("at", *queue), "groups": groups.orderBy("at", "group", "topic")})
