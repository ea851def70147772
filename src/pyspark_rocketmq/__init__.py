"""Where Spark looks for `format("rocketmq")`: it imports every top-level package named `pyspark_…`.

One such package that cannot be imported disables all of them, so this one needs nothing but PySpark.
"""

from libramq.spark.source import RocketMQSource as DefaultSource

__all__ = ["DefaultSource"]
