"""GROUP_JOIN, _POLL, _RELEASE, _LEAVE, _REMOVE, _FIND: members of coordinated groups.

The coordinator answers in its own time: every request but the last is held until it does.
Ours; the contract is in ARCHITECTURE.md, "Coordinated groups".
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from libramq.broker.coordination import Coordination
from libramq.catalog import GroupTable, TopicTable
from libramq.codes import RequestCode
from libramq.groups.coordinator.effect import Answer
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as bodies
from libramq.remoting.body.codec import encode_body
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.request_body import with_body
from libramq.rpc.waiter import RequestWaiter


class GroupMembership:
    """The processor of what members ask their coordinator. answer: gives the answer to a request, in time."""

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
        """Somebody becomes a member, or comes back; the group and its retry topic exist from then on."""
        header = h.decode_header(request.command, h.GroupJoinHeader)
        return with_body(request, bodies.GroupJoinBody, partial(self._join, request, header))

    def _join(self, request: Request, header: h.GroupJoinHeader, body: bodies.GroupJoinBody) -> Outcome:
        self._coordination.require_here(header.consumer_group)
        group = self._groups.require(header.consumer_group, request.wall_ms)
        self._topics.for_retries(group, request.wall_ms)
        self._coordination.join(self._waiter(request), header, body, cost_bytes=len(request.command.body))
        return HOLD

    def poll(self, request: Request) -> Outcome:
        """A member is there, and waits for another assignment."""
        header = h.decode_header(request.command, h.GroupPollHeader)
        return with_body(request, bodies.GroupPollBody, partial(self._poll, request, header))

    def _poll(self, request: Request, header: h.GroupPollHeader, body: bodies.GroupPollBody) -> Outcome:
        self._coordination.require_here(header.consumer_group)
        self._coordination.poll(self._waiter(request), header, body, cost_bytes=len(request.command.body))
        return HOLD

    def release(self, request: Request) -> Outcome:
        """A member has given up queues."""
        header = h.decode_header(request.command, h.GroupMemberHeader)
        return with_body(request, bodies.GroupReleaseBody, partial(self._release, request, header))

    def _release(
        self, request: Request, header: h.GroupMemberHeader, body: bodies.GroupReleaseBody
    ) -> Outcome:
        self._coordination.require_here(header.consumer_group)
        self._coordination.release(self._waiter(request), header, body, cost_bytes=len(request.command.body))
        return HOLD

    def leave(self, request: Request) -> Outcome:
        """A member goes."""
        header = h.decode_header(request.command, h.GroupMemberHeader)
        return with_body(request, bodies.GroupLeaveBody, partial(self._leave, request, header))

    def _leave(self, request: Request, header: h.GroupMemberHeader, body: bodies.GroupLeaveBody) -> Outcome:
        self._coordination.require_here(header.consumer_group)
        self._coordination.leave(self._waiter(request), header, body, cost_bytes=len(request.command.body))
        return HOLD

    def remove(self, request: Request) -> Outcome:
        """An operator takes a member out; recorded with the address the request came from."""
        header = h.decode_header(request.command, h.GroupRemoveHeader)
        self._coordination.require_here(header.consumer_group)
        self._coordination.remove(self._waiter(request), header)
        return HOLD

    def find(self, request: Request) -> Outcome:
        """Where the group's coordinator is; any broker knows."""
        header = h.decode_header(request.command, h.GroupHeader)
        return Reply(ext={"lbCoordinator": self._coordination.address_of(header.consumer_group)})

    def _waiter(self, request: Request) -> RequestWaiter:
        return RequestWaiter(request, self._answer, _reply)


def _reply(answer: Answer[Any]) -> Reply:
    ext = {"lbMember": answer.member} if answer.member is not None else None
    body = encode_body(answer.assignment) if answer.assignment is not None else b""
    return Reply(answer.code, answer.remark, ext, body)
