"""CreatePartitions (37): topics get more partitions. 2 is flexible."""

from libramq.wire.kafka.schema import Boolean, Int16, Int32, Message, Remark, Request, String


class CreatePartitionsAssignment(Message, frozen=True, kw_only=True):
    """The brokers of a new partition."""

    broker_ids: tuple[Int32, ...]


class CreatePartitionsTopic(Message, frozen=True, kw_only=True):
    """A topic, and how many partitions it shall have."""

    name: String
    count: Int32
    assignments: tuple[CreatePartitionsAssignment, ...] | None = None


class CreatePartitionsRequest(Request, frozen=True, kw_only=True):
    """Asks for more partitions."""

    topics: tuple[CreatePartitionsTopic, ...]
    timeout_ms: Int32 = 60_000
    validate_only: Boolean = False


class CreatePartitionsTopicResult(Message, frozen=True, kw_only=True):
    """The result for a topic."""

    name: String
    error_code: Int16 = 0
    error_message: Remark = None


class CreatePartitionsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[CreatePartitionsTopicResult, ...]
