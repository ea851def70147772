"""The Spark task that reads: ranges of queues in, Arrow record batches out. Sets the batch size, handles lost
messages (failOnDataLoss), and formats log lines (time, level, query).

Connections stay open from task to task, because Spark reuses its worker processes.
"""

import atexit
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from libramq.client.blocking_cluster import Timeouts
from libramq.client.queue_reader import (
    EVERYTHING,
    REPLY_BYTES_MAX,
    OnLost,
    PullFilter,
    QueueReader,
    Stretch,
    refuse_loss,
)
from libramq.columns.records import Records, arrow_schema
from libramq.columns.unwrapped import unwrapped
from libramq.filter.tag import parse_tag_filter
from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import Range, queue_key
from libramq.spark.reading.source_options import Connection, SourceOptions
from libramq.spark.reading.subscription import Subscription
from libramq.transport.access import OPEN

log = logging.getLogger(__name__)

#: Size of the records in a batch. One large reply fills a batch, so it need not be joined with others, and
#: columns are computed while the bytes are still in the processor's cache.
BATCH_BYTES: Final = REPLY_BYTES_MAX // 2
BATCH_ROWS: Final = 20_000
READERS_MAX: Final = 8
#: Spark's StreamExecution.QUERY_ID_KEY, MicroBatchExecution.BATCH_ID_KEY, SQLExecution.EXECUTION_ID_KEY.
QUERY_ID: Final = "sql.streaming.queryId"
BATCH_ID: Final = "streaming.sql.batchId"
EXECUTION_ID: Final = "spark.sql.execution.id"

_readers: dict[tuple[int, Connection], QueueReader] = {}


def queue_reader(connection: Connection) -> QueueReader:
    """Return this process's reader for these servers, cached by the connection."""
    key = (os.getpid(), connection)
    reader = _readers.get(key)
    if reader is None:
        while len(_readers) >= READERS_MAX:
            _readers.pop(next(iter(_readers))).close()
        reader = _readers[key] = new_queue_reader(connection)
    return reader


@atexit.register
def _close_readers() -> None:
    """Close the connections of this process; the interpreter warns about each one left open."""
    for (process_id, _), reader in _readers.items():
        if process_id == os.getpid():  # The others belong to the parent process.
            reader.close()


def new_queue_reader(connection: Connection) -> QueueReader:
    """Return a new reader, for use by one thread."""
    return QueueReader(
        connection.namesrv,
        group=connection.group,
        pull_filter=pull_filter(connection),
        timeouts=Timeouts(connection.timeout_ms, connection.connect_timeout_ms, connection.retry_timeout_ms),
        access=connection.access or OPEN,
    )


def pull_filter(connection: Connection) -> PullFilter:
    """Return the filter that brokers apply."""
    if connection.sql is not None:
        return PullFilter(connection.sql, "SQL92")
    return EVERYTHING if connection.tags is None else PullFilter(connection.tags, "TAG")


class SparkLog(logging.Handler):
    """Prints warnings in the format of Spark's log, which includes the workers' standard error.

    Without this handler Python prints only the message. `reading` names the query outside its tasks, where
    Spark does not identify it.
    """

    def __init__(self) -> None:
        super().__init__()
        # Spark's own pattern: %d{yy/MM/dd HH:mm:ss} %p %c{1}: %m
        pattern = "%(asctime)s %(levelname)s RocketMQ: %(query)s: %(message)s"
        self.setFormatter(logging.Formatter(pattern, "%y/%m/%d %H:%M:%S"))
        self.reading = ""

    def emit(self, record: logging.LogRecord) -> None:
        record.query = _query_of_task() or f"query of {self.reading}"
        print(self.format(record), file=sys.stderr, flush=True)


_spark_log: Final = SparkLog()


