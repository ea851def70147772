"""Spark reads RocketMQ: `spark.read.format("rocketmq")`, `spark.readStream.format("rocketmq")`.

    from libramq.spark import session

    spark = session()
    flights = spark.readStream.format("rocketmq").option("subscribe", "Flights").load()

Importing this package in a Spark worker loads neither Spark's driver side nor a client.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from libramq.spark.source import RocketMQSource
    from libramq.spark.spark_session import bootstrap, register, session

__all__ = ["RocketMQSource", "bootstrap", "register", "session"]

_HOME = {
    "RocketMQSource": "libramq.spark.source",
    "bootstrap": "libramq.spark.spark_session",
    "register": "libramq.spark.spark_session",
    "session": "libramq.spark.spark_session",
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)
