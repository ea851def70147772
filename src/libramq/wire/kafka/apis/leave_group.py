"""LeaveGroup (13): members leave. 3 names several, static ones by their instance ids; 4 is flexible."""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Message, NullableString, Request, String, Versions


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
