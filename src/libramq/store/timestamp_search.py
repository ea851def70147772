"""The timestamp search: the message of a queue that was stored at a time, or next to it.

    LOWER   the first message stored at the time or later; the end of the queue where all are older
    UPPER   the last message stored at the time or earlier; the first where all are newer

Store times rise along a queue, so this is a binary search. Times that cannot be read count as older, and
where upstream says 0 for "all are newer" so do we, unless the queue begins later.

Upstream: store/ConsumeQueue.getOffsetInQueueByTime, common/BoundaryType.java.
"""

from enum import StrEnum

from libramq.store.commit_log import CommitLog
from libramq.store.consume_queue import BLANK_SIZE, ConsumeQueue


class Boundary(StrEnum):
    """Which side; the values are those on the wire."""

    LOWER = "lower"
    UPPER = "upper"


def search_timestamp(log: CommitLog, queue: ConsumeQueue, timestamp_ms: int, boundary: Boundary) -> int:
    """The offset in a queue that belongs to a time."""
    low, high = queue.min_offset, queue.visible_max
    first = low
    while low < high:
        middle = (low + high) // 2
        stored_ms = _stored_ms(log, queue, middle)
        is_before = stored_ms < timestamp_ms if boundary is Boundary.LOWER else stored_ms <= timestamp_ms
        if is_before:
            low = middle + 1
        else:
            high = middle
    if boundary is Boundary.LOWER:
        return low
    return max(low - 1, first)


def _stored_ms(log: CommitLog, queue: ConsumeQueue, offset: int) -> int:
    unit = queue.unit(offset)
    if unit is None or unit[1] == BLANK_SIZE or unit[0] < log.min_offset:
        return 0
    return log.store_timestamp_ms(unit[0])
