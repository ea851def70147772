"""Parts of programs that run on the PySpark for which Spark's Kafka source was built: a session, a topic that
is filled, and questions that are answered, a line of JSON each.
"""

import json
import os
import sys
from collections.abc import Callable
from typing import Any


def start_session(jars: str) -> Any:
    """What libramq.spark.session sets, as far as it concerns a source in the JVM."""
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
    """The messages that bench/spark sends: a key each, one body, the partitions in turn."""
    rows = spark.range(count).selectExpr(
        "CAST(concat('key-', id) AS binary) AS key",
        f"CAST(repeat('x', {size}) AS binary) AS value",
        f"CAST(id % {queues} AS int) AS partition",
    )
    writer = rows.write.format("kafka").option("kafka.bootstrap.servers", servers).option("topic", topic)
    # The default of Kafka 4's own producer; and on a busy machine 120 s were once too short for a fill.
    writer.option("kafka.linger.ms", "5").option("kafka.delivery.timeout.ms", "600000").save()


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Answer the questions on standard input until one is "stop"."""
    for line in sys.stdin:
        if line.strip() == "stop":
            return
        question = json.loads(line)
        print(json.dumps({"event": "done", "id": question["id"], **answer(question)}), flush=True)
