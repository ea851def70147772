"""Writing to `format("rocketmq")`: each row at least once, with unique ids by which readers drop duplicates
(`deduplicated`).

Guarantee: when a batch is done, every row is stored at least once. A batch that is written again after a
crash or a failed task has the same unique ids (`unique_ids`), so a reader that drops repeated ids gets every
row exactly once. `libramq.spark.deduplicated` does so within a time window; brokers ignore the ids. Messages
sent by a failed batch remain. With queueBy=key, messages of one key are in order unless a send had to be
retried.
"""

import hashlib
import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from libramq.spark.writing.sink_options import SinkOptions

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def unique_ids(query: str, batch: int, task: int) -> Iterator[str]:
    """Yield the ids of one task's rows, in order.

        query (12) | batch (8) | task (4) | row (8)        32 hexadecimal digits, like RocketMQ's own

    A batch that is written again after a crash has the same ids if it has the same rows in the same order in
    the same tasks. A stateless query over our source does, with the same number of cores. After a shuffle
    this is not guaranteed; then set the column uniqueId, for example from topic, broker, queue and offset.
    """
    prefix = f"{hashlib.sha256(query.encode()).hexdigest()[:12]}{batch & 0xFFFF_FFFF:08x}{task & 0xFFFF:04x}"
    prefix = prefix.upper()
    return (f"{prefix}{row & 0xFFFF_FFFF:08X}" for row in count())


log = logging.getLogger(__name__)

# Set by Spark for the tasks of a micro-batch: MicroBatchExecution.BATCH_ID_KEY, StreamExecution.QUERY_ID_KEY.
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Sent(WriterCommitMessage):
    """A task's commit message: the number of messages it has stored."""

    count: int


class MessagesWriter(DataSourceArrowWriter):
    """Writes the rows of a batch query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex  # A retried task gets the same ids, another job gets different ones.

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Sent:
        return _write(self._options, iterator, self._job, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _say_what_stays(messages)


class MessagesStreamWriter(DataSourceStreamArrowWriter):
    """Writes the micro-batches of a streaming query."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Sent:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None, "Spark calls this within a task"
        query, batch = context.getLocalProperty(_QUERY_ID), context.getLocalProperty(_BATCH_ID)
        assert query is not None, "Spark names the query in its tasks"
        assert batch is not None, "Spark numbers the batch in its tasks"
        return _write(self._options, iterator, query, int(batch))

    def commit(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None], batchId: int) -> None:
        _say_what_stays(messages)


def _write(options: SinkOptions, batches: "Iterator[pa.RecordBatch]", query: str, batch: int) -> Sent:
    from pyspark import TaskContext

    from libramq.spark.writing.sending import write_batches

    context = TaskContext.get()
    assert context is not None, "Spark calls this within a task"
    return Sent(write_batches(options, batches, unique_ids(query, batch, context.partitionId())))


def _say_what_stays(messages: Sequence[WriterCommitMessage | None]) -> None:
    count = sum(message.count for message in messages if isinstance(message, Sent))
    log.warning("a batch failed after at least %d messages were stored; a retry stores them again", count)


def deduplicated(messages: "DataFrame", within: str = "1 hour") -> "DataFrame":
    """Drop rows of our source whose topic and msgId have occurred before.

    within: for a stream, the maximum difference of the store times of two duplicates, which determines how
    much state Spark keeps. It must exceed the downtime of a query that writes its last batch again after a
    crash. A batch query has no limit.
    """
    columns = ["topic", "msgId"]
    if messages.isStreaming:
        return messages.withWatermark("timestamp", within).dropDuplicatesWithinWatermark(columns)
    return messages.dropDuplicates(columns)
