"""A client of Spark Connect that reads and writes topics; run by test_spark_connect.py.

Reads a request a line, as JSON, and answers it. "stop" ends it.
"""

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "bench" / "spark_kafka"))

from program import serve
from pyspark.sql import SparkSession

WAIT_S = 300


def main(remote: str) -> None:
    """Connect to the server and serve questions."""
    spark = SparkSession.builder.remote(remote).getOrCreate()
    print(json.dumps({"event": "ready", "spark": spark.version}), flush=True)

    def answer(question: dict[str, Any]) -> dict[str, Any]:
        options = {"namesrv": question["namesrv"]}
        read = {**options, "subscribe": question["topic"], "startingOffsets": "earliest"}
        match question["ask"]:
            case "write":
                rows = spark.range(question["start"], question["end"])
                rows = rows.selectExpr("concat('key-', id) AS key", "CAST(id AS string) AS body")
                writer = rows.write.format("rocketmq").options(**options, topic=question["topic"])
                writer.mode("append").save()
                return {}
            case "read":
                table = spark.read.format("rocketmq").options(**read).load()
                rows = table.selectExpr("CAST(CAST(body AS string) AS int) AS value", "key").collect()
                return {"rows": sorted([row.value, row.key] for row in rows)}
            case "stream":
                read["maxOffsetsPerTrigger"] = question["most"]
                stream = spark.readStream.format("rocketmq").options(**read).load()
                stream = stream.select("key", "body")
                writer = stream.writeStream.format(question["format"]).options(**options, **question["sink"])
                query = writer.trigger(availableNow=True).start()
                assert query.awaitTermination(WAIT_S), "the stream goes on"
                # A client of Connect gets no numInputRows (4.3.0).
                return {"last": query.lastProgress["batchId"]}
            case "table":
                table = spark.read.parquet(question["path"])
                rows = table.selectExpr("CAST(CAST(body AS string) AS int) AS value").collect()
                return {"values": sorted(row.value for row in rows)}
            case other:
                raise ValueError(other)

    serve(answer)
    spark.stop()
    print(json.dumps({"event": "stopped"}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1])
