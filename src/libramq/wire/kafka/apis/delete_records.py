"""DeleteRecords (21): partitions begin at a later record. 2 is flexible."""

from typing import Final

from libramq.wire.kafka.schema import Int16, Int32, Int64, Message, Request, String

#: Up to the end.
HIGH_WATERMARK: Final = -1


class DeleteRecordsPartition(Message, frozen=True, kw_only=True):
    """A partition, and where it shall begin."""

    partition_index: Int32
    offset: Int64


class DeleteRecordsTopic(Message, frozen=True, kw_only=True):
    """A topic's partitions."""

    name: String
    partitions: tuple[DeleteRecordsPartition, ...]


class DeleteRecordsRequest(Request, frozen=True, kw_only=True):
    """Deletes the first records of partitions."""

    topics: tuple[DeleteRecordsTopic, ...]
    timeout_ms: Int32 = 60_000


class DeleteRecordsPartitionResult(Message, frozen=True, kw_only=True):
    """The new beginning of a partition."""

    partition_index: Int32
    low_watermark: Int64 = -1
    error_code: Int16 = 0


class DeleteRecordsTopicResult(Message, frozen=True, kw_only=True):
    """The results for a topic's partitions."""

    name: String
    partitions: tuple[DeleteRecordsPartitionResult, ...]


class DeleteRecordsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    topics: tuple[DeleteRecordsTopicResult, ...]
