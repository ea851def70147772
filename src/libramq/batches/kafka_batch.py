"""Kafka's batch as an inner batch: the bytes as produced, in one record of the log, and how other readers
unpack single messages from it.

    property KAFKA_BATCH 2     the body is a record batch of that format (`wire.kafka.record_batch`)
    INNER_NUM                  how many records it has

Kafka's readers receive these bytes, with two header fields set. For others every record is a message, with
the properties it would have if stored by itself:

    value           body; a null value is an empty body and the property __KAFKA_NULL
    key             KEYS, where it is plain text; else __KAFKA_KEY, in base64
    headers         user properties of the same names and order, if they are plain text and no name repeats;
                    otherwise all of them in __KAFKA_HEADERS, in base64
    timestamp       born timestamp

The mark of an idempotent producer is in protocols.kafka.idempotent_producers, and the way back in
protocols.kafka.records; a record that is fetched has the bytes that were sent.

Upstream: org.apache.kafka.common.record.DefaultRecordBatch; MessageSysFlag.INNER_BATCH_FLAG. RocketMQ's
clients do not unwrap it: NEED_UNWRAP is not set.
"""

import base64
from typing import Final

from libramq.errors import StoreCorrupt
from libramq.message import properties as p
from libramq.message import sys_flag as flags
from libramq.message.ids import encode_host, place_of
from libramq.message.record import RecordHead, decode_record, encode_record
from libramq.wire.kafka.error_code import ErrorCode
from libramq.wire.kafka.record_batch import CODEC_MASK, InvalidBatch, Record, decode_batch

KAFKA_BATCH: Final = "KAFKA_BATCH"
FORMAT: Final = "2"
_MARK: Final = KAFKA_BATCH.encode()
_END: Final = p.PROPERTY_SEPARATOR.encode()
_SET: Final = p.NAME_VALUE_SEPARATOR.encode()
#: Ours: the mark of an idempotent producer (`protocols.kafka.idempotent_producers`), a property of the batch.
PRODUCER: Final = p.KAFKA_PRODUCER
_ATTRIBUTES_LOW_AT: Final = 22
_OF_THE_BATCH: Final = frozenset(name.encode() for name in (KAFKA_BATCH, p.INNER_NUM, p.INNER_BASE, PRODUCER))
NULL: Final = "__KAFKA_NULL"
KEY: Final = "__KAFKA_KEY"
HEADERS: Final = "__KAFKA_HEADERS"
#: A property's value cannot be empty; this is not valid base64.
EMPTY: Final = "="
_SEPARATORS: Final = frozenset((p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR, p.NUL))
#: Names with a meaning to a broker or client, besides the reserved ones.
MEANT: Final = p.RESERVED | {
    p.INNER_NUM, p.INNER_BASE, p.INNER_MULTI_DISPATCH, p.FORWARD_QUEUE_ID, p.REDIRECT,
    p.TRANSACTION_CHECK_TIMES,
    p.CHECK_IMMUNITY_TIME_IN_SECONDS,
}  # fmt: skip
_UTF_8_BYTES_MAX: Final = 4
#: Room for the broker's additions: region, cluster, the unique key, and the mark of an idempotent producer.
PROPERTIES_BYTES_MAX: Final = p.PROPERTIES_BYTES_MAX - 1024


def record_properties(record: Record) -> str:
    """Return the stored text of a record's key and headers; raises InvalidBatch if they are too large."""
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
    return text


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
    if not name or not value or name in MEANT or name.startswith("__") or not _SEPARATORS.isdisjoint(name):
        return None
    try:
        text = value.decode()
    except UnicodeDecodeError:
        return None
    return text if _SEPARATORS.isdisjoint(text) else None


def _encoded(data: bytes) -> str:
    return base64.b64encode(data).decode() or EMPTY


def batch_properties(record_count: int) -> str:
    """Return the properties of a batch's record, as they are stored."""
    return p.properties_to_text({p.INNER_NUM: str(record_count), KAFKA_BATCH: FORMAT})


def is_kafka_batch(head: RecordHead) -> bool:
    """Return whether a record is a batch of Kafka's; producers of RocketMQ's may set any property."""
    return head.sys_flag & flags.WRAPPED == flags.INNER_BATCH and (
        p.find_property(head.properties, _MARK) == FORMAT.encode()
    )


def is_compressed(data: bytes, head: RecordHead) -> bool:
    """Return whether the records of a batch's record are compressed."""
    attributes = data[head.body_start + _ATTRIBUTES_LOW_AT : head.body_end][:1]
    return bool(attributes and attributes[0] & CODEC_MASK)


def unwrapped_records(data: bytes, head: RecordHead) -> list[bytes]:
    """Return a record for each message of a batch's record; LibraError if it cannot be read."""
    decoded = decode_record(data, decompress=False)
    if decoded is None:
        raise StoreCorrupt(f"the record at {head.physical_offset} is cut short")
    batch = decoded[0]
    of_all = _END.join(
        each for each in head.properties.split(_END) if each.partition(_SET)[0] not in _OF_THE_BATCH
    )
    return [
        encode_record(
            topic=head.topic,
            queue_id=head.queue_id,
            queue_offset=head.queue_offset + number,
            physical_offset=place_of(head.physical_offset, number),
            body=record.value or b"",
            properties=record_properties(record).encode("utf-8", "replace") + of_all,
            sys_flag=head.sys_flag & ~flags.INNER_BATCH,
            born_timestamp_ms=record.timestamp_ms,
            born_host=encode_host(batch.born_host),
            store_timestamp_ms=batch.store_timestamp_ms,
            store_host=encode_host(batch.store_host),
        )
        for number, record in enumerate(decode_batch(batch.body))
    ]
