"""Heartbeat (12): a member is alive; the answer says whether a rebalance is under way. 3 knows static
members, 4 is flexible.
"""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Message, NullableString, Request, String, Versions


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
