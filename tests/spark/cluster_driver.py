"""A program on a cluster, started by spark-submit: NAMESRV TOPIC DIRECTORY.

Reads the topic in a batch and in a stream, sends it on to another one, and prints as JSON what it saw.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from libramq.spark import session


def homes(_: object) -> Iterator[tuple[str, str]]:
    """Yield where each worker found LibraMQ, and which worker it was."""
    import os

    import libramq

    yield libramq.__file__, os.getcwd()


def main(namesrv: str, topic: str, directory: str) -> None:
    spark = session()
    spark.sparkContext.setLogLevel("OFF")
    found = spark.sparkContext.parallelize(range(2), 2).mapPartitions(homes).collect()
    options = {"namesrv": namesrv, "subscribe": topic, "startingOffsets": "earliest"}
    messages = spark.read.format("rocketmq").options(**options, minPartitions="2").load()
    query = (
        spark.readStream.format("rocketmq")
        .options(**options)
        .load()
        .writeStream.format("parquet")
        .option("checkpointLocation", str(Path(directory) / "checkpoint"))
        .option("path", str(Path(directory) / "table"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    sent = messages.selectExpr(f"'{topic}-sent' AS topic", "body")
    sent.write.format("rocketmq").option("namesrv", namesrv).mode("append").save()
    seen = {
        "master": spark.sparkContext.master,
        "code": sorted({Path(code).parts[-3] for code, _ in found}),
        "workers": len({place for _, place in found}),
        "batch": messages.count(),
        "stream": spark.read.parquet(str(Path(directory) / "table")).distinct().count(),
    }
    spark.stop()
    print(json.dumps(seen))


if __name__ == "__main__":
    main(*sys.argv[1:])
