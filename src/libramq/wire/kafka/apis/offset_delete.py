"""OffsetDelete (47): a group's committed offsets in some partitions go."""

from libramq.wire.kafka.schema import Int16, Int32, Message, Request, String


class OffsetDeleteRequestPartition(Message, frozen=True, kw_only=True):
    """A partition."""

    partition_index: Int32


class OffsetDeleteRequestTopic(Message, frozen=True, kw_only=True):
    """A topic's partitions."""

    name: String
    partitions: tuple[OffsetDeleteRequestPartition, ...]


class OffsetDeleteRequest(Request, frozen=True, kw_only=True):
    """Deletes committed offsets."""

    group_id: String
    topics: tuple[OffsetDeleteRequestTopic, ...]


class OffsetDeleteResponsePartition(Message, frozen=True, kw_only=True):
    """The result for a partition's offset."""

    partition_index: Int32
    error_code: Int16 = 0


class OffsetDeleteResponseTopic(Message, frozen=True, kw_only=True):
    """The results for a topic's offsets."""

    name: String
    partitions: tuple[OffsetDeleteResponsePartition, ...]


class OffsetDeleteResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: tuple[OffsetDeleteResponseTopic, ...] = ()
