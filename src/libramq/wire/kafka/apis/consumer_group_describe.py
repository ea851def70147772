"""ConsumerGroupDescribe (69): groups of KIP-848 and their members; 1 has the members' type."""

from typing import Annotated, Final

from libramq.wire.kafka.apis.describe_groups import NO_OPERATIONS
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
