"""Partitioning: which task reads which ranges.

A Python task takes 25 to 50 ms whatever it reads, so few rows make one task, whatever the number of queues,
and many rows as many tasks as there are cores. `minPartitions` and `maxRecordsPerPartition` demand more.

Upstream: Kafka's KafkaOffsetRangeCalculator.scala, which begins with one task per partition.
"""

import math
from collections.abc import Iterable, Sequence
from typing import Final

from libramq.spark.reading.positions import Range

ROWS_WORTH_A_TASK: Final = 50_000
"""Below this many rows one Python task is faster than two."""


def tasks(
    ranges: Iterable[Range],
    *,
    cores: int,
    min_partitions: int | None = None,
    max_records: int | None = None,
) -> list[list[Range]]:
    """Group ranges into tasks of similar size."""
    ranges = list(ranges)
    total = sum(part.row_count for part in ranges)
    if not total:
        return []
    count = min(cores, math.ceil(total / ROWS_WORTH_A_TASK))
    if min_partitions is not None:
        count = max(1, min(min_partitions, total))
    if max_records is not None:
        count = max(count, math.ceil(total / max_records))
    return _cut(ranges, total, count)


def _cut(ranges: Sequence[Range], total: int, count: int) -> list[list[Range]]:
    """Divide ranges into this many tasks, filled one after the other in the order of the queues."""
    share, remainder = divmod(total, count)
    groups: list[list[Range]] = []
    room = 0
    for queue, position, end in sorted(ranges):
        while position < end:
            if not room:
                room = share + (len(groups) < remainder)
                groups.append([])
            stop = min(position + room, end)
            groups[-1].append(Range(queue, position, stop))
            room -= stop - position
            position = stop
    return groups
