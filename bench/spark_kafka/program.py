"""Parts of programs on the PySpark version of Spark's Kafka source: a session, the filling of a topic, and a
loop that answers requests, one line of JSON each.
"""

import contextlib
import json
import os
import sys
from collections.abc import Callable
from typing import Any


def start_session(jars: str) -> Any:
    """Start a session with libramq.spark.session's settings that affect a source in the JVM."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    settings = {
        "spark.jars": jars,
        "spark.sql.shuffle.partitions": "2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
    builder = SparkSession.builder.appName("kafka").master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def fill(spark: Any, servers: str, topic: str, count: int, size: int, queues: int) -> None:
    """Send bench/spark's messages: distinct keys, one body, round-robin over the partitions."""
    # The first write creates the topic. Without it, two of five fills lost a partition's records after a wait
    # of two minutes.
    with contextlib.suppress(Exception):
        _write(spark, servers, topic, (0, queues), size, queues, {"kafka.delivery.timeout.ms": "20000"})
    made = spark.read.format("kafka").option("kafka.bootstrap.servers", servers).option("subscribe", topic)
    _write(spark, servers, topic, (made.load().count(), count), size, queues, {})


def _write(
    spark: Any,
    servers: str,
    topic: str,
    ids: tuple[int, int],
    size: int,
    queues: int,
    options: dict[str, str],
) -> None:
    rows = spark.range(*ids).selectExpr(
        "CAST(concat('key-', id) AS binary) AS key",
        f"CAST(repeat('x', {size}) AS binary) AS value",
        f"CAST(id % {queues} AS int) AS partition",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    linger = {
        "kafka.linger.ms": "5",
        "kafka.request.timeout.ms": "10000",
    }  # 5 ms is the default of Kafka 4's own producer.
    writer.options(**linger, **options).save()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the requests on standard input until "stop"."""
    for line in sys.stdin:
        if line.strip() == "stop":
            return
        question = json.loads(line)
        print(json.dumps({"event": "done", "id": question["id"], **answer(question)}), flush=True)