def log_to_spark(subscription: Subscription) -> None:
    """Print warnings to Spark's log, unless the user's handlers or Spark's worker logging handle them."""
    logger = logging.getLogger("libramq")
    if not logger.hasHandlers():
        logger.addHandler(_spark_log)
    _spark_log.reading = str(subscription)


def _query_of_task() -> str | None:
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        return None
    if stream := context.getLocalProperty(QUERY_ID):
        return f"query {stream}, batch {context.getLocalProperty(BATCH_ID)}"
    return f"query {context.getLocalProperty(EXECUTION_ID)}"


def warn_of_loss(queue: MessageQueue, start: int, end: int) -> None:
    """Log lost messages, and continue."""
    log.warning("messages %d to %d of queue %s are lost; continuing after them", start, end, queue_key(queue))


def read_ranges(
    options: SourceOptions, columns: Sequence[str], ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """Yield exactly the messages of the ranges; missing messages fail the task or log a warning."""
    lost = refuse_loss if options.fail_on_data_loss else warn_of_loss
    reader = queue_reader(options.connection)
    convert = Conversion(options.connection, columns, lost)
    stretches: list[Stretch] = []
    size = rows = 0
    for part in ranges:
        for stretch in reader.read(part.queue, part.start, part.end, lost=lost):
            stretches.append(stretch)
            size += len(stretch.body)
            rows += stretch.end - stretch.start
            if size >= BATCH_BYTES or rows >= BATCH_ROWS:
                yield convert(stretches)
                stretches, size, rows = [], 0, 0
    if stretches:
        yield convert(stretches)


class Conversion:
    """Turns several replies into one batch that holds exactly the requested offsets of each."""

    def __init__(self, connection: Connection, columns: Sequence[str], lost: OnLost) -> None:
        self._schema = arrow_schema(columns)
        self._is_filtered = not pull_filter(connection).is_everything
        tags = None if connection.tags is None else parse_tag_filter(connection.tags).tags
        # Brokers compare only the tags' hashes, which may collide.
        self._tags = None if tags is None else pa.array(sorted(tags), pa.string())
        self._lost = lost

    def __call__(self, stretches: Sequence[Stretch]) -> pa.RecordBatch:
        ends = np.cumsum([len(stretch.body) for stretch in stretches]).tolist()
        body = stretches[0].body if len(stretches) == 1 else b"".join(each.body for each in stretches)
        records = unwrapped(Records(body, wrapped=True))
        brokers = [(stretch.queue.broker_name, end) for stretch, end in zip(stretches, ends, strict=True)]
        batch = records.batch(brokers, self._schema)
        keep = self._covered(records, stretches, ends)
        if self._tags is not None:
            is_wanted = pc.is_in(records.tags(), self._tags)
            keep = is_wanted if keep is None else pc.and_(keep, is_wanted)
        return batch if keep is None else batch.filter(keep)

    def _covered(
        self, records: Records, stretches: Sequence[Stretch], ends: Sequence[int]
    ) -> pa.BooleanArray | None:
        """Return a mask of the records that belong to the requested ranges; None if all do."""
        found = records.queue_offsets
        expected = np.concatenate([np.arange(stretch.start, stretch.end) for stretch in stretches])
        if np.array_equal(found, expected):
            return None
        # The broker skipped messages, or returned more than requested.
        keep = np.zeros(len(found), dtype=np.bool_)
        first = 0
        for stretch, last in zip(stretches, records.count_before(ends), strict=True):
            offsets = found[first:last]
            keep[first:last] = (offsets >= stretch.start) & (offsets < stretch.end)
            if not self._is_filtered:
                for start, end in _gaps(stretch, np.unique(offsets[keep[first:last]]).tolist()):
                    self._lost(stretch.queue, start, end)
            first = last
        return pa.array(keep)


def _gaps(stretch: Stretch, offsets: list[int]) -> Iterator[tuple[int, int]]:
    expected = stretch.start
    for offset in (*offsets, stretch.end):
        if offset > expected:
            yield expected, offset
        expected = offset + 1
