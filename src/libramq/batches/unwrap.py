"""Unwrapping by format: a batch of RocketMQ's, or one of Kafka's."""

from libramq.errors import StoreError
from libramq.message.inner_batch import unwrapped_items
from libramq.message.properties import find_property
from libramq.message.record import RecordHead


def unwrap(data: bytes, head: RecordHead) -> list[bytes]:
    """Return a record for each message of a batch's record; LibraError if it cannot be read."""
    if find_property(head.properties, b"KAFKA_BATCH") is None:
        return unwrapped_items(data, head)
    try:
        from libramq.batches.kafka_batch import unwrapped_records  # Brokers without Kafka lack its codecs.
    except ImportError as error:
        raise StoreError(f"a batch of Kafka's cannot be read: {error}; install libramq[kafka]") from error
    return unwrapped_records(data, head)
