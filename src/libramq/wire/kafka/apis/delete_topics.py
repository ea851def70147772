"""DeleteTopics (20). 4 is flexible, 5 answers messages; 6 names topics by ids."""

from typing import Annotated

from libramq.wire.kafka.schema import Int16, Int32, Message, Remark, Request, String, Versions


class DeleteTopicsRequest(Request, frozen=True, kw_only=True):
    """Deletes topics."""

    topic_names: tuple[String, ...]
    timeout_ms: Int32 = 0


class DeletedTopic(Message, frozen=True, kw_only=True):
    """A topic that was deleted, or why it was not."""

    name: String
    error_code: Int16 = 0
    error_message: Annotated[Remark, Versions(5)] = None


class DeleteTopicsResponse(Message, frozen=True, kw_only=True):
    """The results, in the order of the request."""

    throttle_time_ms: Annotated[Int32, Versions(1)] = 0
    responses: tuple[DeletedTopic, ...]
