"""The mapping: a Kafka record is an ordinary RocketMQ message, and the other way round.

    value           body; a null value is an empty body and the property __KAFKA_NULL
    key             KEYS, where it is plain text; else __KAFKA_KEY, in base64
    headers         user properties of the same names and order, where they are plain text and no name comes
                    twice; else __KAFKA_HEADERS, all of them, in base64
    timestamp       born timestamp

    a message of RocketMQ's has its TAGS and user properties as headers, and __SHARDINGKEY or KEYS as key

A record that is fetched has the bytes that were sent.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

from libramq.broker.messages.appending import Draft
from libramq.errors import RemoteProtocolError
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.protocols.kafka.sequences import PRODUCER, mark
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import (
    Header,
    InvalidBatch,
    Record,
    Stamp,
    decode_headers,
    encode_headers,
)

NULL: Final = "__KAFKA_NULL"
KEY: Final = "__KAFKA_KEY"
HEADERS: Final = "__KAFKA_HEADERS"
_OURS: Final = frozenset({NULL, KEY, HEADERS, PRODUCER})
#: A property's value is never empty, and this is no base64.
_EMPTY: Final = "="
_SEPARATORS: Final = frozenset((p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR, p.NUL))
#: Names that mean something to a broker or client, besides the reserved ones.
_MEANT: Final = p.RESERVED | {
    p.INNER_NUM, p.INNER_BASE, p.INNER_MULTI_DISPATCH, p.FORWARD_QUEUE_ID, p.REDIRECT,
    p.TRANSACTION_CHECK_TIMES,
    p.CHECK_IMMUNITY_TIME_IN_SECONDS,
}  # fmt: skip
_UTF_8_BYTES_MAX: Final = 4
#: Room for what the broker adds: its region, cluster, the unique key, and the mark of an idempotent producer.
PROPERTIES_BYTES_MAX: Final = p.PROPERTIES_BYTES_MAX - 1024


def draft_of(topic: str, queue_id: int, record: Record) -> Draft:
    """Return a record as a message; raises InvalidBatch if its key and headers are too large."""
    text = ""
    if record.key is not None:
        name, value = _key_property(record.key)
        text = p.properties_to_text({name: value})
    if record.headers:
        text += p.properties_to_text(_header_properties(record))
    if record.value is None:
        text += p.properties_to_text({NULL: "true"})
    if len(text) > PROPERTIES_BYTES_MAX // _UTF_8_BYTES_MAX and len(text.encode()) > PROPERTIES_BYTES_MAX:
        raise InvalidBatch(
            ErrorCode.MESSAGE_TOO_LARGE,
            f"key and headers of a record take {len(text)} bytes; {PROPERTIES_BYTES_MAX} are allowed",
        )
    return Draft(topic, queue_id, record.value or b"", text, record.timestamp_ms)


def marked(drafts: Sequence[Draft], stamp: Stamp, offset: int) -> Sequence[Draft]:
    """Return the messages of an idempotent producer's batch with its mark; it begins at a queue offset."""
    text = p.properties_to_text({PRODUCER: mark(stamp, offset)})
    return [draft._replace(properties=text + draft.properties) for draft in drafts]


def record_of(message: MessageExt) -> Record:
    """Return a message as a record."""
    properties = message.properties
    value = None if not message.body and NULL in properties else message.body
    return Record(
        message.born_timestamp_ms, _key(properties), value, (), _raw_headers(properties), message.queue_offset
    )


def _key_property(key: bytes) -> tuple[str, str]:
    try:
        text = key.decode()
    except UnicodeDecodeError:
        text = ""
    if text and text.isprintable():
        return p.KEYS, text
    return KEY, _encoded(key)


def _header_properties(record: Record) -> dict[str, str]:
    found: dict[str, str] = {}
    for name, value in record.headers:
        text = _plain(name, value)
        if text is None or name in found:
            return {HEADERS: _encoded(record.raw_headers)}
        found[name] = text
    return found


def _plain(name: str, value: bytes | None) -> str | None:
    """Return a header's value if it can be a user property, with the same bytes."""
    if not name or not value or name in _MEANT or name.startswith("__") or not _SEPARATORS.isdisjoint(name):
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if _SEPARATORS.isdisjoint(text) else None


def _key(properties: dict[str, str]) -> bytes | None:
    encoded = properties.get(KEY)
    if encoded is not None:
        return _decoded(encoded)
    text = properties.get(p.SHARDING_KEY) or properties.get(p.KEYS)
    return None if text is None else text.encode()


def _raw_headers(properties: dict[str, str]) -> bytes:
    encoded = properties.get(HEADERS)
    if encoded is not None:
        raw = _decoded(encoded)
        if raw is not None and _is_header_block(raw):
            return raw
    headers: Sequence[Header] = [
        (name, value.encode())
        for name, value in properties.items()
        if name == p.TAGS or not (name in _MEANT or name in _OURS or name == p.SHARDING_KEY)
    ]
    return encode_headers(headers)


def _is_header_block(raw: bytes) -> bool:
    """Return whether bytes are headers: any client can set a property, and a fetch must not fail for it."""
    try:
        decode_headers(raw)
    except RemoteProtocolError:
        return False
    return True


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode() or _EMPTY


def _decoded(text: str) -> bytes | None:
    if text == _EMPTY:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
