"""QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE: the queues of a member that does not allocate for itself, and
whether it pulls or pops them.

A group may be set to pop a topic: then its members are assigned whole brokers, or shares of the queues.
Upstream: QueryAssignmentProcessor.java.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.balance import averagely, by_circle
from libramq.balance.strategy import TopicRule
from libramq.balance.topic_rules import pop_share
from libramq.broker.files.tables import Tables
from libramq.broker.groups.assigner import Assigner, QueueQuestion, Queues
from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError
from libramq.filter.subscription import BROADCASTING
from libramq.formats.tables import MODE_POP, MessageRequestMode
from libramq.message.names import RETRY_PREFIX, is_light
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import (
    QueryAssignmentBody,
    QueryAssignmentReply,
)
from libramq.rpc.outcome import HOLD, SUCCESS, Outcome, Reply, reply_rows
from libramq.rpc.request import Request, serves
from libramq.rpc.responder import RequestWaiter

_ALLOCATIONS: Final[dict[str, TopicRule]] = {"AVG": averagely, "AVG_BY_CIRCLE": by_circle}


class QueryAssignment:
    """The processor of QUERY_ASSIGNMENT.

    queues: returns all queues of a topic at all brokers, sorted; None while they are unknown.
    answer: sends delayed replies.
    """

    def __init__(
        self,
        *,
        tables: Tables,
        clients: ConsumerClients,
        queues: Callable[[str], Sequence[MessageQueue] | None],
        assigner: Assigner,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._clients = clients
        self._topics, self._groups, self._modes = tables.topics, tables.groups, tables.request_modes
        self._queues = queues
        self._assigner = assigner
        self._answer = answer

    @serves(RequestCode.QUERY_ASSIGNMENT)
    def query(self, request: Request) -> Outcome:
        """Return a member's queues; raises ConfigError if the strategy is unknown or needs more input."""
        body: QueryAssignmentBody = request.body
        group = self._clients.group(body.consumer_group)
        if group is None or not group.has_client(body.client_id):
            return reply_with(None)  # Its heartbeat is on its way.
        self._clients.queried(request.peer, group)
        if body.message_model == BROADCASTING:
            return reply_with(self._queues(body.topic) or None)
        mode = self._modes.get(body.topic, body.consumer_group)
        if mode is not None and mode.mode == MODE_POP:
            return self._pop_share(body, group.client_ids, mode.pop_share_queue_num)
        if is_light(body.topic):
            # As in Apache's broker: the queue of a light topic is local, and belongs to one member.
            own = self._topics.queues(body.topic)
            allocated = _allocation(body)(body.client_id, own, sorted(group.client_ids)) if own else None
            return reply_with(allocated)
        question = QueueQuestion(body.consumer_group, body.client_id, body.topic, body.strategy_name)
        waiter = RequestWaiter(request, self._answer, reply_with)
        self._assigner.ask(question, waiter, cost_bytes=len(request.command.body))
        return HOLD

    def _pop_share(self, body: QueryAssignmentBody, client_ids: list[str], share: int) -> Outcome:
        """Return the queues that a member pops, by the members connected here, as Apache's broker does."""
        is_own = is_light(body.topic)  # Name servers do not know other brokers' light queues.
        queues = self._topics.queues(body.topic) if is_own else self._queues(body.topic)
        if not queues:
            return reply_with(None)
        shared = pop_share(body.client_id, queues, sorted(client_ids), share, _allocation(body))
        return reply_rows(partial(QueryAssignmentReply.of, shared, MODE_POP), len(shared))

    @serves(RequestCode.SET_MESSAGE_REQUEST_MODE)
    def set_mode(self, request: Request) -> Outcome:
        """Set how a group reads a topic; its members learn that with their next query."""
        body: MessageRequestMode = request.body
        if body.topic.startswith(RETRY_PREFIX):
            return Reply(ResponseCode.NO_PERMISSION, "retry topic is not allowed to set mode")
        self._topics.require(body.topic)
        self._groups.require(body.consumer_group, request.wall_ms)
        self._modes.set(body)
        return SUCCESS


def _allocation(body: QueryAssignmentBody) -> TopicRule:
    allocate = _ALLOCATIONS.get(body.strategy_name)
    if allocate is None:
        allowed = " or ".join(_ALLOCATIONS)
        raise ConfigError(f"strategy {body.strategy_name!r} for POP or a light topic; {allowed} is allowed")
    return allocate


def reply_with(queues: Queues) -> Outcome:
    """Return the reply to a member."""
    return reply_rows(partial(QueryAssignmentReply.of, queues), len(queues or ()))
