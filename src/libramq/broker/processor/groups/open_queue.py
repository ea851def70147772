"""OPEN_QUEUE: requests of RocketMQ members to open queues, translated for `QueueOpening`, and their replies.

Ours; the contract is in docs/design/coordinated-groups.md.
"""

from collections.abc import Callable, Mapping

from libramq.broker.groups.opening import QueueOpening, QueueToOpen
from libramq.codes import RequestCode
from libramq.fencing import Opened
from libramq.offsets import Claim
from libramq.remoting.headers import OpenQueueHeader
from libramq.rpc.outcome import HOLD, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.rpc.responder import RequestWaiter


class OpenQueue:
    """The processor of openings. answer: sends the reply, once the opening is durable."""

    def __init__(self, opening: QueueOpening, *, answer: Callable[[Request, Outcome], None]) -> None:
        self._opening = opening
        self._answer = answer

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {RequestCode.OPEN_QUEUE: self.handle}

    def handle(self, request: Request) -> Outcome:
        """Open the queue; the reply has the offset to begin at, if any, and the member's former epoch."""
        header: OpenQueueHeader = request.header
        claim = Claim(header.lb_member, header.lb_queue_epoch)
        queue = QueueToOpen(header.consumer_group, header.topic, header.queue_id, claim)
        self._opening.open(queue, RequestWaiter(request, self._answer, _reply))
        return HOLD


def _reply(opened: Opened) -> Reply:
    offset = {} if opened.offset is None else {"offset": str(opened.offset)}
    end = {} if opened.recovered_end is None else {"lbRecoveredEnd": str(opened.recovered_end)}
    start = {"lbTopicStart": str(opened.topic_start)} if opened.topic_start else {}
    attempts = {"lbAttempts": str(opened.attempts)} if opened.attempts else {}
    return Reply(ext=offset | end | start | attempts | {"lbFormerEpoch": str(opened.former_epoch)})
