"""Batches by format: how records that hold many messages, RocketMQ's or Kafka's, are recognised and
unwrapped.

Brokers without the codecs of `libramq[kafka]` may also have Kafka's batches in their store.
"""

from typing import Final

from libramq.errors import StoreError
from libramq.message.inner_batch import ROCKETMQ, BatchFormat, unwrapped_items
from libramq.message.properties import find_property
from libramq.message.record import RecordHead
from libramq.message.sys_flag import INNER_BATCH, WRAPPED

_KAFKA_BATCH: Final = b"KAFKA_BATCH"


def unwrap(data: bytes, head: RecordHead) -> list[bytes]:
    """Return a record for each message of a batch's record; LibraError if it cannot be read."""
    if not _is_kafkas(head):
        return unwrapped_items(data, head)
    try:
        from libramq.batches.kafka_batch import unwrapped_records
    except ImportError as error:
        raise StoreError(f"a batch of Kafka's cannot be read: {error}; install libramq[kafka]") from error
    return unwrapped_records(data, head)


def is_packed(data: bytes, head: RecordHead) -> bool:
    """Return whether the messages of a batch are compressed."""
    if not _is_kafkas(head):
        return ROCKETMQ.is_packed(data, head)
    try:
        from libramq.batches.kafka_batch import is_compressed
    except ImportError:
        return False
    return is_compressed(data, head)


def _is_kafkas(head: RecordHead) -> bool:
    """Return whether a batch is Kafka's, in any format; unlike `is_kafka_batch` it needs no codecs."""
    is_unwrapped_here = head.sys_flag & WRAPPED == INNER_BATCH
    return is_unwrapped_here and find_property(head.properties, _KAFKA_BATCH) is not None


FORMATS: Final = BatchFormat(unwrap, is_packed)
