"""Records: the conversion of Kafka records to RocketMQ messages, and back.

    record ─► message     key and headers become properties (`batches.kafka_batch`)
    message ─► record     TAGS and user properties become headers, __SHARDINGKEY or KEYS the key

A fetched record has exactly the bytes that were sent. Messages of a queue become record batches:

    a Kafka batch         as stored, with its first offset set
    other messages        converted, adjacent ones into one batch
"""

import base64
import binascii
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from libramq.batches.formats import unwrap
from libramq.batches.kafka_batch import (
    EMPTY,
    HEADERS,
    KEY,
    MEANT,
    NULL,
    PRODUCER,
    is_kafka_batch,
    record_properties,
)
from libramq.broker.messages.drafts import Draft
from libramq.errors import LibraError, RemoteProtocolError, StoreCorrupt
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.inner_batch import message_count
from libramq.message.message import MessageExt
from libramq.message.record import RecordHead, decode_records, peek_record
from libramq.message.record_head import SYS_FLAG_LOW_AT
from libramq.message.sys_flag import INNER_BATCH
from libramq.protocols.kafka.idempotent_producers import mark
from libramq.wire.kafka.record_batch import (
    Header,
    Record,
    Stamp,
    decode_headers,
    empty_batch,
    encode_batch,
    encode_headers,
    renumbered,
)

log = get_logger(__name__)

_OURS: Final = frozenset({NULL, KEY, HEADERS, PRODUCER})


def draft_of(topic: str, queue_id: int, record: Record) -> Draft:
    """Return a record as a message; raises InvalidBatch if its key and headers are too large."""
    return Draft(topic, queue_id, record.value or b"", record_properties(record), record.timestamp_ms)


def marked(drafts: Sequence[Draft], stamp: Stamp, offset: int) -> Sequence[Draft]:
    """Return the messages of an idempotent producer's batch with its mark; offset: of the first message."""
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
    """Return whether bytes are valid headers: any client can set the property, and fetches must not fail."""
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


def fetched_records(data: Sequence[bytes | memoryview]) -> bytes:
    """Return the record batches for the stored records of a read."""
    parts: list[bytes | memoryview] = []
    alone: list[bytes | memoryview] = []
    for record in _records(data):
        if not record[SYS_FLAG_LOW_AT] & INNER_BATCH:
            alone.append(record)
            continue
        head = peek_record(bytes(record))
        assert head is not None  # A read returns whole records.
        is_kafka = is_kafka_batch(head)
        messages = [] if is_kafka else _unwrapped(bytes(record), head)
        if messages:
            alone += messages
            continue
        if alone:
            parts.append(_converted(alone))
            alone = []
        if is_kafka:
            parts += renumbered(record[head.body_start : head.body_end], head.queue_offset)
        else:
            parts.append(empty_batch(head.queue_offset, message_count(head)))
    if alone:
        parts.append(_converted(alone))
    return b"".join(parts)


def _unwrapped(record: bytes, head: RecordHead) -> list[bytes]:
    """Return the messages of a RocketMQ batch; empty if it cannot be read, so that fetches skip it.

    That includes a batch with fewer messages than its header announces: a consumer continues after the last
    record, and would fetch the same batch again and again.
    """
    try:
        messages = unwrap(record, head)
        if len(messages) != message_count(head):
            raise StoreCorrupt(f"{len(messages)} messages, but the header announces {message_count(head)}")
    except LibraError as error:
        log.error("a batch cannot be read", offset=head.physical_offset, reason=str(error))
        return []
    return messages


def _converted(records: Sequence[bytes | memoryview]) -> bytes:
    return encode_batch([record_of(message) for message in decode_records(b"".join(records))])


def _records(data: Sequence[bytes | memoryview]) -> Iterator[bytes | memoryview]:
    for piece in data:
        view = memoryview(piece)
        start = 0
        while start < len(view):
            end = start + int.from_bytes(view[start : start + 4])
            yield view[start:end]
            start = end
