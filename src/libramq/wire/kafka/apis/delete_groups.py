"""DeleteGroups (42): groups without members go, with their offsets. 2 is flexible."""

from libramq.wire.kafka.schema import Int16, Int32, Message, Request, String


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
