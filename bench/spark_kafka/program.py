"""Spark's Kafka source on the PySpark it was built for; run by kafka.py in an environment of its own.

Takes a question a line, as JSON, and answers so: fill a topic, read it, stream it. "stop" ends it.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from measures import Source, batch_seconds, stream_seconds


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
    writer.option("kafka.linger.ms", "5").save()  # The default of Kafka 4's own producer.


def main(jars: str, home: Path) -> None:
    spark = start_session(jars)
    print(json.dumps({"event": "ready", "spark": spark.version}), flush=True)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        source = Source("kafka", question.get("options", {}), "value")
        match question["ask"]:
            case "fill":
                fill(spark, *(question[name] for name in ("servers", "topic", "count", "size", "queues")))
                return {}
            case "batch":
                return {"seconds": batch_seconds(spark, source, question["count"])}
            case "stream":
                return stream_seconds(spark, source, question["count"], home)._asdict()
            case other:
                raise ValueError(other)

    serve(answer)
    spark.stop()
    print(json.dumps({"event": "stopped"}), flush=True)


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    for line in sys.stdin:
        if line.strip() == "stop":
            return
        question = json.loads(line)
        print(json.dumps({"event": "done", "id": question["id"], **answer(question)}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
