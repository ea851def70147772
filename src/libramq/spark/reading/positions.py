"""Positions: how far each queue has been read, where a micro-batch ends, and how queues share its limits.

These are plain functions from positions to positions, without Spark, brokers or clocks. A position is the
offset of the next message to read, never a count of rows. Spark sees positions as JSON,

    {"Flights:broker-a:0": 21083, "Flights:broker-a:1": 20977, …}

sorted by key, because it treats any other order as new data. Options accept this form, or that of Spark's
Kafka source with an added level for brokers:

    {"Flights": {"broker-a": {"0": 120, "1": -2}}}
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue

Positions = Mapping[MessageQueue, int]

# Queue keys contain colons, these two do not.
_BEGAN: Final = "began"
_SINCE: Final = "since"

#: By topic and broker name: where in the broker's log an earlier topic of that name was deleted; 0 if never.
Since = Mapping[tuple[str, str], int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The minimum and maximum offset of a queue, from its broker; maximum is the next message's."""

    minimum: int
    maximum: int


class Range(NamedTuple):
    """The messages [start, end) of one queue."""

    queue: MessageQueue
    start: int
    end: int

    @property
    def row_count(self) -> int:
        """Return the number of offsets in the range."""
        return self.end - self.start


class Limits(NamedTuple):
    """The limits of a micro-batch: its most rows and bytes, and the minimum of messages to start one."""

    rows: int | None = None
    bytes: int | None = None
    minimum: int | None = None


UNLIMITED: Final = Limits()


@dataclass(frozen=True, slots=True)
class StreamOffset:
    """The positions that Spark keeps in its checkpoint.

    began: in a query's first end offset, where the first batch began. Spark records a batch's end before
    reading it, but its start only when the previous batch is done. So after a restart within the first batch,
    Spark asks again where the query begins, and `latest` would have moved on.
    since: distinguishes a recreated topic from the one that was read; None if no broker knows.
    """

    positions: Positions
    began: Positions | None = None
    since: Since | None = None

    @classmethod
    def decode(cls, offset: Mapping[str, Any]) -> "StreamOffset":
        """Decode Spark's JSON."""
        began, since = offset.get(_BEGAN), offset.get(_SINCE)
        return cls(
            {queue_of_key(key): int(value) for key, value in offset.items() if key not in (_BEGAN, _SINCE)},
            None if began is None else {queue_of_key(key): int(value) for key, value in began.items()},
            None if since is None else {_topic_of_key(key): int(value) for key, value in since.items()},
        )

    def encode(self) -> dict[str, Any]:
        """Encode as Spark's JSON; equal positions always give the same text."""
        encoded: dict[str, Any] = _by_key(self.positions)
        if self.began is not None:
            encoded[_BEGAN] = _by_key(self.began)
        if self.since:
            encoded[_SINCE] = {":".join(key): self.since[key] for key in sorted(self.since)}
        return encoded


def next_end(
    start: Positions,
    bounds: Mapping[MessageQueue, Bounds],
    *,
    limits: Limits = UNLIMITED,
    sizes: Mapping[MessageQueue, float] | None = None,
    target: Positions | None = None,
) -> dict[MessageQueue, int]:
    """Return the end of the micro-batch that begins at `start`.

    A queue missing from `start` is added at its minimum offset; its rows come in the next batch, so that a
    batch's range is recorded before it is read and a replay reads the same rows. A queue that the broker no
    longer has keeps its position. With a target (AvailableNow), no position goes beyond it, and queues
    missing from the target wait for the next run. Positions never go back.
    """
    ends = dict(start)
    for queue, bound in bounds.items():
        if queue not in start and (target is None or queue in target):
            ends[queue] = bound.minimum
    for queue, count in share(lags(start, bounds, target), limits, sizes).items():
        ends[queue] += count
    return ends


def lags(
    start: Positions, bounds: Mapping[MessageQueue, Bounds], target: Positions | None = None
) -> dict[MessageQueue, int]:
    """Return the number of unread messages, up to the target, in each queue that has any."""
    waiting = {}
    for queue, position in start.items():
        bound = bounds.get(queue)
        if bound is None or (target is not None and queue not in target):
            continue
        available = bound.maximum if target is None else min(bound.maximum, target[queue])
        if available > position:
            waiting[queue] = available - position
    return waiting


