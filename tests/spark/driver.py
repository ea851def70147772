"""A streaming query as a separate program, which a test kills: NAMESRV TOPIC DIRECTORY (live|rest).

Reads a topic into a Parquet table, some messages a batch. `live` runs until it is killed and prints a line
for every batch; `rest` reads the remaining messages and ends.
"""

import sys
from pathlib import Path

from libramq.spark import session

from .conftest import QUICK


def main(namesrv: str, topic: str, directory: str, mode: str) -> None:
    spark = session("driver", settings=QUICK)
    spark.sparkContext.setLogLevel("OFF")
    messages = (
        spark.readStream.format("rocketmq")
        .options(namesrv=namesrv, subscribe=topic, startingOffsets="earliest", maxOffsetsPerTrigger="300")
        .load()
    )
    writer = (
        messages.select("queueId", "offset", "msgId")
        .writeStream.format("parquet")
        .option("checkpointLocation", str(Path(directory) / "checkpoint"))
        .option("path", str(Path(directory) / "table"))
    )
    if mode == "rest":
        query = writer.trigger(availableNow=True).start()
        query.awaitTermination()
        spark.stop()
        return
    query = writer.trigger(processingTime="0 seconds").start()
    told = -1
    while query.isActive:
        progress = query.lastProgress
        if progress is not None and progress["batchId"] > told:
            told = progress["batchId"]
            print(f"batch {told}", flush=True)
        query.awaitTermination(0.05)


if __name__ == "__main__":
    main(*sys.argv[1:])
