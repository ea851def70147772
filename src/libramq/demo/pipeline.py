"""The pipeline of the demonstration: a Structured Streaming job that turns the topic Flights into two tables.

    Flights ──► flights/   every flight, with the queue and offset it came from
    Flights ──► delays/    flights and delays of each carrier and day, once the day is over

A watermark closes the second table's days, and moves only when messages arrive. To close the last day as
well, a message in the topic FlightsClock carries a later time; its own day stays open.

Run as a process: NAMESRV DIRECTORY; progress reports go to standard output, and a line `finish` on standard
input means that everything has been sent.
"""

import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from libramq.demo.children import report
from libramq.demo.flights import TOPIC
from libramq.spark import session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

CLOCK: Final = "FlightsClock"
CLOCK_TIME: Final = "2014-06-01T00:00:00Z"  # Later than the last flight by more than window plus watermark.
WINDOW: Final = "1 day"
WATERMARK: Final = "14 days"
"""How far a flight may be behind the newest and still be counted. Flights are sent in order of time but to 16
queues, and Spark may read these unevenly; at most some days of 2013 are in flight."""

BODY: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT, "
    "sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, "
    "dest STRING, air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP"
)
POLL_SECONDS: Final = 0.5
_PLACE: Final = ("queueId", "offset")


def flights(messages: "DataFrame") -> "DataFrame":
    """Return the flights in the messages' bodies, with their queues and offsets."""
    from pyspark.sql import functions as f

    body = f.from_json(f.col("body").cast("string"), BODY)
    source = ("key", "tag", "broker", *_PLACE, "timestamp")
    return messages.select(body.alias("flight"), *source).select("flight.*", *source)


def delays_by_carrier(departures: "DataFrame") -> "DataFrame":
    """Return flights, cancellations and mean delays by carrier and day."""
    from pyspark.sql import functions as f

    return (
        departures.withWatermark("time_hour", WATERMARK)
        .groupBy(f.window("time_hour", WINDOW), "carrier")
        .agg(
            f.count("*").alias("flights"),
            f.sum(f.col("dep_time").isNull().cast("int")).alias("cancelled"),
            f.avg("dep_delay").alias("mean_dep_delay"),
            f.avg("arr_delay").alias("mean_arr_delay"),
            f.max("arr_delay").alias("max_arr_delay"),
        )
        .selectExpr("CAST(window.start AS DATE) AS day", "*")
        .drop("window")
    )


class Pipeline:
    """The two queries, writing below one directory."""

    def __init__(self, spark: "SparkSession", namesrv: str, directory: Path) -> None:
        self._spark = spark
        self._namesrv = namesrv
        self.directory = directory
        self.flights = self._start("flights", flights(self._messages(TOPIC)))
        both = self._messages(f"{TOPIC},{CLOCK}")
        self.delays = self._start("delays", delays_by_carrier(flights(both)))
        self._rows_by_batch: dict[tuple[str, int], int] = {}
        self._late_by_batch: dict[int, int] = {}

    def _messages(self, subscribed: str) -> "DataFrame":
        options = {"subscribe": subscribed, "namesrv": self._namesrv, "startingOffsets": "earliest"}
        return self._spark.readStream.format("rocketmq").options(**options).load()

    def _start(self, name: str, frame: "DataFrame") -> "StreamingQuery":
        writer = frame.writeStream.format("parquet").queryName(name).outputMode("append")
        return (
            writer.option("checkpointLocation", str(self.directory / "checkpoints" / name))
            .trigger(processingTime="1 second")
            .start(str(self.directory / name))
        )

    def progress(self) -> dict[str, int]:
        """Return the rows each query has read so far, and the rows dropped as late."""
        for query in (self.flights, self.delays):
            for batch in query.recentProgress:
                self._rows_by_batch[query.name, batch["batchId"]] = batch["numInputRows"]
                for operator in batch["stateOperators"]:
                    self._late_by_batch[batch["batchId"]] = operator["numRowsDroppedByWatermark"]
        rows = {"flights": 0, "delays": 0}
        for (name, _), count in self._rows_by_batch.items():
            rows[name] += count
        return {**rows, "late": sum(self._late_by_batch.values())}

    def finish(self) -> None:
        """Read everything to the end, close the last day, and stop."""
        for query in (self.flights, self.delays):
            query.processAllAvailable()
        self.progress()
        for query in (self.flights, self.delays):
            query.stop()

    def table(self, name: str) -> "DataFrame":
        """Return the committed rows of a table: Spark's file sink keeps a list of valid files."""
        return self._spark.read.parquet(str(self.directory / name))


def result(pipeline: Pipeline) -> dict[str, Any]:
    """Return counts and first rows of the tables, for the reconciliation."""
    from pyspark.sql import functions as f

    table, delays = pipeline.table("flights"), pipeline.table("delays")
    keys = table.select("key").toArrow()["key"].to_pylist()
    places = table.select("broker", *_PLACE).distinct().count()
    counted = delays.agg(f.sum("flights"), f.count("*"), f.min("day"), f.max("day")).first()
    assert counted is not None
    (pipeline.directory / "keys.txt").write_text("\n".join(keys))
    latest = delays.orderBy(f.desc("day"), f.desc("flights")).limit(5)
    return {
        "rows": len(keys),
        "places": places,
        "keys": str(pipeline.directory / "keys.txt"),
        "delay_rows": counted[1],
        "delay_flights": counted[0] or 0,
        "days": [str(counted[2]), str(counted[3])],
        "flights_head": _head(
            table.orderBy("time_hour", "carrier", "flight")
            .select("time_hour", "carrier", "flight", "tailnum", "origin", "dest", "dep_delay", *_PLACE)
            .limit(5)
        ),
        "delays_head": _head(latest),
        **pipeline.progress(),
    }


def _head(frame: "DataFrame") -> dict[str, Any]:
    rows = [
        ["" if value is None else f"{value:.1f}" if isinstance(value, float) else str(value) for value in row]
        for row in frame.collect()
    ]
    return {"columns": frame.columns, "rows": rows}


def _wait_for_finish(finish: threading.Event) -> None:
    for line in sys.stdin:
        if line.strip() == "finish":
            break
    finish.set()  # Also reached when the parent has ended.


def main() -> None:
    namesrv, directory = sys.argv[1:]
    finish = threading.Event()
    threading.Thread(target=_wait_for_finish, args=(finish,), daemon=True).start()
    spark = session("libramq-demo", settings={"spark.driver.memory": "1g", "spark.log.level": "ERROR"})
    pipeline = Pipeline(spark, namesrv, Path(directory))
    report("started")
    while not finish.wait(POLL_SECONDS):
        report("progress", **pipeline.progress())
        for query in (pipeline.flights, pipeline.delays):
            failed = query.exception()
            if failed is not None:
                raise failed
    pipeline.finish()
    report("progress", **pipeline.progress())
    report("result", **result(pipeline))
    spark.stop()


if __name__ == "__main__":
    main()
