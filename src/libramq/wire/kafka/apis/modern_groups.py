"""The requests of KIP-848's groups: ConsumerGroupHeartbeat, ConsumerGroupDescribe."""

from typing import Annotated, Final

from libramq.wire.kafka.apis.group_admin import NO_OPERATIONS
from libramq.wire.kafka.schema import (
    Boolean,
    Int8,
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

# ConsumerGroupHeartbeat (68): a member of a group of KIP-848 joins, is alive, has revoked, or leaves. 1 has
# regular expressions, and its clients choose their ids.
#
# What has not changed since the member's last heartbeat is null, or -1.


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


# ConsumerGroupDescribe (69): groups of KIP-848 and their members; 1 has the members' type.
#: The type of a member that uses this protocol.
CONSUMER_MEMBER: Final = 1


class ConsumerGroupDescribeRequest(Request, frozen=True, kw_only=True):
    """Asks for groups."""

    group_ids: tuple[String, ...]
    include_authorized_operations: Boolean = False


class DescribedTopicPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic."""

    topic_id: Uuid
    topic_name: String
    partitions: tuple[Int32, ...]


class DescribedAssignment(Message, frozen=True, kw_only=True):
    """Partitions of a member."""

    topic_partitions: tuple[DescribedTopicPartitions, ...] = ()


class DescribedConsumerGroupMember(Message, frozen=True, kw_only=True):
    """A member, with what it has and what it shall have."""

    member_id: String
    instance_id: NullableString = None
    rack_id: NullableString = None
    member_epoch: Int32
    client_id: String
    client_host: String
    subscribed_topic_names: tuple[String, ...] = ()
    subscribed_topic_regex: NullableString = None
    assignment: DescribedAssignment
    target_assignment: DescribedAssignment
    member_type: Annotated[Int8, Versions(1)] = -1


class DescribedConsumerGroup(Message, frozen=True, kw_only=True):
    """A group. group_epoch: higher than assignment_epoch while an assignment is due."""

    error_code: Int16 = 0
    error_message: Remark = None
    group_id: String
    group_state: String = ""
    group_epoch: Int32 = 0
    assignment_epoch: Int32 = 0
    assignor_name: String = ""
    members: tuple[DescribedConsumerGroupMember, ...] = ()
    authorized_operations: Int32 = NO_OPERATIONS


class ConsumerGroupDescribeResponse(Message, frozen=True, kw_only=True):
    """The groups, in the order of the request."""

    throttle_time_ms: Int32 = 0
    groups: tuple[DescribedConsumerGroup, ...]
