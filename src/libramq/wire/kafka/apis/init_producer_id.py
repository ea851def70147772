"""InitProducerId (22): an id for an idempotent producer. 2 is flexible; 3 has the id that it replaces."""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Int64, Message, NullableString, Request, Versions


class InitProducerIdRequest(Request, frozen=True, kw_only=True):
    """Asks for a producer's id. producer_id, producer_epoch: those it had, which its next epoch follows."""

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
