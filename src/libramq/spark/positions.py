"""Positions: how far each queue has been read, and where a micro-batch begins and ends.

Plain functions, positions in and positions out; Spark, brokers and clocks are elsewhere. A position
is the offset of the next message to read, never a count of rows. Spark sees positions as JSON,

    {"Flights:broker-a:0": 21083, "Flights:broker-a:1": 20977, …}

sorted by key, because it takes any other order for new data.
"""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Final, Literal, NamedTuple

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue

Positions = Mapping[MessageQueue, int]

EARLIEST: Final = -2  # What Spark's Kafka source writes for them.
LATEST: Final = -1
ROWS_WORTH_A_TASK: Final = 50_000
"""Below this many rows one Python task (25–50 ms whatever it reads) is faster than two."""


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
        return self.end - self.start


def to_offset(positions: Positions) -> dict[str, int]:
    """Positions as Spark keeps them in its checkpoint."""
    return {queue_key(queue): positions[queue] for queue in sorted(positions, key=queue_key)}


def from_offset(offset: Mapping[str, int]) -> dict[MessageQueue, int]:
    return {queue_of_key(key): int(value) for key, value in offset.items()}


def queue_key(queue: MessageQueue) -> str:
    return f"{queue.topic}:{queue.broker_name}:{queue.queue_id}"


def queue_of_key(key: str) -> MessageQueue:
    """Topics hold no colon and queue ids are numbers, so a broker's name may have any."""
    topic, _, rest = key.partition(":")
    broker_name, _, queue_id = rest.rpartition(":")
    if not (topic and broker_name and queue_id.isdecimal()):
        raise ConfigError(f"{key!r} is not TOPIC:BROKER:QUEUE, for example 'Flights:broker-a:0'")
    return MessageQueue(topic, broker_name, int(queue_id))


@dataclass(frozen=True, slots=True, kw_only=True)
class Boundary:
    """Where a user wants to begin or end: at one end of every queue, or at offsets by queue."""

    default: Literal["earliest", "latest"]
    by_queue: Positions

    @classmethod
    def parse(cls, text: str, *, option: str, default: Literal["earliest", "latest"]) -> "Boundary":
        """`earliest`, `latest`, or JSON by queue; queues it leaves out are taken at the default."""
        word = text.strip().lower()
        if word == "earliest":
            return cls(default="earliest", by_queue={})
        if word == "latest":
            return cls(default="latest", by_queue={})
        try:
            given = json.loads(text)
            if not isinstance(given, dict):
                raise TypeError
            offsets = {str(key): _whole(value) for key, value in given.items()}
        except (ValueError, TypeError):
            raise ConfigError(
                f"{option}={text!r} is neither earliest nor latest nor JSON like "
                '{"Flights:broker-a:0": 120, "Flights:broker-a:1": -2} (-2 earliest, -1 latest)'
            ) from None
        return cls(default=default, by_queue=from_offset(offsets))

    def resolve(self, bounds: Mapping[MessageQueue, Bounds], *, option: str) -> dict[MessageQueue, int]:
        """The positions this means at these queues."""
        unknown = self.by_queue.keys() - bounds.keys()
        if unknown:
            raise ConfigError(f"{option} names {queue_key(min(unknown))}, which is not a queue of the topics")
        default = EARLIEST if self.default == "earliest" else LATEST
        resolved = {}
        for queue, bound in bounds.items():
            wanted = self.by_queue.get(queue, default)
            resolved[queue] = {EARLIEST: bound.minimum, LATEST: bound.maximum}.get(wanted, wanted)
        return resolved


def _whole(value: object) -> int:
    if type(value) is not int or value < EARLIEST:
        raise TypeError
    return value


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
    lags = {}
    for queue, bound in bounds.items():
        if target is not None and queue not in target:
            continue
        if queue not in start:
            ends[queue] = bound.minimum
            continue
        available = bound.maximum if target is None else min(bound.maximum, target[queue])
        if available > start[queue]:
            lags[queue] = available - start[queue]
    for queue, count in share(lags, row_limit).items():
        ends[queue] += count
    return ends


def share(lags: Mapping[MessageQueue, int], row_limit: int | None) -> dict[MessageQueue, int]:
    """Split a limit over queues in proportion to what waits in them, one at least for each."""
    total = sum(lags.values())
    if row_limit is None or total <= row_limit:
        return dict(lags)
    return {queue: max(1, row_limit * lag // total) for queue, lag in lags.items()}


def ranges_between(start: Positions, end: Positions, *, known: Positions | None = None) -> list[Range]:
    """What to read to get from start to end; a queue without a start begins at its `known` minimum.

    A start beyond its end (a source that was restarted before its first batch was done) is an empty
    range.
    """
    ranges = []
    for queue, stop in sorted(end.items()):
        begin = start.get(queue, (known or {}).get(queue, stop))
        if begin < stop:
            ranges.append(Range(queue, begin, stop))
    return ranges


def tasks(ranges: Iterable[Range], *, parallelism: int) -> list[list[Range]]:
    """Group ranges into tasks of like size: few rows make one, many as many as can run at once."""
    ranges = list(ranges)
    total = sum(part.row_count for part in ranges)
    if not total:
        return []
    count = max(1, min(parallelism, math.ceil(total / ROWS_WORTH_A_TASK)))
    piece = math.ceil(total / count)
    pieces = [
        Range(part.queue, begin, min(begin + piece, part.end))
        for part in ranges
        for begin in range(part.start, part.end, piece)
    ]
    groups: list[list[Range]] = [[] for _ in range(count)]
    sizes = [0] * count
    for part in sorted(pieces, key=lambda part: -part.row_count):
        smallest = sizes.index(min(sizes))
        groups[smallest].append(part)
        sizes[smallest] += part.row_count
    return [_joined(group) for group in groups if group]


def _joined(group: list[Range]) -> list[Range]:
    """In order, neighbours of one queue made one."""
    joined: list[Range] = []
    for _, parts in groupby(sorted(group), key=lambda part: part.queue):
        for part in parts:
            if joined and joined[-1].queue == part.queue and joined[-1].end == part.start:
                joined[-1] = Range(part.queue, joined[-1].start, part.end)
            else:
                joined.append(part)
    return joined
