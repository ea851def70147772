"""Bodies of queue assignments by a broker.

Upstream: body/QueryAssignmentRequestBody.java, QueryAssignmentResponseBody.java,
SetMessageRequestModeRequestBody.java, common/message/MessageQueueAssignment.java.
"""

from collections.abc import Sequence

from libramq.filter.subscription import CLUSTERING
from libramq.formats.document import Document
from libramq.formats.tables import MODE_PULL, MessageRequestMode
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import QueueRef


class QueryAssignmentBody(Document, frozen=True, kw_only=True):
    """QUERY_ASSIGNMENT: a member queries its queues of a topic. strategy_name: its group's strategy."""

    topic: str
    consumer_group: str
    client_id: str
    strategy_name: str = ""
    message_model: str = CLUSTERING


class QueueAssignment(Document, frozen=True, kw_only=True):
    """A queue and how to read it."""

    message_queue: QueueRef
    mode: str = MODE_PULL

    @classmethod
    def of(cls, queue: MessageQueue, mode: str = MODE_PULL) -> "QueueAssignment":
        """Return the assignment of a queue."""
        return cls(message_queue=QueueRef.of(queue), mode=mode)


class QueryAssignmentReply(Document, frozen=True, kw_only=True):
    """The member's queues; None if it should keep its current ones."""

    message_queue_assignments: list[QueueAssignment] | None = None

    @classmethod
    def of(cls, queues: Sequence[MessageQueue] | None, mode: str = MODE_PULL) -> "QueryAssignmentReply":
        """Return the body of a reply."""
        if queues is None:
            return cls()
        return cls(message_queue_assignments=[QueueAssignment.of(queue, mode) for queue in queues])

    def value(self) -> list[MessageQueue] | None:
        """Return the queues, or None."""
        assigned = self.message_queue_assignments
        return None if assigned is None else [each.message_queue.queue for each in assigned]


#: SET_MESSAGE_REQUEST_MODE: how a group reads a topic.
MessageRequestModeBody = MessageRequestMode
