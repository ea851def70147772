"""ConsumerGroupHeartbeat (68): a member of a group of KIP-848 joins, is alive, has revoked, or leaves. 1 has
regular expressions, and its clients choose their ids.

What has not changed since the member's last heartbeat is null, or -1.
"""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Int16,
    Int32,
    Message,
    NullableString,
    Remark,
    Request,
    String,
    Uuid,
    Versions,
)


class TopicPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


class ConsumerGroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """A member's heartbeat. member_epoch: 0 joins, -1 leaves, -2 leaves for a while.

    topic_partitions: those that the member has.
    """

    group_id: String
    member_id: String = ""
    member_epoch: Int32
    instance_id: NullableString = None
    rack_id: NullableString = None
    rebalance_timeout_ms: Int32 = -1
    subscribed_topic_names: tuple[String, ...] | None = None
    subscribed_topic_regex: Annotated[NullableString, Versions(1)] = None
    server_assignor: NullableString = None
    topic_partitions: tuple[TopicPartitions, ...] | None = None


class Assignment(Message, frozen=True, kw_only=True):
    """All partitions that a member may have now."""

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """The member's epoch. assignment: None while it stays as it is."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Remark = None
    member_id: NullableString = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None
