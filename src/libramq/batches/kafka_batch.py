"""Kafka's batch as an inner batch: its bytes as they were produced, in one record of the log, and how other
readers get single messages from it.

    property KAFKA_BATCH 2     the body is a record batch of that format (`wire.kafka.record_batch`)
    INNER_NUM                  how many records it has

Kafka's readers get the bytes back, with two fields of the header set. To others every record is a message,
with the properties that it would have if it were stored by itself (`record_properties`).

Upstream: org.apache.kafka.common.record.DefaultRecordBatch; MessageSysFlag.INNER_BATCH_FLAG. RocketMQ's
clients do not unwrap it: NEED_UNWRAP is not set.
"""

from typing import Final

from libramq.batches.record_properties import record_properties
from libramq.errors import StoreCorrupt
from libramq.message import properties as p
from libramq.message import sys_flag as flags
from libramq.message.ids import encode_host, place_of
from libramq.message.record import RecordHead, decode_record, encode_record
from libramq.wire.kafka.record_batch import CODEC_MASK, decode_batch

KAFKA_BATCH: Final = "KAFKA_BATCH"
FORMAT: Final = "2"
_MARK: Final = KAFKA_BATCH.encode()
_END: Final = p.PROPERTY_SEPARATOR.encode()
_SET: Final = p.NAME_VALUE_SEPARATOR.encode()
#: Ours: the mark of an idempotent producer (`protocols.kafka.idempotent_producers`), which is of the batch.
PRODUCER: Final = p.KAFKA_PRODUCER
_ATTRIBUTES_LOW_AT: Final = 22
_OF_THE_BATCH: Final = frozenset(name.encode() for name in (KAFKA_BATCH, p.INNER_NUM, p.INNER_BASE, PRODUCER))


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
