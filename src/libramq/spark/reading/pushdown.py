"""Push-down: which parts of a query's filters decide what is not read at all.

Spark checks every filter again, so this only decides what need not be read. Store times rise along a queue,
so a timestamp becomes an offset.
"""

import datetime
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from libramq.message.queue import MessageQueue
from libramq.spark.reading.boundary import OffsetsAt
from libramq.spark.reading.positions import Range

_OF_QUEUES: Final = {"topic": "topic", "broker": "broker_name", "queueId": "queue_id"}
_LATEST: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadRange:
    """The part of a table that filters leave. Offsets and store times (ms) are [first, end)."""

    queues: tuple[tuple[str, frozenset[Any]], ...] = ()
    topic_prefixes: tuple[str, ...] = ()
    first_offset: int = 0
    end_offset: int = _LATEST
    first_ms: int = 0
    end_ms: int = _LATEST

    @classmethod
    def of(cls, filters: Iterable[Filter]) -> "ReadRange":
        """Combine all the filters; those we do not know are ignored."""
        wanted = cls()
        for condition in filters:
            wanted = wanted._and(condition)
        return wanted

    def _and(self, condition: Filter) -> "ReadRange":
        column, value = _column(condition), getattr(condition, "value", None)
        if column in _OF_QUEUES:
            attribute = _OF_QUEUES[column]
            if isinstance(condition, EqualTo | EqualNullSafe):
                return replace(self, queues=(*self.queues, (attribute, frozenset({value}))))
            if isinstance(condition, In):
                return replace(self, queues=(*self.queues, (attribute, frozenset(condition.value))))
            if isinstance(condition, StringStartsWith) and column == "topic":
                return replace(self, topic_prefixes=(*self.topic_prefixes, condition.value))
            return self
        if column == "offset" and type(value) is int:
            first, end = _span(condition, value)
            return replace(
                self, first_offset=max(self.first_offset, first), end_offset=min(self.end_offset, end)
            )
        if column == "timestamp" and isinstance(value, datetime.datetime) and value.tzinfo is not None:
            first, end = _span(condition, _micros(value))
            # Store times are whole milliseconds.
            return replace(
                self,
                first_ms=max(self.first_ms, -(-first // 1000)),
                end_ms=min(self.end_ms, -(-end // 1000)),
            )
        return self

    def is_of(self, queue: MessageQueue) -> bool:
        """Return whether any row of a queue may match."""
        return all(getattr(queue, attribute) in values for attribute, values in self.queues) and all(
            queue.topic.startswith(prefix) for prefix in self.topic_prefixes
        )

    def cut(self, ranges: Sequence[Range], offsets_at: OffsetsAt) -> list[Range]:
        """Return the parts of ranges that must be read."""
        left = [
            Range(part.queue, max(part.start, self.first_offset), min(part.end, self.end_offset))
            for part in ranges
            if self.is_of(part.queue)
        ]
        queues = [part.queue for part in left if part.start < part.end]
        firsts = offsets_at(dict.fromkeys(queues, self.first_ms)) if self.first_ms > 0 and queues else {}
        ends = offsets_at(dict.fromkeys(queues, self.end_ms)) if self.end_ms < _LATEST and queues else {}
        left = [
            Range(
                part.queue,
                max(part.start, firsts.get(part.queue, 0)),
                min(part.end, ends.get(part.queue, part.end)),
            )
            for part in left
        ]
        return [part for part in left if part.start < part.end]


def _span(condition: Filter, value: int) -> tuple[int, int]:
    match condition:
        case EqualTo() | EqualNullSafe():
            return value, value + 1
        case GreaterThan():
            return value + 1, _LATEST * 1000
        case GreaterThanOrEqual():
            return value, _LATEST * 1000
        case LessThan():
            return 0, value
        case LessThanOrEqual():
            return 0, value + 1
    return 0, _LATEST * 1000


def _column(condition: Filter) -> str:
    path: tuple[str, ...] = getattr(condition, "attribute", ())
    return path[0] if len(path) == 1 else ""


def _micros(instant: datetime.datetime) -> int:
    epoch = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)
    return (instant - epoch) // datetime.timedelta(microseconds=1)
