"""The start offset of a queue that was just assigned to us.

        consume from     committed offset    none                                   unknown
    LAST_OFFSET      that                retry topic: 0 · else the end          try again later
    FIRST_OFFSET     that                0                                      try again later
    TIMESTAMP        that                retry topic: the end · else by time    try again later

If it is known since when the group reads the topic (`client.beginning`), a queue without a committed offset
is searched by that time, and a young one is no exception.
Upstream: RebalancePushImpl.computePullFromWhereWithException.
"""

from dataclasses import dataclass
from enum import Enum

from libramq.client.consuming.consumer_settings import ConsumeFrom


class OffsetQuery(Enum):
    """The question that the broker must answer first."""

    MAXIMUM = "maximum"
    BY_TIME = "by time"


@dataclass(frozen=True, slots=True)
class StartAt:
    """Pull from this offset."""

    offset: int


def where_to_pull_from(
    consume_from: ConsumeFrom, *, is_retry_topic: bool, committed: int | None
) -> StartAt | OffsetQuery:
    """Decide by the committed offset (None: none)."""
    if committed is not None:
        return StartAt(committed)
    if consume_from is ConsumeFrom.LAST_OFFSET:
        return StartAt(0) if is_retry_topic else OffsetQuery.MAXIMUM
    if consume_from is ConsumeFrom.FIRST_OFFSET:
        # If the queue begins later, the broker moves the first pull.
        return StartAt(0)
    return OffsetQuery.MAXIMUM if is_retry_topic else OffsetQuery.BY_TIME
