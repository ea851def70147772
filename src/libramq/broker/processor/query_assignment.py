"""QUERY_ASSIGNMENT, SET_MESSAGE_REQUEST_MODE: which queues a member reads, where it does not decide itself.

    all members ask, all queues are here    the group's sticky assignment, over all its topics
    some allocate for themselves            what the strategy gives that the request names: theirs, too
    queues at several brokers               likewise: members ask any of them, and all must say the same

POP is not served yet: every queue is to be pulled.
Upstream: QueryAssignmentProcessor.java.
"""

from collections.abc import Callable, Sequence

from libramq.balance import strategy_named
from libramq.broker.consumer_clients import ConsumerClients
from libramq.catalog import GroupTable, TopicTable
from libramq.codes import ResponseCode
from libramq.groups.consumer_group import ConsumerGroup
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue
from libramq.remoting.body.assignment import (
    MODE_PULL,
    MessageRequestModeBody,
    QueryAssignmentBody,
    QueryAssignmentReply,
    QueueAssignment,
)
from libramq.remoting.body.codec import decode_body, encode_body
from libramq.remoting.body.heartbeat import BROADCASTING
from libramq.rpc.endpoint import Request
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.transport.server import Peer


class QueryAssignment:
    """The processor of members that ask for their queues.

    queues: all queues of a topic, at whichever broker, sorted; none when there is no such topic, None while
    it is not known which there are.
    """

    def __init__(
        self,
        *,
        broker_name: str,
        clients: ConsumerClients,
        topics: TopicTable,
        groups: GroupTable,
        queues: Callable[[str], Sequence[MessageQueue] | None],
    ) -> None:
        self._broker_name = broker_name
        self._clients = clients
        self._topics = topics
        self._groups = groups
        self._queues = queues

    def query(self, request: Request) -> Outcome:
        """A member's queues of a topic; ConfigError for a strategy that is not known or needs more."""
        body = decode_body(request.command.body, QueryAssignmentBody)
        assigned = self._assigned(request, body)
        reply = QueryAssignmentReply(
            message_queue_assignments=None
            if assigned is None
            else [QueueAssignment.of(queue) for queue in assigned]
        )
        return Reply(body=encode_body(reply))

    def set_mode(self, request: Request) -> Outcome:
        """How a group is to read a topic: by pulling, so far."""
        body = decode_body(request.command.body, MessageRequestModeBody)
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

    def _assigned(self, request: Request, body: QueryAssignmentBody) -> Sequence[MessageQueue] | None:
        group = self._clients.group(body.consumer_group)
        if group is None or not group.has_client(body.client_id):
            return None  # Its heartbeat is on its way; upstream's strategies would take everything from it.
        self._clients.asked(request.peer, group)  # Before its queues are known, so that they will be.
        queues = self._queues(body.topic)
        if not queues or body.message_model == BROADCASTING:
            return queues or None
        now_ms = request.monotonic_ms
        if group.allocates or not self._are_here(queues):
            return self._by_strategy(group, body, queues, now_ms)
        if not group.assignment.is_current(group.version, body.topic, queues, now_ms=now_ms):
            everything = self._group_queues(group)
            if everything is None:
                return None
            if not self._are_here(everything):
                return self._by_strategy(group, body, queues, now_ms)
            group.assignment.update(group.version, _members(group), everything, now_ms=now_ms)
        answer = group.assignment.ask(body.client_id, body.topic, now_ms=now_ms)
        if answer is None:
            return None
        self._clients.ask_again(group, answer.ask_again)
        return answer.queues

    def _by_strategy(
        self,
        group: ConsumerGroup[Peer],
        body: QueryAssignmentBody,
        queues: Sequence[MessageQueue],
        now_ms: int,
    ) -> Sequence[MessageQueue]:
        client_ids = sorted(self._clients.client_ids(group))
        share = strategy_named(body.strategy_name)(body.client_id, queues, client_ids)
        group.assignment.give(body.client_id, body.topic, share, now_ms=now_ms)
        return share

    def _group_queues(self, group: ConsumerGroup[Peer]) -> list[MessageQueue] | None:
        """The queues of all topics of a group; None while those of one are not known."""
        everything: list[MessageQueue] = []
        for topic in group.subscriptions:
            queues = self._queues(topic)
            if queues is None:
                return None
            everything += queues
        return everything

    def _are_here(self, queues: Sequence[MessageQueue]) -> bool:
        return all(queue.broker_name == self._broker_name for queue in queues)


def _members(group: ConsumerGroup[Peer]) -> dict[str, frozenset[str]]:
    """Client ids with their topics."""
    members: dict[str, frozenset[str]] = {}
    for member in group.members.values():
        topics = frozenset(member.subscriptions)
        members[member.client_id] = members.get(member.client_id, frozenset()) | topics
    return members
