"""Batches: topics are read in numbered batches, each written once even after a kill. Starts, resumes and
awaits the query.

    find a batch's end ─► read it ─► write it with its number ─► mark it as done

Spark's checkpoint does the first and last steps. A run killed in between gets the same messages under the
same number again, and the writer finds that they are already there.
"""

import time
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from libramq.errors import ConfigError
from libramq.spark.pipeline.checkpoint import Checkpoint
from libramq.spark.pipeline.config import duration_ms
from libramq.spark.pipeline.plan import OnProgress, Progress, failures_in_one_line
from libramq.spark.reading.planner import Planner
from libramq.spark.reading.positions import Positions, Range
from libramq.spark.reading.source_options import SourceOptions
from libramq.spark.reading.worker import new_queue_reader

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

#: Ours: short, because a user is waiting for the plan. Once started, a run waits up to brokerTimeout for
#: brokers.
RETRY_TIMEOUT_MS: Final = 3_000
LOOK_SECONDS: Final = 0.2  # How often Spark's progress is polled.


class Batch(NamedTuple):
    """The identity of a batch: the checkpoint's query id, and a number that counts from 0 in that query."""

    query: str
    number: int


Write = Callable[["DataFrame", Batch], None]


def waiting(options: Mapping[str, str], positions: Positions | None) -> list[Range]:
    """Return each queue's unread range, from `positions` or a new query's start; includes empty ranges.

    Raises RemoteError if servers do not answer, and ConfigError or RouteNotFound for a missing topic.
    """
    parsed = SourceOptions.parse(options)
    parsed.check_stream()
    impatient = replace(parsed, connection=replace(parsed.connection, retry_timeout_ms=RETRY_TIMEOUT_MS))
    with closing(new_queue_reader(impatient.connection)) as reader:
        queues = reader.patiently(lambda: impatient.subscription.queues(reader))
        if not queues:
            raise ConfigError(f"{impatient.subscription}: there is no such topic")
        starts = dict(positions) if positions is not None else dict(Planner(impatient, reader).initial())
        ends = reader.max_offsets(queues)
        new = [queue for queue in queues if queue not in starts]
        starts |= reader.min_offsets(new) if new else {}
    return [Range(queue, min(starts[queue], ends[queue]), ends[queue]) for queue in queues]


def plan_batches(options: Mapping[str, str], checkpoint: Path | str) -> list[Range]:
    """Return what `read_batches` would read, as (queue, start, end). Needs no Spark and changes nothing.

    options: the options of `format("rocketmq")`. checkpoint: a directory, which need not exist yet.
    """
    return waiting(options, Checkpoint(Path(checkpoint)).positions())


def read_batches(
    spark: "SparkSession",
    options: Mapping[str, str],
    checkpoint: Path | str,
    write: Write,
    *,
    every: str | None = None,
    on_progress: OnProgress = lambda _: None,
) -> int:
    """Call `write` with each batch of messages and its number; return how many messages were read.

    Reads the existing messages and returns; with `every` (such as "10s") it polls for more forever. After a
    crash, `write` gets the unfinished batch again with the same messages and number and must write it only
    once: to a table by `write_once`, to a database with the number in the same transaction. Only one run at a
    time can use a checkpoint. Raises PipelineFailed.
    """
    every_ms = None if every is None else duration_ms("every", every)
    own = Checkpoint(Path(checkpoint).absolute())
    with own.locked(), failures_in_one_line("the pipeline"):
        return run_batches(start_batches(spark, options, own, write, every_ms=every_ms), on_progress)


def start_batches(
    spark: "SparkSession",
    options: Mapping[str, str],
    checkpoint: Checkpoint,
    write: Write,
    *,
    every_ms: int | None,
    name: str | None = None,
) -> "StreamingQuery":
    """Start a query that calls `write` with each batch; the caller holds the checkpoint's lock."""

    def write_numbered(messages: "DataFrame", number: int) -> None:
        write(messages, Batch(checkpoint.query_id(), number))

    writer = spark.readStream.format("rocketmq").options(**options).load().writeStream
    writer = writer.option("checkpointLocation", str(checkpoint.directory)).foreachBatch(write_numbered)
    if name is not None:
        writer = writer.queryName(name)
    if every_ms is None:
        return writer.trigger(availableNow=True).start()
    return writer.trigger(processingTime=f"{every_ms} milliseconds").start()


def run_batches(query: "StreamingQuery", on_progress: OnProgress, total: int | None = None) -> int:
    """Report each batch until the query ends, then stop the query; return how many messages were read."""
    done, seen = 0, -1
    is_over = False
    try:
        while not is_over:
            is_over = not query.isActive
            for progress in query.recentProgress:
                if progress.batchId > seen and progress.numInputRows:
                    seen, done = progress.batchId, done + progress.numInputRows
                    on_progress(Progress(done=done, total=total, text=f"batch {seen}"))
            if not is_over:
                time.sleep(LOOK_SECONDS)  # Sleep in Python: Ctrl-C would interrupt a call to Java.
        query.awaitTermination()  # Raises the query's failure.
    finally:
        query.stop()
    if total not in (None, done):  # Some messages no longer exist, or a filter dropped them.
        on_progress(Progress(done=done, total=done, text="done"))
    return done
