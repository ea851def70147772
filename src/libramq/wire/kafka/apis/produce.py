"""Produce (0): one record batch for each partition; the served versions and the reasons.

Versions 0 to 2 have older message formats; like Kafka's own broker, this one lists and refuses them:
librdkafka before 2.11.1 derives a broker's supported compression from the lowest version (KAFKA-18659). 8
added record errors; 9 is flexible.
"""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    NullableString,
    Remark,
    Request,
    Topic,
    Versions,
)


class ProducePartition(Message, frozen=True, kw_only=True):
    """The records for a partition."""

    index: Int32
    records: NullableBytes


class ProduceRequest(Request, frozen=True, kw_only=True):
    """Records to store. acks: 0 no answer, 1 or -1 once they are as safe as the broker makes them."""

    transactional_id: Annotated[NullableString, Versions(3)] = None
    acks: Int16
    timeout_ms: Int32
    topics: tuple[Topic[ProducePartition], ...]


class RecordError(Message, frozen=True, kw_only=True):
    """A record that cannot be stored."""

    batch_index: Int32
    batch_index_error_message: Remark = None


class ProducedPartition(Message, frozen=True, kw_only=True):
    """The result for a partition: where its records are stored, or why they are not."""

    index: Int32
    error_code: Int16 = 0
    base_offset: Int64 = -1
    log_append_time_ms: Annotated[Int64, Versions(2)] = -1
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    record_errors: Annotated[tuple[RecordError, ...], Versions(8)] = ()
    error_message: Annotated[Remark, Versions(8)] = None


class ProduceResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    responses: tuple[Topic[ProducedPartition], ...]
    throttle_time_ms: Annotated[Int32, Versions(1)] = 0


# InitProducerId (22): an id for an idempotent producer. 2 is flexible; 3 includes the id it replaces.
class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    """A request for a producer id. producer_id, producer_epoch: the current ones; the next epoch follows."""

    transactional_id: NullableString = None
    transaction_timeout_ms: Int32 = 0
    producer_id: Annotated[Int64, Versions(3)] = -1
    producer_epoch: Annotated[Int16, Versions(3)] = -1


class InitProducerIdResponse(Message, frozen=True, kw_only=True):
    """The id."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    producer_id: Int64 = -1
    producer_epoch: Int16 = 0
