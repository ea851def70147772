"""The records of a fetch: what was read of a queue, as record batches.

a batch of Kafka's    as it is stored, with its first offset set
everything else       converted, adjacent messages into one batch
"""

from collections.abc import Iterator, Sequence
from typing import Final

from libramq.batches.formats import unwrap
from libramq.batches.kafka_batch import is_kafka_batch
from libramq.errors import LibraError, StoreCorrupt
from libramq.logs import get_logger
from libramq.message.inner_batch import message_count
from libramq.message.record import RecordHead, decode_records, peek_record
from libramq.message.sys_flag import INNER_BATCH
from libramq.protocols.kafka.mapping import record_of
from libramq.wire.kafka.record_batch import encode_batch
from libramq.wire.kafka.whole_batch import empty_batch, renumbered

log = get_logger(__name__)

#: The system flag is the four bytes from 36 on.
_SYS_FLAG_LOW_AT: Final = 39


def fetched_records(data: Sequence[bytes | memoryview]) -> bytes:
    """Return the batches of the records that a read returned."""
    parts: list[bytes | memoryview] = []
    alone: list[bytes | memoryview] = []
    for record in _records(data):
        if not record[_SYS_FLAG_LOW_AT] & INNER_BATCH:
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
    """Return the messages of a batch of RocketMQ's; none if they cannot be read: fetches go over them.

    A consumer asks for the offset behind the last record: for that of fewer than are announced, again and
    again, as it is the same batch's.
    """
    try:
        messages = unwrap(record, head)
        if len(messages) != message_count(head):
            raise StoreCorrupt(f"{len(messages)} messages, and it announces {message_count(head)}")
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
