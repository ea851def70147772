"""OffsetCommit (8). 5 dropped the retention time, 6 added leader epochs, 7 static members; 8 is flexible; 9
knows the epochs of KIP-848, with the same fields.
"""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Int64, Message, NullableString, Request, String, Versions


class CommittedPartition(Message, frozen=True, kw_only=True):
    """An offset to be committed: the next one to read."""

    partition_index: Int32
    committed_offset: Int64
    committed_leader_epoch: Annotated[Int32, Versions(6)] = -1
    committed_metadata: NullableString = None


class CommittedTopic(Message, frozen=True, kw_only=True):
    """A topic's offsets."""

    name: String
    partitions: tuple[CommittedPartition, ...]


class OffsetCommitRequest(Request, frozen=True, kw_only=True):
    """Commits offsets. generation -1: of nobody's membership."""

    group_id: String
    generation_id_or_member_epoch: Int32 = -1
    member_id: String = ""
    group_instance_id: Annotated[NullableString, Versions(7)] = None
    retention_time_ms: Annotated[Int64, Versions(2, 4)] = -1
    topics: tuple[CommittedTopic, ...]


class CommitResult(Message, frozen=True, kw_only=True):
    """The result of one commit."""

    partition_index: Int32
    error_code: Int16 = 0


class CommitResults(Message, frozen=True, kw_only=True):
    """The results of a topic's commits."""

    name: String
    partitions: tuple[CommitResult, ...]


class OffsetCommitResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(3)] = 0
    topics: tuple[CommitResults, ...]
