"""JoinGroup (11): a member joins a group, or rejoins it for its next generation.

4 demands a member id (KIP-394), 5 knows static members, 6 is flexible, 7 names the protocol's type in the
answer, 8 gives a reason, 9 lets a static leader skip the assignment.
"""

from typing import Annotated

from libramq.wire.kafka.schema import (
    Boolean,
    Bytes,
    Int16,
    Int32,
    Message,
    NullableString,
    Request,
    String,
    Versions,
)


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
