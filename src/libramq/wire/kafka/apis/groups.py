"""The requests of groups: of classic members (JoinGroup, Heartbeat, LeaveGroup, SyncGroup, FindCoordinator),
of tools (DescribeGroups, ListGroups, DeleteGroups), and of KIP-848 (ConsumerGroupHeartbeat,
ConsumerGroupDescribe).
"""

from typing import Annotated, Final

from libramq.wire.kafka.schema import (
    Boolean,
    Bytes,
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

# JoinGroup (11): a member joins a group, or rejoins it for its next generation.
#
# 4 requires a member id (KIP-394), 5 adds static members, 6 is flexible, 7 returns the protocol's type, 8 has
# a reason, 9 lets a static leader skip the assignment.


class JoinGroupProtocol(Message, frozen=True, kw_only=True):
    """A strategy that the member supports, with its subscription in that strategy's form."""

    name: String
    metadata: Bytes


class JoinGroupRequest(Request, frozen=True, kw_only=True):
    """A request to join."""

    group_id: String
    session_timeout_ms: Int32
    rebalance_timeout_ms: Annotated[Int32, Versions(1)] = -1
    member_id: String
    group_instance_id: Annotated[NullableString, Versions(5)] = None
    protocol_type: String
    protocols: tuple[JoinGroupProtocol, ...]
    reason: Annotated[NullableString, Versions(8)] = None


class JoinGroupMember(Message, frozen=True, kw_only=True):
    """A member, for the leader."""

    member_id: String
    group_instance_id: Annotated[NullableString, Versions(5)] = None
    metadata: Bytes


class JoinGroupResponse(Message, frozen=True, kw_only=True):
    """The generation; the leader gets all members."""

    throttle_time_ms: Annotated[Int32, Versions(2)] = 0
    error_code: Int16 = 0
    generation_id: Int32 = -1
    protocol_type: Annotated[NullableString, Versions(7)] = None
    protocol_name: NullableString = ""
    leader: String = ""
    skip_assignment: Annotated[Boolean, Versions(9)] = False
    member_id: String = ""
    members: tuple[JoinGroupMember, ...] = ()


# Heartbeat (12): a member is alive; the answer says whether a rebalance is in progress. 3 adds static
# members, 4 is flexible.
class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """A member's heartbeat."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, Versions(3)] = None


class HeartbeatResponse(Message, frozen=True, kw_only=True):
    """Only an error code."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0


# LeaveGroup (13): members leave. 3 takes several, static ones by instance id; 4 is flexible.
class LeavingMember(Message, frozen=True, kw_only=True):
    """A member that leaves."""

    member_id: String
    group_instance_id: NullableString = None
    reason: Annotated[NullableString, Versions(5)] = None


class LeaveGroupRequest(Request, frozen=True, kw_only=True):
    """Members leave a group."""

    group_id: String
    member_id: Annotated[String, Versions(0, 2)] = ""
    members: Annotated[tuple[LeavingMember, ...], Versions(3)] = ()


class LeftMember(Message, frozen=True, kw_only=True):
    """A member that left, or the reason why it did not."""

    member_id: String
    group_instance_id: NullableString = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0
    members: Annotated[tuple[LeftMember, ...], Versions(3)] = ()


# SyncGroup (14): the leader submits the assignment, and every member receives its share. 3 adds static
# members, 4 is flexible, 5 names the protocol.
class SyncGroupAssignment(Message, frozen=True, kw_only=True):
    """The share of a member."""

    member_id: String
    assignment: Bytes


class SyncGroupRequest(Request, frozen=True, kw_only=True):
    """A request for a member's share; the leader submits all shares."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, Versions(3)] = None
    protocol_type: Annotated[NullableString, Versions(5)] = None
    protocol_name: Annotated[NullableString, Versions(5)] = None
    assignments: tuple[SyncGroupAssignment, ...] = ()


class SyncGroupResponse(Message, frozen=True, kw_only=True):
    """A member's share."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0
    protocol_type: Annotated[NullableString, Versions(5)] = None
    protocol_name: Annotated[NullableString, Versions(5)] = None
    assignment: Bytes = b""


# FindCoordinator (10): the broker that coordinates a group. 3 is flexible; 4 takes several groups.
GROUP: Final = 0


class FindCoordinatorRequest(Request, frozen=True, kw_only=True):
    """A request for the coordinators of keys. key_type: 0 for a group; others: transactions, share groups."""

    key: Annotated[String, Versions(0, 3)] = ""
    key_type: Annotated[Int8, Versions(1)] = GROUP
    coordinator_keys: Annotated[tuple[String, ...], Versions(4)] = ()


class Coordinator(Message, frozen=True, kw_only=True):
    """The coordinator of a key."""

    key: String
    node_id: Int32 = -1
    host: String = ""
    port: Int32 = -1
    error_code: Int16 = 0
    error_message: Remark = None


class FindCoordinatorResponse(Message, frozen=True, kw_only=True):
    """One coordinator, or from version 4 one for each key."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(0, 3)] = 0
    error_message: Annotated[Remark, Versions(1, 3)] = None
    node_id: Annotated[Int32, Versions(0, 3)] = -1
    host: Annotated[String, Versions(0, 3)] = ""
    port: Annotated[Int32, Versions(0, 3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], Versions(4)] = ()


# DescribeGroups (15): groups and their members. 3 adds the authorized operations, 4 static members; 5 is
# flexible; 6 returns GROUP_ID_NOT_FOUND where earlier versions return the state Dead.
#: The authorized operations were not requested, or are unknown.
NO_OPERATIONS: Final = -(1 << 31)


class DescribeGroupsRequest(Request, frozen=True, kw_only=True):
    """A request for groups."""

    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Boolean, Versions(3)] = False


class DescribedGroupMember(Message, frozen=True, kw_only=True):
    """A member. member_metadata, member_assignment: in its strategy's form."""

    member_id: String
    group_instance_id: Annotated[NullableString, Versions(4)] = None
    client_id: String
    client_host: String
    member_metadata: Bytes = b""
    member_assignment: Bytes = b""


class DescribedGroup(Message, frozen=True, kw_only=True):
    """A group. protocol_data: its strategy."""

    error_code: Int16 = 0
    error_message: Annotated[Remark, Versions(6)] = None
    group_id: String
    group_state: String = ""
    protocol_type: String = ""
    protocol_data: String = ""
    members: tuple[DescribedGroupMember, ...] = ()
    authorized_operations: Annotated[Int32, Versions(3)] = NO_OPERATIONS


class DescribeGroupsResponse(Message, frozen=True, kw_only=True):
    """The groups, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    groups: tuple[DescribedGroup, ...]


# ListGroups (16): the groups of a coordinator. 3 is flexible; 4 filters by state, 5 by type.
class ListGroupsRequest(Request, frozen=True, kw_only=True):
    """A request for groups; without filters, for all of them."""

    states_filter: Annotated[tuple[String, ...], Versions(4)] = ()
    types_filter: Annotated[tuple[String, ...], Versions(5)] = ()


class ListedGroup(Message, frozen=True, kw_only=True):
    """A group."""

    group_id: String
    protocol_type: String
    group_state: Annotated[String, Versions(4)] = ""
    group_type: Annotated[String, Versions(5)] = ""


class ListGroupsResponse(Message, frozen=True, kw_only=True):
    """The groups."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0
    groups: tuple[ListedGroup, ...] = ()


# DeleteGroups (42): groups without members are deleted with their offsets. 2 is flexible.
class DeleteGroupsRequest(Request, frozen=True, kw_only=True):
    """Deletes groups."""

    groups_names: tuple[String, ...]


class DeletableGroupResult(Message, frozen=True, kw_only=True):
    """The result for a group."""

    group_id: String
    error_code: Int16 = 0


class DeleteGroupsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Int32 = 0
    results: tuple[DeletableGroupResult, ...]


# ConsumerGroupHeartbeat (68): a member of a KIP-848 group joins, is alive, has revoked, or leaves. 1 adds
# regular expressions, and its clients choose their ids.
#
# Fields unchanged since the member's last heartbeat are null or -1.


class TopicPartitions(Message, frozen=True, kw_only=True):
    """Partitions of a topic."""

    topic_id: Uuid
    partitions: tuple[Int32, ...]


class ConsumerGroupHeartbeatRequest(Request, frozen=True, kw_only=True):
    """A member's heartbeat. member_epoch: 0 joins, -1 leaves, -2 leaves temporarily.

    topic_partitions: those the member owns.
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
    """All partitions that a member may own now."""

    topic_partitions: tuple[TopicPartitions, ...]


class ConsumerGroupHeartbeatResponse(Message, frozen=True, kw_only=True):
    """The member's epoch. assignment: None if unchanged."""

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    error_message: Remark = None
    member_id: NullableString = None
    member_epoch: Int32 = 0
    heartbeat_interval_ms: Int32 = 0
    assignment: Assignment | None = None


# ConsumerGroupDescribe (69): KIP-848 groups and their members; 1 adds the members' type.
#: The type of a member that uses this protocol.
CONSUMER_MEMBER: Final = 1


class ConsumerGroupDescribeRequest(Request, frozen=True, kw_only=True):
    """A request for groups."""

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
    """A member, with its current and its target assignment."""

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
