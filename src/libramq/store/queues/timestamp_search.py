"""The timestamp search: which message of a queue is meant by a time, and how often the search looks.

        LOWER   the first message stored at the time or later; the end of the queue if all are older
        UPPER   the last message stored at the time or earlier; the first if all are newer

Store times rise along a queue, so this is a binary search; after a clock was set back they do not, and the
answer is one of the places where they cross the time. An unreadable message counts as the next readable one;
without one, and below the log's beginning, as older. If upstream returns 0 for "all are newer" so do we,
unless the queue begins later.

Upstream: store/ConsumeQueue.getOffsetInQueueByTime, common/BoundaryType.java.
"""

from enum import StrEnum
from typing import Final

from libramq.store.log.commit_log import CommitLog
from libramq.store.queues.consume_queue import BLANK_SIZE, ConsumeQueue

#: Ours: how many unreadable messages in a row a search skips.
PROBES_MAX: Final = 64


class Boundary(StrEnum):
    """The side of the boundary; the values are those on the wire."""

    LOWER = "lower"
    UPPER = "upper"


def search_timestamp(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """Return the offset in a queue for a time."""
    low, high = queue.min_offset, queue.visible_max
    first = low
    while low < high:
        middle = (low + high) // 2
        stored_ms = _stored_ms(log, queue, middle, high)
        is_before = stored_ms < timestamp_ms if boundary is Boundary.LOWER else stored_ms <= timestamp_ms
        if is_before:
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return low
    return max(low - 1, first)


def _stored_ms(log: CommitLog, queue: ConsumeQueue, offset: int, end: int) -> int:
    for number in range(offset, min(offset + PROBES_MAX, end)):
        unit = queue.unit(number)
        if unit is None or unit[0] < log.min_offset:
            return 0
        if unit[1] != BLANK_SIZE and log.may_hold(unit[0], unit[1]):
            return log.store_timestamp_ms(unit[0])
    return 0
