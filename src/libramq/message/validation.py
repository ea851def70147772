"""Validation: which messages a client refuses to send (no topic, empty, too large, reserved property).

Upstream: client/Validators.java for the bounds.
"""

from collections.abc import Collection, Iterator
from datetime import datetime
from functools import lru_cache
from typing import Final

from libramq.errors import InvalidMessage
from libramq.message import properties as names
from libramq.message.delay_level import DELAY_LEVEL_MAX
from libramq.message.message import BODY_BYTES_MAX, Message
from libramq.message.names import NOT_ALLOWED_SEND_TOPICS, validate_topic

#: Ours: room for properties added by clients and brokers: id, WAIT, delay, a request's correlation.
ADDED_BYTES: Final = 512


def validate(message: Message, body_bytes_max: int = BODY_BYTES_MAX) -> None:
    """Raise InvalidName or InvalidMessage for a message that no broker would accept."""
    if not isinstance(message, Message):
        raise InvalidMessage(f"what is sent is a Message, not a {type(message).__name__}")
    if isinstance(message.topic, str):
        _validate_sendable(message.topic)
    else:
        validate_topic(message.topic)
    if not isinstance(message.body, bytes | bytearray | memoryview):
        raise InvalidMessage(
            f"the body must be bytes, not {type(message.body).__name__}; "
            "encode it, or give the producer a serializer, as in Producer(serializer=json.dumps)"
        )
    body_bytes = message.body.nbytes if isinstance(message.body, memoryview) else len(message.body)
    if not 0 < body_bytes <= body_bytes_max:
        raise InvalidMessage(f"a body has between 1 and {body_bytes_max} bytes, not {body_bytes}")
    if not isinstance(message.flag, int) or not isinstance(message.delay_level, int):
        raise InvalidMessage("flag and delay_level are whole numbers")
    if not isinstance(message.properties, dict) or not isinstance(message.keys, Collection):
        raise InvalidMessage("properties is a dict of texts, and keys a text or a list of texts")
    if not -(1 << 31) <= message.flag < 1 << 31:
        raise InvalidMessage(f"the flag {message.flag} does not fit in 32 bits")
    if not 0 <= message.delay_level <= DELAY_LEVEL_MAX:
        raise InvalidMessage(f"the delay level is between 0 and {DELAY_LEVEL_MAX}, not {message.delay_level}")
    if message.delay_ms or message.deliver_at is not None:
        _validate_delay(message)
    if message.properties or message.keys or message.tags is not None:
        _validate_texts(message)


@lru_cache(maxsize=1024)
def _validate_sendable(topic: str) -> None:
    validate_topic(topic)
    if topic in NOT_ALLOWED_SEND_TOPICS:
        raise InvalidMessage(f"sending to topic {topic} is not allowed: it is the broker's own")


def _validate_texts(message: Message) -> None:
    for name in message.properties:
        if name in names.RESERVED and name not in names.SETTABLE:
            raise InvalidMessage(f"the property {name} is reserved; choose another name")
    size = 0
    for what, text in _texts(message):
        if not isinstance(text, str):
            raise InvalidMessage(f"{what} must be a text, not {type(text).__name__}")
        if not text:
            raise InvalidMessage(f"{what} is empty")
        if "\x01" in text or "\x02" in text:
            raise InvalidMessage(f"{what} has the character 1 or 2 in it, which separate properties")
        if names.NUL in text:
            raise InvalidMessage(f"{what} has a NUL character in it; brokers do not store those")
        try:
            size += len(text.encode()) + 1
        except UnicodeEncodeError:
            raise InvalidMessage(f"{what} is not proper Unicode") from None
    if size > names.PROPERTIES_BYTES_MAX - ADDED_BYTES:
        raise InvalidMessage(
            f"{size} bytes of properties, tags and keys; at most {names.PROPERTIES_BYTES_MAX - ADDED_BYTES} "
            "are sent: put large data into the body"
        )


def _validate_delay(message: Message) -> None:
    if isinstance(message.delay_ms, bool) or not isinstance(message.delay_ms, int) or message.delay_ms < 0:
        raise InvalidMessage(f"delay_ms is a number of milliseconds, 0 or more, not {message.delay_ms!r}")
    at = message.deliver_at
    if at is not None and (not isinstance(at, datetime) or at.tzinfo is None):
        raise InvalidMessage(
            f"deliver_at is a datetime with a time zone, such as datetime.now(UTC) + timedelta(hours=1), "
            f"not {at!r}"
        )
    requests = [name for name in names.TIMER_REQUESTS if name in message.properties]
    if bool(message.delay_level) + bool(message.delay_ms) + (at is not None) + len(requests) > 1:
        raise InvalidMessage(
            "a message has one of delay_level, delay_ms, deliver_at and the TIMER properties"
        )


def _texts(message: Message) -> Iterator[tuple[str, str]]:
    for name, value in message.properties.items():
        yield "the name of a property", name
        yield f"the property {name!r}", value
    if message.tags is not None:
        yield "the tag", message.tags
    if isinstance(message.keys, str):
        if message.keys:
            yield "the key", message.keys
    else:
        for key in message.keys:
            yield "a key", key
