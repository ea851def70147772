"""Positions: how far each queue has been read, and where a micro-batch ends.

Plain functions, positions in and positions out; Spark, brokers and clocks are elsewhere. A position
is the offset of the next message to read, never a count of rows. Spark sees positions as JSON,

    {"Flights:broker-a:0": 21083, "Flights:broker-a:1": 20977, …}

sorted by key, because it takes any other order for new data.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from libramq.message.queue import MessageQueue
from libramq.spark.queue_json import queue_key, queue_of_key

Positions = Mapping[MessageQueue, int]

_BEGAN: Final = "began"  # Holds no colon, so it is no queue.


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The smallest and the next offset of a queue, as its broker answered."""

    minimum: int
    maximum: int


class Range(NamedTuple):
    """The messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def row_count(self) -> int:
        """How many offsets it covers."""
        return self.end - self.start


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The positions that Spark keeps in its checkpoint.

    began: where the batch before this offset began, in the first offset of a query. Spark writes down where
    a batch ends before it reads it, and where it begins only when the one before is done: restarted within
    its first batch, a query is asked anew where it begins, and `latest` would have moved on.
    """

    positions: Positions
    began: Positions | None = None

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> "StreamOffset":
        """Out of Spark's JSON."""
        began = offset.get(_BEGAN)
        return cls(
            {queue_of_key(key): int(value) for key, value in offset.items() if key != _BEGAN},
            None if began is None else {queue_of_key(key): int(value) for key, value in began.items()},
        )

    def encode(self) -> dict[str, Any]:
        """As Spark's JSON; the same positions are always the same text."""
        encoded: dict[str, Any] = _by_key(self.positions)
        return encoded if self.began is None else {**encoded, _BEGAN: _by_key(self.began)}


def next_end(
    start: Positions,
    bounds: Mapping[MessageQueue, Bounds],
    *,
    row_limit: int | None = None,
    target: Positions | None = None,
) -> dict[MessageQueue, int]:
    """Where the micro-batch that begins at `start` ends.

    A queue the start does not know enters at its smallest offset; its rows come in the batch after, so
    that what a batch reads is written down before it is read and a replay reads the same. A queue the
    broker no longer has stays where it was. With a target (AvailableNow) nothing goes beyond it, and
    queues it does not know wait for the next run. Nothing ever goes back.
    """
    ends = dict(start)
    for queue, bound in bounds.items():
        if queue not in start and (target is None or queue in target):
            ends[queue] = bound.minimum
    for queue, count in share(lags(start, bounds, target), row_limit).items():
        ends[queue] += count
    return ends


def lags(
    start: Positions, bounds: Mapping[MessageQueue, Bounds], target: Positions | None = None
) -> dict[MessageQueue, int]:
    """How many messages wait in the queues that have any, up to the target."""
    waiting = {}
    for queue, position in start.items():
        bound = bounds.get(queue)
        if bound is None or (target is not None and queue not in target):
            continue
        available = bound.maximum if target is None else min(bound.maximum, target[queue])
        if available > position:
            waiting[queue] = available - position
    return waiting


def share(waiting: Mapping[MessageQueue, int], row_limit: int | None) -> dict[MessageQueue, int]:
    """Split a limit over queues in proportion to what waits in them, one at least for each."""
    total = sum(waiting.values())
    if row_limit is None or total <= row_limit:
        return dict(waiting)
    return {queue: max(1, row_limit * lag // total) for queue, lag in waiting.items()}


def ranges_between(start: Positions, end: Positions, *, known: Positions | None = None) -> list[Range]:
    """Return the ranges from start to end; a queue without a start begins at its `known` minimum.

    A start beyond its end (a queue that was cut) is an empty range.
    """
    ranges = []
    for queue, stop in sorted(end.items()):
        begin = start.get(queue, (known or {}).get(queue, stop))
        if begin < stop:
            ranges.append(Range(queue, begin, stop))
    return ranges


def _by_key(positions: Positions) -> dict[str, int]:
    return {queue_key(queue): positions[queue] for queue in sorted(positions, key=queue_key)}
