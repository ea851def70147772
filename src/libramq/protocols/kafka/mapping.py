"""The mapping: a Kafka record is an ordinary RocketMQ message, and the other way round.

    a record has its key and headers as properties (`batches.record_properties`)
    a message of RocketMQ's has its TAGS and user properties as headers, and __SHARDINGKEY or KEYS as key

A record that is fetched has the bytes that were sent.
"""

import base64
import binascii
from collections.abc import Sequence
from typing import Final

import msgspec

from libramq.batches.kafka_batch import PRODUCER
from libramq.batches.record_properties import EMPTY, HEADERS, KEY, MEANT, NULL, record_properties
from libramq.broker.messages.drafts import Draft
from libramq.errors import RemoteProtocolError
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.protocols.kafka.sequences import mark
from libramq.wire.kafka.record_batch import (
    Header,
    Record,
    Stamp,
    decode_headers,
    encode_headers,
)

_OURS: Final = frozenset({NULL, KEY, HEADERS, PRODUCER})


def draft_of(topic: str, queue_id: int, record: Record) -> Draft:
    """Return a record as a message; raises InvalidBatch if its key and headers are too large."""
    return Draft(topic, queue_id, record.value or b"", record_properties(record), record.timestamp_ms)


def marked(drafts: Sequence[Draft], stamp: Stamp, offset: int) -> Sequence[Draft]:
    """Return the messages of an idempotent producer's batch with its mark; it begins at a queue offset."""
    text = p.properties_to_text({PRODUCER: mark(stamp, offset)})
    return [msgspec.structs.replace(draft, properties=text + draft.properties) for draft in drafts]


def record_of(message: MessageExt) -> Record:
    """Return a message as a record."""
    properties = message.properties
    value = None if not message.body and NULL in properties else message.body
    return Record(
        message.born_timestamp_ms, _key(properties), value, (), _raw_headers(properties), message.queue_offset
    )


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
        if name == p.TAGS or not (name in MEANT or name in _OURS or name == p.SHARDING_KEY)
    ]
    return encode_headers(headers)


def _is_header_block(raw: bytes) -> bool:
    """Return whether bytes are headers: any client can set a property, and a fetch must not fail for it."""
    try:
        decode_headers(raw)
    except RemoteProtocolError:
        return False
    return True


def _decoded(text: str) -> bytes | None:
    if text == EMPTY:
        return b""
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return None
