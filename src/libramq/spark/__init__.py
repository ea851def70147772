"""Spark reads and writes RocketMQ: `format("rocketmq")`, in batches and in streams.

    from libramq.spark import session

    spark = session()
    flights = spark.readStream.format("rocketmq").option("subscribe", "Flights").load()

Importing this package in a Spark worker imports neither Spark's driver side nor a client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libramq.spark.bodies.bodies import from_message
    from libramq.spark.pipeline.batches import Batch, plan_batches, read_batches
    from libramq.spark.pipeline.delta_table import DeltaTable
    from libramq.spark.pipeline.iceberg_table import IcebergTable
    from libramq.spark.pipeline.parquet_table import ParquetTable
    from libramq.spark.source import RocketMQSource
    from libramq.spark.spark_session import bootstrap, register, session
    from libramq.spark.writing.sink import deduplicated

__all__ = [
    "Batch",
    "DeltaTable",
    "IcebergTable",
    "ParquetTable",
    "RocketMQSource",
    "bootstrap",
    "deduplicated",
    "from_message",
    "plan_batches",
    "read_batches",
    "register",
    "session",
]

_HOME = {
    "RocketMQSource": "libramq.spark.source",
    "Batch": "libramq.spark.pipeline.batches",
    "DeltaTable": "libramq.spark.pipeline.delta_table",
    "IcebergTable": "libramq.spark.pipeline.iceberg_table",
    "ParquetTable": "libramq.spark.pipeline.parquet_table",
    "plan_batches": "libramq.spark.pipeline.batches",
    "read_batches": "libramq.spark.pipeline.batches",
    "from_message": "libramq.spark.bodies.bodies",
    "deduplicated": "libramq.spark.writing.sink",
    "bootstrap": "libramq.spark.spark_session",
    "register": "libramq.spark.spark_session",
    "session": "libramq.spark.spark_session",
}

#: For help().
_OPTIONS = {
    "source_options": "libramq.spark.reading.source_options",
    "sink_options": "libramq.spark.writing.sink_options",
}


if not TYPE_CHECKING:  # A type checker would accept every name.

    def __getattr__(name: str) -> Any:
        from importlib import import_module

        if name in _OPTIONS:
            return import_module(_OPTIONS[name])
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from libramq.errors import needs_extra

        with needs_extra(f"libramq.spark.{name}", "spark"):
            return getattr(import_module(_HOME[name]), name)
