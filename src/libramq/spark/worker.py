"""What runs in a Spark task: ranges of queues in, Arrow record batches out.

Connections stay open from task to task, because Spark reuses its worker processes.
"""

import logging
import os
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
import pyarrow as pa

from libramq.client.queue_reader import Lost, QueueReader, Stretch, refuse_loss
from libramq.message.queue import MessageQueue
from libramq.spark.columns import Records, arrow_schema
from libramq.spark.options import SourceOptions
from libramq.spark.positions import Range, queue_key

log = logging.getLogger(__name__)

BATCH_BYTES: Final = 8 * 1024 * 1024  # Of records; several pulls, and far below Arrow's 2 GiB a column.
BATCH_ROWS: Final = 20_000
READERS_MAX: Final = 8

_readers: dict[tuple[object, ...], QueueReader] = {}


def queue_reader(options: SourceOptions) -> QueueReader:
    """This process's reader for these servers."""
    key = (os.getpid(), options.namesrv, options.group, options.timeout_ms)
    reader = _readers.get(key)
    if reader is None:
        while len(_readers) >= READERS_MAX:
            _readers.pop(next(iter(_readers))).close()
        reader = _readers[key] = QueueReader(
            options.namesrv, group=options.group, timeout_ms=options.timeout_ms
        )
    return reader


def warn_of_loss(queue: MessageQueue, start: int, end: int) -> None:
    log.warning("messages %d to %d of queue %s are lost; going on behind them", start, end, queue_key(queue))


def read_ranges(
    options: SourceOptions, columns: Sequence[str], ranges: Sequence[Range]
) -> Iterator[pa.RecordBatch]:
    """Exactly the messages of the ranges; what is not there fails the task or is warned about."""
    lost = refuse_loss if options.fail_on_data_loss else warn_of_loss
    reader = queue_reader(options)
    stretches: list[Stretch] = []
    size = rows = 0
    for part in ranges:
        for stretch in reader.read(part.queue, part.start, part.end, lost=lost):
            stretches.append(stretch)
            size += len(stretch.body)
            rows += stretch.end - stretch.start
            if size >= BATCH_BYTES or rows >= BATCH_ROWS:
                yield to_batch(stretches, columns, lost)
                stretches, size, rows = [], 0, 0
    if stretches:
        yield to_batch(stretches, columns, lost)


def to_batch(stretches: Sequence[Stretch], columns: Sequence[str], lost: Lost) -> pa.RecordBatch:
    """One batch of several replies, with exactly the offsets each was to cover."""
    ends = np.cumsum([len(stretch.body) for stretch in stretches]).tolist()
    records = Records(b"".join([stretch.body for stretch in stretches]))
    batch = records.batch(
        [(stretch.queue.broker_name, end) for stretch, end in zip(stretches, ends, strict=True)],
        arrow_schema(columns),
    )
    expected = np.concatenate([np.arange(stretch.start, stretch.end) for stretch in stretches])
    found = records.queue_offsets
    if np.array_equal(found, expected):
        return batch
    # The broker passed over messages, or gave more than it was asked for.
    keep = np.zeros(len(found), dtype=np.bool_)
    first = 0
    for stretch, last in zip(stretches, records.count_before(ends), strict=True):
        offsets = found[first:last]
        keep[first:last] = (offsets >= stretch.start) & (offsets < stretch.end)
        for start, end in _gaps(stretch, np.unique(offsets[keep[first:last]]).tolist()):
            lost(stretch.queue, start, end)
        first = last
    return batch.filter(pa.array(keep))


def _gaps(stretch: Stretch, offsets: list[int]) -> Iterator[tuple[int, int]]:
    expected = stretch.start
    for offset in (*offsets, stretch.end):
        if offset > expected:
            yield expected, offset
        expected = offset + 1
