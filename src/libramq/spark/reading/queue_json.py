"""JSON by topic, broker and queue, as in options: Spark's Kafka form with a level for brokers.

{"Flights": {"broker-a": {"0": 120, "1": -2}}}        or flat, as in checkpoints and progress reports
{"Flights:broker-a:0": 120, "Flights:broker-a:1": -2}
"""

import json
from collections.abc import Iterator
from typing import Any

from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


def queue_key(queue: MessageQueue) -> str:
    """Return a queue as text."""
    return f"{queue.topic}:{queue.broker_name}:{queue.queue_id}"


def queue_of_key(key: str) -> MessageQueue:
    """Parse a queue; a broker name may contain colons, since topics and queue ids do not."""
    topic, _, rest = key.partition(":")
    broker_name, _, queue_id = rest.rpartition(":")
    if not (topic and broker_name and _is_queue_id(queue_id)):
        raise ConfigError(f"{key!r} is not TOPIC:BROKER:QUEUE, for example 'Flights:broker-a:0'")
    return MessageQueue(topic, broker_name, int(queue_id))


def numbers_by_queue(text: str, *, option: str, least: int, allowed: str) -> dict[MessageQueue, int]:
    """Parse a whole number per queue; ConfigError has the option and what is `allowed`."""
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


def _is_queue_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()
