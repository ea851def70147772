"""The requests of reading: Fetch, ListOffsets."""

from typing import Annotated, Final

from libramq.wire.kafka.schema import (
    Int8,
    Int16,
    Int32,
    Int64,
    Message,
    NullableBytes,
    Request,
    String,
    Topic,
    Versions,
)


# Fetch (1): record batches of partitions from offsets on, once there is enough or the wait is over.
#
# 7 added sessions (KIP-227), which are declined: every answer has session 0. 12 is flexible; its tagged
# fields are not used. 13 and later identify topics by id.
class FetchPartition(Message, frozen=True, kw_only=True):
    """A partition to read."""

    partition: Int32
    current_leader_epoch: Annotated[Int32, Versions(9)] = -1
    fetch_offset: Int64
    last_fetched_epoch: Annotated[Int32, Versions(12)] = -1
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    partition_max_bytes: Int32


class FetchRequest(Request, frozen=True, kw_only=True):
    """A request for records."""

    replica_id: Int32 = -1
    max_wait_ms: Int32
    min_bytes: Int32
    max_bytes: Annotated[Int32, Versions(3)] = 0x7FFF_FFFF
    isolation_level: Annotated[Int8, Versions(4)] = 0
    session_id: Annotated[Int32, Versions(7)] = 0
    session_epoch: Annotated[Int32, Versions(7)] = -1
    topics: tuple[Topic[FetchPartition], ...]
    forgotten_topics_data: Annotated[tuple[Topic[Int32], ...], Versions(7)] = ()
    rack_id: Annotated[String, Versions(11)] = ""


class AbortedTransaction(Message, frozen=True, kw_only=True):
    """A transaction whose records must be skipped."""

    producer_id: Int64
    first_offset: Int64


class FetchedPartition(Message, frozen=True, kw_only=True):
    """The records of a partition, and its ends."""

    partition_index: Int32
    error_code: Int16 = 0
    high_watermark: Int64 = -1
    last_stable_offset: Annotated[Int64, Versions(4)] = -1
    log_start_offset: Annotated[Int64, Versions(5)] = -1
    aborted_transactions: Annotated[tuple[AbortedTransaction, ...] | None, Versions(4)] = None
    preferred_read_replica: Annotated[Int32, Versions(11)] = -1
    records: NullableBytes = b""


class FetchResponse(Message, frozen=True, kw_only=True):
    """The records, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(7)] = 0
    session_id: Annotated[Int32, Versions(7)] = 0
    responses: tuple[Topic[FetchedPartition], ...]


# ListOffsets (2): the ends of partitions, or the first offset at a time. Version 0, which returns several
# offsets, is not served. 6 is flexible; 7 and later add special times.
LATEST: Final = -1
EARLIEST: Final = -2


class ListOffsetsPartition(Message, frozen=True, kw_only=True):
    """A partition, and a time or a special value."""

    partition_index: Int32
    current_leader_epoch: Annotated[Int32, Versions(4)] = -1
    timestamp: Int64


class ListOffsetsRequest(Request, frozen=True, kw_only=True):
    """A request for offsets."""

    replica_id: Int32 = -1
    isolation_level: Annotated[Int8, Versions(2)] = 0
    topics: tuple[Topic[ListOffsetsPartition], ...]


class ListedPartition(Message, frozen=True, kw_only=True):
    """An offset, or -1."""

    partition_index: Int32
    error_code: Int16 = 0
    timestamp: Int64 = -1
    offset: Int64 = -1
    leader_epoch: Annotated[Int32, Versions(4)] = -1


class ListOffsetsResponse(Message, frozen=True, kw_only=True):
    """The offsets, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    topics: tuple[Topic[ListedPartition], ...]
