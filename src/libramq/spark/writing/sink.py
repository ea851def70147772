"""Writing to `format("rocketmq")`, in batches and in streams.

Guarantee: when a batch is done, every row is stored at least once. A batch that is written again, after a
crash or a failed task, has the same unique ids (`unique_ids`), so a reader that drops repeated
ids gets every row exactly once: `libramq.spark.deduplicated` does, within a time; brokers themselves ignore
ids. Messages that a failed batch has sent stay. With queueBy=key messages of one key are in order,
unless a send had to be repeated.
"""

import logging
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage

from libramq.spark.sink_options import SinkOptions
from libramq.spark.writing.unique_ids import unique_ids

if TYPE_CHECKING:
    import pyarrow as pa

log = logging.getLogger(__name__)

# Set by Spark for the tasks of a micro-batch: MicroBatchExecution.BATCH_ID_KEY, StreamExecution.QUERY_ID_KEY.
_BATCH_ID = "streaming.sql.batchId"
_QUERY_ID = "sql.streaming.queryId"


@dataclass
class Sent(WriterCommitMessage):
    """The number of messages that a task has stored."""

    count: int


class MessagesWriter(DataSourceArrowWriter):
    """Writes a table once."""

    def __init__(self, options: SinkOptions) -> None:
        self._options = options
        self._job = uuid.uuid4().hex  # A retried task has the same ids, another job has others.

    def write(self, iterator: "Iterator[pa.RecordBatch]") -> Sent:
        return _write(self._options, iterator, self._job, 0)

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        pass

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        _say_what_stays(messages)


class MessagesStreamWriter(DataSourceStreamArrowWriter):
    """Writes micro-batches."""

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
