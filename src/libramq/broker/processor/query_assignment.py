"""QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE: the queues of a member that does not decide itself.

POP is not supported yet: every queue has to be pulled.
Upstream: QueryAssignmentProcessor.java.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from libramq.broker.groups.assigner import Assigner, QueueQuestion, Queues
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.catalog import GroupTable, TopicTable
from libramq.codes import RequestCode, ResponseCode
from libramq.filter.subscription import BROADCASTING
from libramq.formats.document import encode_body
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue
from libramq.remoting.body.assignment import (
    MODE_PULL,
    MessageRequestModeBody,
    QueryAssignmentBody,
    QueryAssignmentReply,
)
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.request_body import with_body
from libramq.rpc.waiter import RequestWaiter


class QueryAssignment:
    """The processor of members that ask for their queues.

    queues: all queues of a topic, at whichever broker, sorted; None while they are unknown.
    answer: sends delayed replies.
    """

    def __init__(
        self,
        *,
        clients: ConsumerClients,
        topics: TopicTable,
        groups: GroupTable,
        queues: Callable[[str], Sequence[MessageQueue] | None],
        assigner: Assigner,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._queues = queues
        self._assigner = assigner
        self._answer = answer

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.QUERY_ASSIGNMENT: self.query,
            RequestCode.SET_MESSAGE_REQUEST_MODE: self.set_mode,
        }

    def query(self, request: Request) -> Outcome:
        """Return a member's queues of a topic; ConfigError for a strategy that is unknown or needs more."""
        return with_body(request, QueryAssignmentBody, partial(self._query, request))

    def _query(self, request: Request, body: QueryAssignmentBody) -> Outcome:
        group = self._clients.group(body.consumer_group)
        if group is None or not group.has_client(body.client_id):
            return reply_with(None)  # Its heartbeat is on its way.
        self._clients.asked(request.peer, group)
        if body.message_model == BROADCASTING:
            return reply_with(self._queues(body.topic) or None)
        question = QueueQuestion(body.consumer_group, body.client_id, body.topic, body.strategy_name)
        waiter = RequestWaiter(request, self._answer, reply_with)
        self._assigner.ask(question, waiter, cost_bytes=len(request.command.body))
        return HOLD

    def set_mode(self, request: Request) -> Outcome:
        """Set how a group reads a topic: only by pulling, so far."""
        return with_body(request, MessageRequestModeBody, partial(self._set_mode, request))

    def _set_mode(self, request: Request, body: MessageRequestModeBody) -> Outcome:
        if body.topic.startswith(RETRY_PREFIX):
            return Reply(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._topics.require(body.topic)
        self._groups.require(body.consumer_group, request.wall_ms)
        if body.mode != MODE_PULL:
            return Reply(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"message request mode {body.mode} is not served yet; consumers read by {MODE_PULL}",
            )
        return SUCCESS


def reply_with(queues: Queues) -> Reply:
    """Return the reply to a member."""
    return Reply(body=encode_body(QueryAssignmentReply.of(queues)))
