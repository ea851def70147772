"""ListGroups (16): the groups of a coordinator. 3 is flexible; 4 filters by state, 5 by type."""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Message, Request, String, Versions


class ListGroupsRequest(Request, frozen=True, kw_only=True):
    """Asks for groups; no filter: all of them."""

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
