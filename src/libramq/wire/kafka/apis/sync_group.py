"""SyncGroup (14): the leader hands in the assignment, everybody gets a share. 3 knows static members, 4 is
flexible, 5 names the protocol.
"""

from typing import Annotated

from libramq.wire.kafka.schema import Bytes, Int16, Int32, Message, NullableString, Request, String, Versions


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
