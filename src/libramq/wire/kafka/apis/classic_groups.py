"""The requests of classic groups: FindCoordinator, JoinGroup, Heartbeat, LeaveGroup, SyncGroup."""

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
    Versions,
)

# JoinGroup (11): a member joins a group, or rejoins it for its next generation.
#
# 4 demands a member id (KIP-394), 5 knows static members, 6 is flexible, 7 names the protocol's type in the
# answer, 8 gives a reason, 9 lets a static leader skip the assignment.


class JoinGroupProtocol(Message, frozen=True, kw_only=True):
    """A strategy that the member knows, with its subscription as that strategy wants it."""

    name: String
    metadata: Bytes


class JoinGroupRequest(Request, frozen=True, kw_only=True):
    """Joins."""

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


# Heartbeat (12): a member is alive; the answer says whether a rebalance is under way. 3 knows static
# members, 4 is flexible.
class HeartbeatRequest(Request, frozen=True, kw_only=True):
    """A member's heartbeat."""

    group_id: String
    generation_id: Int32
    member_id: String
    group_instance_id: Annotated[NullableString, Versions(3)] = None


class HeartbeatResponse(Message, frozen=True, kw_only=True):
    """Nothing but an error code."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0


# LeaveGroup (13): members leave. 3 names several, static ones by their instance ids; 4 is flexible.
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
    """A member that left, or why it did not."""

    member_id: String
    group_instance_id: NullableString = None
    error_code: Int16 = 0


class LeaveGroupResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Int16 = 0
    members: Annotated[tuple[LeftMember, ...], Versions(3)] = ()


# SyncGroup (14): the leader hands in the assignment, everybody gets a share. 3 knows static members, 4 is
# flexible, 5 names the protocol.
class SyncGroupAssignment(Message, frozen=True, kw_only=True):
    """The share of a member."""

    member_id: String
    assignment: Bytes


class SyncGroupRequest(Request, frozen=True, kw_only=True):
    """Asks for a member's share; the leader's has everybody's."""

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


# FindCoordinator (10): the broker that coordinates a group. 3 is flexible; 4 asks for several groups at
# once.
GROUP: Final = 0


class FindCoordinatorRequest(Request, frozen=True, kw_only=True):
    """Asks for the coordinators of keys. key_type: 0 a group; others are transactions and share groups."""

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
    """One coordinator, or, from version 4 on, one for each key."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    error_code: Annotated[Int16, Versions(0, 3)] = 0
    error_message: Annotated[Remark, Versions(1, 3)] = None
    node_id: Annotated[Int32, Versions(0, 3)] = -1
    host: Annotated[String, Versions(0, 3)] = ""
    port: Annotated[Int32, Versions(0, 3)] = -1
    coordinators: Annotated[tuple[Coordinator, ...], Versions(4)] = ()
