"""GROUP_JOIN, _POLL, _RELEASE, _LEAVE, _REMOVE, _FIND: members of coordinated groups.

The coordinator answers in its own time: every request but the last is held until it does.
Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from libramq.broker.groups.coordination import Coordination
from libramq.catalog import GroupTable, TopicTable
from libramq.codes import RequestCode
from libramq.formats.document import encode_body
from libramq.groups.coordinator import group_request as rq
from libramq.groups.coordinator.effect import Answer
from libramq.groups.coordinator.group_assignment import Assignment
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.request_body import with_body
from libramq.rpc.waiter import RequestWaiter


class GroupRequests:
    """The processor of members' requests to their coordinator. answer: sends a reply, when it is ready."""

    def __init__(
        self,
        *,
        coordination: Coordination,
        groups: GroupTable,
        topics: TopicTable,
        answer: Callable[[Request, Outcome], None],
    ) -> None:
        self._answer = answer
        self._coordination = coordination
        self._groups = groups
        self._topics = topics

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.GROUP_JOIN: self.join,
            RequestCode.GROUP_POLL: self.poll,
            RequestCode.GROUP_RELEASE: self.release,
            RequestCode.GROUP_LEAVE: self.leave,
            RequestCode.GROUP_REMOVE: self.remove,
            RequestCode.GROUP_FIND: self.find,
        }

    def join(self, request: Request) -> Outcome:
        """Admit a client; the group and its retry topic exist from then on."""
        header = h.decode_header(request.command, h.GroupJoinHeader)
        return with_body(request, bodies.GroupJoinBody, partial(self._join, request, header))

    def _join(self, request: Request, header: h.GroupJoinHeader, body: bodies.GroupJoinBody) -> Outcome:
        self._coordination.require_here(header.consumer_group)
        self._groups.require_not_taken(header.consumer_group)
        group = self._groups.require(header.consumer_group, request.wall_ms)
        self._topics.for_retries(group, request.wall_ms)
        join = rq.Join(
            group=header.consumer_group,
            client_id=header.client_id,
            session_ms=header.lb_session_ms,
            subscriptions=body.subscriptions,
            member=header.lb_member,
            instance=header.lb_instance,
            revoke_timeout_ms=header.lb_revoke_timeout_ms,
            if_free=bool(header.lb_if_free),
            strategy=body.strategy,
            capacity=body.capacity,
            held=bodies.epochs_of(body.held),
        )
        self._coordination.join(self._waiter(request), join, cost_bytes=len(request.command.body))
        return HOLD

    def poll(self, request: Request) -> Outcome:
        """Hold a member's poll until its assignment changes."""
        header = h.decode_header(request.command, h.GroupPollHeader)
        return with_body(request, bodies.GroupPollBody, partial(self._poll, request, header))

    def _poll(self, request: Request, header: h.GroupPollHeader, body: bodies.GroupPollBody) -> Outcome:
        poll = rq.Poll(
            group=header.consumer_group,
            member=header.lb_member,
            epoch=header.lb_epoch,
            held=bodies.epochs_of(body.held),
            duplicates=body.duplicates,
            is_leaving=body.leaving,
        )
        self._coordination.poll(self._waiter(request), poll, cost_bytes=len(request.command.body))
        return HOLD

    def release(self, request: Request) -> Outcome:
        """Free the queues that a member has released."""
        header = h.decode_header(request.command, h.GroupMemberHeader)
        return with_body(request, bodies.GroupReleaseBody, partial(self._release, request, header))

    def _release(
        self, request: Request, header: h.GroupMemberHeader, body: bodies.GroupReleaseBody
    ) -> Outcome:
        release = rq.Release(
            group=header.consumer_group,
            member=header.lb_member,
            queues=bodies.epochs_of(body.queues),
            is_leaving=body.leaving,
            committed=_committed(body),
        )
        self._coordination.release(self._waiter(request), release, cost_bytes=len(request.command.body))
        return HOLD

    def leave(self, request: Request) -> Outcome:
        """Remove a member that leaves."""
        header = h.decode_header(request.command, h.GroupMemberHeader)
        return with_body(request, bodies.GroupLeaveBody, partial(self._leave, request, header))

    def _leave(self, request: Request, header: h.GroupMemberHeader, body: bodies.GroupLeaveBody) -> Outcome:
        leave = rq.Leave(
            group=header.consumer_group,
            member=header.lb_member,
            reason=body.reason,
            committed=bodies.epochs_of(body.queues),
        )
        self._coordination.leave(self._waiter(request), leave, cost_bytes=len(request.command.body))
        return HOLD

    def remove(self, request: Request) -> Outcome:
        """Remove a member for an operator; recorded with the address that the request came from."""
        header = h.decode_header(request.command, h.GroupRemoveHeader)
        host = request.peer.address.rpartition(":")[0]
        remove = rq.Remove(
            group=header.consumer_group, name=header.lb_name, operator=header.lb_operator, host=host
        )
        self._coordination.remove(self._waiter(request), remove)
        return HOLD

    def find(self, request: Request) -> Outcome:
        """Return the address of the group's coordinator; any broker answers."""
        header = h.decode_header(request.command, h.GroupHeader)
        return Reply(ext={"lbCoordinator": self._coordination.address_of(header.consumer_group)})

    def _waiter(self, request: Request) -> RequestWaiter:
        return RequestWaiter(request, self._answer, _reply)


def _reply(answer: Answer[Any]) -> Reply:
    ext = {"lbMember": answer.member} if answer.member is not None else None
    body = encode_body(_body(answer.assignment)) if answer.assignment is not None else b""
    return Reply(answer.code, answer.remark, ext, body)


def _body(assignment: Assignment) -> bodies.GroupAssignment:
    return bodies.GroupAssignment(
        epoch=assignment.epoch,
        mode=assignment.mode,
        queues=[bodies.QueueGrant.of(queue, epoch) for queue, epoch in assignment.queues.items()],
        revoke=[bodies.QueueGrant.of(queue, epoch) for queue, epoch in assignment.revoke.items()],
        warning=assignment.warning,
    )


def _committed(body: bodies.GroupReleaseBody) -> frozenset[MessageQueue]:
    """Return the queues whose handled messages are all committed; none if the member does not know."""
    if body.uncommitted is None:
        return frozenset()
    return frozenset(bodies.epochs_of(body.queues).keys() - bodies.epochs_of(body.uncommitted).keys())
