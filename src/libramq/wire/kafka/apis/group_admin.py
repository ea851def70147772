"""The requests that administer groups: DescribeGroups, ListGroups, DeleteGroups."""

from typing import Annotated, Final

from libramq.wire.kafka.schema import (
    Boolean,
    Bytes,
    Int16,
    Int32,
    Message,
    NullableString,
    Remark,
    Request,
    String,
    Versions,
)

# DescribeGroups (15): groups and their members. 3 has the operations that are allowed, 4 static members;
# 5 is flexible; 6 answers GROUP_ID_NOT_FOUND where the others answer the state Dead.
#: The operations were not asked for, or are not known.
NO_OPERATIONS: Final = -(1 << 31)


class DescribeGroupsRequest(Request, frozen=True, kw_only=True):
    """Asks for groups."""

    groups: tuple[String, ...]
    include_authorized_operations: Annotated[Boolean, Versions(3)] = False


class DescribedGroupMember(Message, frozen=True, kw_only=True):
    """A member. member_metadata, member_assignment: as its strategy has them."""

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


# DeleteGroups (42): groups without members go, with their offsets. 2 is flexible.
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
