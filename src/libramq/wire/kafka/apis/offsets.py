"""The requests of committed offsets: OffsetCommit, OffsetFetch, OffsetDelete."""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Boolean,
    Int16,
    Int32,
    Int64,
    Message,
    NullableString,
    Request,
    String,
    Topic,
    Versions,
)


# OffsetCommit (8). 5 drops the retention time, 6 adds leader epochs, 7 static members; 8 is flexible; 9
# allows the epochs of KIP-848, in the same fields.
class CommittedPartition(Message, frozen=True, kw_only=True):
    """An offset to commit: the next one to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions(6)] = -1
    committed_metadata: NullableString = None


class OffsetCommitRequest(Request, frozen=True, kw_only=True):
    """A request to commit offsets. generation -1: without membership."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions(7)] = None
    retention_time_ms: Annotated[Int64, Versions(2, 4)] = -1
    topics: tuple[Topic[CommittedPartition], ...]


class PartitionResult(Message, frozen=True, kw_only=True):
    """The result for one partition."""

    partition_index: Int32
    error_code: Int16 = 0


class OffsetCommitResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    topics: tuple[Topic[PartitionResult], ...]


# OffsetFetch (9): the committed offsets of groups. Null topics request all (from 2 on); 6 is flexible; 8
# takes several groups, and 9 names the requesting member (KIP-848).
class WantedGroup(Message, frozen=True, kw_only=True):
    """A group's topics; None: all. member_epoch: -1 without membership."""

    group_id: String
    member_id: Annotated[NullableString, Versions(9)] = None
    member_epoch: Annotated[Int32, Versions(9)] = -1
    topics: tuple[Topic[Int32], ...] | None = None


class OffsetFetchRequest(Request, frozen=True, kw_only=True):
    """A request for committed offsets."""

    group_id: Annotated[String, Versions(0, 7)] = ""
    topics: Annotated[tuple[Topic[Int32], ...] | None, Versions(0, 7)] = None
    groups: Annotated[tuple[WantedGroup, ...], Versions(8)] = ()
    require_stable: Annotated[Boolean, Versions(7)] = False


class FoundPartition(Message, frozen=True, kw_only=True):
    """A committed offset, or -1."""

    partition_index: Int32
    committed_offset: Int64 = -1
    committed_leader_epoch: Annotated[Int32, Versions(5)] = -1
    metadata: NullableString = ""
    error_code: Int16 = 0


class FoundGroup(Message, frozen=True, kw_only=True):
    """A group's committed offsets."""

    group_id: String
    topics: tuple[Topic[FoundPartition], ...] = ()
    error_code: Int16 = 0


class OffsetFetchResponse(Message, frozen=True, kw_only=True):
    """The offsets, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    topics: Annotated[tuple[Topic[FoundPartition], ...], Versions(0, 7)] = ()
    error_code: Annotated[Int16, Versions(2, 7)] = 0
    groups: Annotated[tuple[FoundGroup, ...], Versions(8)] = ()


# OffsetDelete (47): deletes a group's offsets in some partitions. 0 is not flexible; each partition is a
# number.
class OffsetDeleteRequest(Request, frozen=True, kw_only=True):
    """A request to delete committed offsets."""

    group_id: String
    topics: tuple[Topic[Int32], ...]


class OffsetDeleteResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    error_code: Int16 = 0
    throttle_time_ms: Int32 = 0
    topics: tuple[Topic[PartitionResult], ...] = ()
