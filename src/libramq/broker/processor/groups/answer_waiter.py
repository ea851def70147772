"""The waiter of a member's request to its coordinator: replies with what the coordinator decided.

    answer ─► the queues that it newly grants, and that are here, are opened ─► reply, once that is durable

So a member whose coordinator also stores its queues pulls right after one answer. Queues elsewhere, and those
that could not be opened, it opens itself (OPEN_QUEUE), as a member of 0.1.0 opens all of them.
Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import Any, NamedTuple

from libramq.broker.groups.opening import Openings, QueueOpening
from libramq.fencing import Claim
from libramq.formats.document import encode_body
from libramq.groups.coordinator.coordinator import Coordinator
from libramq.groups.coordinator.effect import Answer
from libramq.message.queue import MessageQueue
from libramq.remoting.body import coordination as bodies
from libramq.rpc.outcome import Outcome, Reply
from libramq.rpc.request import Request
from libramq.rpc.responder import RequestWaiter


class AnswerWaiter(RequestWaiter):
    """A waiter for the coordinator's answer."""

    __slots__ = ()

    def __init__(self, request: Request, answer: Callable[[Request, Outcome], None]) -> None:
        super().__init__(request, answer, _reply)


class AskingMember(NamedTuple):
    """The member that joins or polls. member: None for one that joins; the answer names it.

    listed: the queues that it has. They are not opened with the answer: pulls and commits under its last
    claim may be on their way, and would be fenced.
    """

    group: str
    member: str | None
    listed: Container[MessageQueue]


class AssignmentWaiter(RequestWaiter):
    """A waiter for an assignment, whose new queues are opened with the answer."""

    __slots__ = ("_asking", "_coordinator", "_opening")

    def __init__(
        self,
        request: Request,
        answer: Callable[[Request, Outcome], None],
        asking: AskingMember,
        opening: QueueOpening,
        coordinator: Coordinator[Any, Any],
    ) -> None:
        super().__init__(request, answer, _reply)
        self._asking = asking
        self._opening = opening
        self._coordinator = coordinator

    def answer(self, result: Answer[Any]) -> None:
        """Open the queues that are new to the member, and reply."""
        group, member, listed = self._asking
        member = result.member or member
        queues = result.assignment.queues if result.assignment is not None else {}
        claims = {
            queue: Claim(member, epoch)
            for queue, epoch in queues.items()
            if member is not None and queue not in listed
        }
        # For the records: the member may not have sent this broker a heartbeat yet.
        client_of = partial(self._coordinator.client_of, group)
        openings = self._opening.open_granted(group, claims, self.connection, client_of=client_of)
        if openings:
            self._coordinator.opened(group, {queue: claims[queue] for queue in openings})
        self._opening.when_durable(openings, partial(self._send, result))

    def _send(self, result: Answer[Any], openings: Openings) -> None:
        self._answer(self._request, _reply(result, openings))


def _reply(answer: Answer[Any], openings: Openings | None = None) -> Reply:
    ext = {"lbMember": answer.member} if answer.member is not None else None
    assignment = answer.assignment
    if assignment is None:
        return Reply(answer.code, answer.remark, ext)
    grant = bodies.QueueGrant.of
    body = bodies.GroupAssignment(
        epoch=assignment.epoch,
        mode=assignment.mode,
        queues=[grant(queue, epoch) for queue, epoch in assignment.queues.items()],
        revoke=[grant(queue, epoch) for queue, epoch in assignment.revoke.items()],
        opened=[bodies.QueueOpened.of(queue, opened) for queue, opened in (openings or {}).items()],
        warning=assignment.warning,
        knows_slow=True,
    )
    return Reply(answer.code, answer.remark, ext, encode_body(body))
