"""The package in which Spark finds `format("rocketmq")`: every top-level `pyspark_…` is imported.

One such package that cannot be imported disables all of them, so this one needs nothing but PySpark.
"""

from libramq.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
