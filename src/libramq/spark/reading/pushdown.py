"""Push-down: turns a query's filters into the ranges of queues that must be read.

Spark checks every filter again, so ignoring a filter is always safe. Store times rise along a queue, so a
bound on the timestamp becomes an offset.
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql import datasource as spark

from libramq.message.queue import MessageQueue
from libramq.spark.reading.positions import Range
from libramq.spark.reading.source_options import OffsetsAt

_OF_QUEUES: Final = {"topic": "topic", "broker": "broker_name", "queueId": "queue_id"}
_LATEST: Final = 1 << 62
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
_MILLISECOND: Final = datetime.timedelta(milliseconds=1)

#: The first, and the end (exclusive).
Span = tuple[int, int]
EVERYTHING: Final[Span] = (0, _LATEST)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """The part of a table that may match the filters."""

    queues: tuple[tuple[str, frozenset[Any]], ...] = ()
    topic_prefixes: tuple[str, ...] = ()
    offsets: Span = EVERYTHING
    stored_ms: Span = EVERYTHING

    @classmethod
    def of(cls, filters: Iterable[spark.Filter]) -> "ReadRange":
        """Combine all filters; unknown ones are ignored."""
        wanted = cls()
        for condition in filters:
            wanted = wanted._and(condition)
        return wanted

    def _and(self, condition: spark.Filter) -> "ReadRange":
        path: tuple[str, ...] = getattr(condition, "attribute", ())
        column, value = path[0] if len(path) == 1 else "", getattr(condition, "value", None)
        if column in _OF_QUEUES:
            match condition:
                case spark.EqualTo() | spark.EqualNullSafe():
                    values = frozenset({value})
                case spark.In():
                    values = frozenset(condition.value)
                case spark.StringStartsWith() if column == "topic":
                    return replace(self, topic_prefixes=(*self.topic_prefixes, condition.value))
                case _:
                    return self
            return replace(self, queues=(*self.queues, (_OF_QUEUES[column], values)))
        if column == "offset" and type(value) is int:
            return replace(self, offsets=_both(self.offsets, _span(condition, value, value)))
        if column == "timestamp" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
            below, rest = divmod(value - _EPOCH, _MILLISECOND)  # Store times are whole milliseconds.
            above = below + 1 if rest else below
            return replace(self, stored_ms=_both(self.stored_ms, _span(condition, above, below)))
        return self

    def is_of(self, queue: MessageQueue) -> bool:
        """Return whether any row of a queue may match."""
        return all(getattr(queue, attribute) in values for attribute, values in self.queues) and all(
            queue.topic.startswith(prefix) for prefix in self.topic_prefixes
        )

    def cut(self, ranges: Sequence[Range], offsets_at: OffsetsAt) -> list[Range]:
        """Return the parts of ranges that must be read."""
        left = [
            Range(part.queue, *_both(part[1:], self.offsets)) for part in ranges if self.is_of(part.queue)
        ]
        queues = [part.queue for part in left if part.start < part.end]
        first_ms, end_ms = self.stored_ms
        firsts = offsets_at(dict.fromkeys(queues, first_ms)) if first_ms > 0 and queues else {}
        ends = offsets_at(dict.fromkeys(queues, end_ms)) if end_ms < _LATEST and queues else {}
        left = [
            Range(part.queue, *_both(part[1:], (firsts.get(part.queue, 0), ends.get(part.queue, part.end))))
            for part in left
        ]
        return [part for part in left if part.start < part.end]


def _both(one: Span, other: Span) -> Span:
    return max(one[0], other[0]), min(one[1], other[1])


def _span(condition: spark.Filter, above: int, below: int) -> Span:
    """Return the span that a condition allows. above, below: its value, rounded up and down."""
    match condition:
        case spark.EqualTo() | spark.EqualNullSafe():
            return above, below + 1
        case spark.GreaterThan():
            return below + 1, _LATEST
        case spark.GreaterThanOrEqual():
            return above, _LATEST
        case spark.LessThan():
            return 0, above
        case spark.LessThanOrEqual():
            return 0, below + 1
    return EVERYTHING
