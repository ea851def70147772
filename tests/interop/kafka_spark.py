"""Spark's own Kafka source and sink on the PySpark they were built for; run by test_kafka_spark.py.

Reads a request a line, as JSON, and answers it. "stop" ends it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "spark_kafka"))

from program import serve, start_session

WAIT_S = 300


def main(jars: str) -> None:
    """Start Spark and serve questions."""
    spark = start_session(jars)
    print(json.dumps({"event": "ready", "spark": spark.version}), flush=True)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        servers = {"kafka.bootstrap.servers": question["servers"]}
        match question["ask"]:
            case "write":
                rows = spark.range(question["start"], question["end"]).selectExpr(
                    "CAST(concat('k', id) AS binary) AS key",
                    "CAST(id AS string) AS value",
                    f"CAST(id % {question['partitions']} AS int) AS partition",
                )
                rows.write.format("kafka").options(**servers, topic=question["topic"]).save()
                return {}
            case "read":
                options = {**servers, "subscribe": question["topic"], **question["options"]}
                table = spark.read.format("kafka").options(**options).load()
                rows = table.selectExpr("CAST(value AS string) AS value", "partition", "offset").collect()
                return {"rows": sorted([row.partition, row.offset, row.value] for row in rows)}
            case "copy":
                options = {**servers, "subscribe": question["topic"], "startingOffsets": "earliest"}
                table = spark.readStream.format("kafka").options(
                    **options, maxOffsetsPerTrigger=question["most"]
                )
                sink = table.load().select("key", "value").writeStream.format("kafka")
                sink = sink.options(
                    **servers, topic=question["into"], checkpointLocation=question["checkpoint"]
                )
                query = sink.trigger(availableNow=True).start()
                assert query.awaitTermination(WAIT_S), "the stream goes on"
                return {"batches": sum(each["numInputRows"] > 0 for each in query.recentProgress)}
            case "follow":
                table = spark.readStream.format("kafka").options(
                    **servers, subscribe=question["topic"], startingOffsets="earliest"
                )
                sink = table.load().select("key", "value").writeStream.format("kafka").outputMode("update")
                sink = sink.options(
                    **servers, topic=question["into"], checkpointLocation=question["checkpoint"]
                )
                sink.trigger(realTime="5 minutes").start()
                return {}
            case "leave":
                (query,) = spark.streams.active
                batches = len(query.recentProgress)
                query.stop()
                return {"batches": batches}
            case other:
                raise ValueError(other)

    serve(answer)
    spark.stop()
    print(json.dumps({"event": "stopped"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
