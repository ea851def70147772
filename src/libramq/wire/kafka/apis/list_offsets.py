"""ListOffsets (2): the ends of partitions, or the first offset of a time.

Version 0 answers several offsets, and is not served. 6 is flexible; 7 and later know more special times.
"""

from typing import Annotated, Final

from libramq.wire.kafka.schema import Int8, Int16, Int32, Int64, Message, Request, String, Versions

LATEST: Final = -1
EARLIEST: Final = -2


class ListOffsetsPartition(Message, frozen=True, kw_only=True):
    """A partition, and a time or a special value."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Versions(4)] = -1
    timestamp: Int64


class ListOffsetsTopic(Message, frozen=True, kw_only=True):
    """A topic's partitions."""

    name: String
    partitions: tuple[ListOffsetsPartition, ...]


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    """Asks for offsets."""

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Versions(2)] = 0
    topics: tuple[ListOffsetsTopic, ...]


class ListedPartition(Message, frozen=True, kw_only=True):
    """An offset; -1 where there is none."""

    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Versions(4)] = -1


class ListedTopic(Message, frozen=True, kw_only=True):
    """A topic's offsets."""

    name: String
    partitions: tuple[ListedPartition, ...]


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    """The offsets, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    topics: tuple[ListedTopic, ...]
