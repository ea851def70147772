"""Light queues (LMQ): additional queues that contain a message, named by its INNER_MULTI_DISPATCH; their
limit, and the message's number in each.

    INNER_MULTI_DISPATCH      %LMQ%a,%LMQ%b     named by the producer
    INNER_MULTI_QUEUE_OFFSET  17,4              its number in each, added by the broker

A light queue is queue 0 of a topic that is never created. The log holds the record once, under its own topic;
each light queue gets a unit that points to it. The numbers in the record let any broker rebuild the light
queues.

Upstream: store/LmqDispatch.java, store/queue/MultiDispatchUtils.java, MixAll.topicAllowsLMQ.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from libramq.errors import InvalidName
from libramq.message.names import (
    DLQ_PREFIX,
    LIGHT_PREFIX,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    SYSTEM_TOPIC_PREFIX,
    TRANS_HALF_TOPIC,
)
from libramq.message.properties import INNER_MULTI_DISPATCH, INNER_MULTI_QUEUE_OFFSET, find_property
from libramq.message.record import RecordHead

#: MixAll.LMQ_QUEUE_ID.
LIGHT_QUEUE_ID: Final = 0
#: Ours: 32 KiB of properties have room for thousands of names, each of which costs a unit.
NAMES_MAX: Final = 256
SEPARATOR: Final = ","  # MixAll.LMQ_DISPATCH_SEPARATOR
#: The properties of a message that names light queues contain this.
MARK: Final = INNER_MULTI_DISPATCH.encode()
_NUMBERS: Final = INNER_MULTI_QUEUE_OFFSET.encode()
_DIGITS_MAX: Final = 18


class QueuePlace(NamedTuple):
    """A record's place in a queue."""

    topic: str
    queue_id: int
    number: int


def names_of(dispatch: str) -> list[str]:
    """Return the light queues that a producer names; raises InvalidName for other names.

    Apache's broker would accept other names but assign them no number, which breaks its dispatch.
    """
    listed = dispatch.split(SEPARATOR)
    for name in listed:
        if not name.startswith(LIGHT_PREFIX) or "/" in name:
            raise InvalidName(f"{name!r} is not the name of a light queue: it begins with {LIGHT_PREFIX}")
    if len(listed) > NAMES_MAX:
        raise InvalidName(f"{len(listed)} light queues for one message; at most {NAMES_MAX} are possible")
    return listed


def takes_part(topic: str) -> bool:
    """Return whether messages stored under a topic go to light queues.

    Half messages do not: they get into light queues when they are committed. Nor do dead letters, which are
    already in theirs; Apache's broker adds both once more. Messages sent to a light queue go to no others.
    """
    return _may_have(topic) and topic != TRANS_HALF_TOPIC and not topic.startswith((DLQ_PREFIX, LIGHT_PREFIX))


def numbered(properties: bytes, next_number: Callable[[str], int]) -> tuple[bytes, tuple[str, ...]]:
    """Return a message's properties with its number in each light queue they name, and those names.

    If the properties name anything else, they are returned without numbers, and the message is in its topic
    only.
    """
    properties = without_numbers(properties)
    dispatch = find_property(properties, MARK)
    if not dispatch:
        return properties, ()
    try:
        listed = names_of(dispatch.decode())
    except (InvalidName, UnicodeDecodeError):  # Accepted before this broker had light queues.
        return properties, ()
    numbers = SEPARATOR.join([str(next_number(name)) for name in listed])
    end = b"" if properties.endswith(b"\x02") else b"\x02"
    return b"%b%b%b\x01%b\x02" % (properties, end, _NUMBERS, numbers.encode()), tuple(dict.fromkeys(listed))


def without_numbers(properties: bytes) -> bytes:
    """Remove another record's light queue numbers from properties."""
    if _NUMBERS not in properties:
        return properties
    pairs = [each for each in properties.split(b"\x02") if each and not each.startswith(_NUMBERS + b"\x01")]
    return b"".join([each + b"\x02" for each in pairs])


def light_places(head: RecordHead) -> list[QueuePlace]:
    """Return a stored record's places in light queues, each queue once; none for impossible numbers."""
    if MARK not in head.properties or not _may_have(head.topic):
        return []
    dispatch, numbers = find_property(head.properties, MARK), find_property(head.properties, _NUMBERS)
    if not dispatch or not numbers:
        return []
    listed, counts = dispatch.decode("utf-8", "replace").split(SEPARATOR), numbers.split(b",")
    if len(listed) != len(counts) or not all(each.isdigit() and len(each) <= _DIGITS_MAX for each in counts):
        return []
    places = dict(zip(listed, map(int, counts), strict=True))
    return [
        QueuePlace(name, LIGHT_QUEUE_ID, number)
        for name, number in places.items()
        if name.startswith(LIGHT_PREFIX)
    ]


def _may_have(topic: str) -> bool:
    return topic != SCHEDULE_TOPIC and not topic.startswith((RETRY_PREFIX, SYSTEM_TOPIC_PREFIX))