def share(
    waiting: Mapping[MessageQueue, int], limits: Limits, sizes: Mapping[MessageQueue, float] | None = None
) -> dict[MessageQueue, int]:
    """Divide limits among queues in proportion to their unread messages, at least one message each.

    sizes: the average message size of each queue in bytes, for `limits.bytes`.
    """
    total = sum(waiting.values())
    rows = total if limits.rows is None else min(limits.rows, total)
    shares: dict[MessageQueue, int] = {}
    left, lag_left = rows, total
    for queue, lag in waiting.items():  # Divide the rest each time, so that rounding loses no rows.
        shares[queue] = max(1, left * lag // lag_left)
        left -= shares[queue]
        lag_left -= lag
    size = sum(count * (sizes or {}).get(queue, 0) for queue, count in shares.items())
    if limits.bytes is None or size <= limits.bytes:
        return shares
    return {queue: max(1, int(count * limits.bytes / size)) for queue, count in shares.items()}


def ranges_between(start: Positions, end: Positions, *, known: Positions | None = None) -> list[Range]:
    """Return the ranges from start to end; a queue without a start begins at its `known` minimum.

    A start beyond the end (the queue was truncated) gives an empty range.
    """
    ranges = []
    for queue, stop in sorted(end.items()):
        begin = start.get(queue, (known or {}).get(queue, stop))
        if begin < stop:
            ranges.append(Range(queue, begin, stop))
    return ranges


def _topic_of_key(key: str) -> tuple[str, str]:
    topic, _, broker_name = key.partition(":")
    return topic, broker_name


def _by_key(positions: Positions) -> dict[str, int]:
    return {queue_key(queue): positions[queue] for queue in sorted(positions, key=queue_key)}


def queue_key(queue: MessageQueue) -> str:
    """Return a queue as "TOPIC:BROKER:QUEUE"."""
    return f"{queue.topic}:{queue.broker_name}:{queue.queue_id}"


def queue_of_key(key: str) -> MessageQueue:
    """Parse "TOPIC:BROKER:QUEUE"; only the broker name may contain colons."""
    topic, _, rest = key.partition(":")
    broker_name, _, queue_id = rest.rpartition(":")
    if not (topic and broker_name and queue_id.isascii() and queue_id.isdecimal()):
        raise ConfigError(f"{key!r} is not TOPIC:BROKER:QUEUE, for example 'Flights:broker-a:0'")
    return MessageQueue(topic, broker_name, int(queue_id))


def numbers_by_queue(text: str, *, option: str, least: int, allowed: str) -> dict[MessageQueue, int]:
    """Parse a whole number per queue; ConfigError names the option and what is `allowed`."""
    try:
        pairs = list(_leaves(_object(json.loads(text))))
        if any(type(number) is not int or number < least for _, number in pairs):
            raise ValueError
    except (ValueError, ConfigError, RecursionError):
        raise ConfigError(f"{option}={text!r}: give {allowed}") from None
    return dict(pairs)


def queues_by_broker(text: str, *, option: str) -> tuple[MessageQueue, ...]:
    """Parse queues: {"Flights": {"broker-a": [0, 1]}}."""
    found: set[MessageQueue] = set()
    try:
        for topic, brokers in _object(json.loads(text)).items():
            for broker_name, queue_ids in _object(brokers).items():
                if not isinstance(queue_ids, list) or not topic or not broker_name:
                    raise ValueError
                if any(type(queue_id) is not int or queue_id < 0 for queue_id in queue_ids):
                    raise ValueError
                found.update(MessageQueue(topic, broker_name, queue_id) for queue_id in queue_ids)
        if not found:
            raise ValueError
    except (ValueError, RecursionError):
        raise ConfigError(
            f"{option}={text!r}: give JSON with queues by topic and broker, like "
            '{"Flights": {"broker-a": [0, 1]}}'
        ) from None
    return tuple(sorted(found))


def _leaves(document: dict[str, Any]) -> Iterator[tuple[MessageQueue, Any]]:
    for key, value in document.items():
        if not isinstance(value, dict):
            yield queue_of_key(key), value
            continue
        for broker_name, numbers in value.items():
            for queue_id, number in _object(numbers).items():
                yield queue_of_key(f"{key}:{broker_name}:{queue_id}"), number


def _object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError
    return value
