"""ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME: acknowledgements of popped messages, and when
they are answered.

The acknowledgements of one read are one append, with one entry for each check point.
Upstream: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libramq.broker.pop.acknowledging import Acknowledging, Popped
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.message import names
from libramq.pop.check_point import AckSet
from libramq.pop.handle import ORDERED
from libramq.remoting.body.pop import BatchAckBody, BatchAckText
from libramq.remoting.headers import AckMessageHeader, ChangeInvisibleTimeHeader
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import BatchProcessor, Request, failure, serves

#: Ours: check points per request; each takes an entry of the journal.
ACKS_MAX: Final = 1024


class AckMessage:
    """The processor of acknowledgements. waits_for_disk: replies wait until they are on the disk."""

    def __init__(self, acknowledging: Acknowledging, *, waits_for_disk: bool) -> None:
        self._acknowledging = acknowledging
        self._waits_for_disk = waits_for_disk

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests that are served in batches, all of one read together."""
        return {RequestCode.ACK_MESSAGE: self.handle_many}

    def handle_many(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Take acknowledgements of one message each."""
        popped = [_popped(request.header) for request in requests]
        acknowledged = self._acknowledging.acknowledge(popped, requests[0].now)
        done, refused = self._safe(acknowledged.end, SUCCESS), acknowledged.refused
        if not refused:
            return [done] * len(requests)
        return [
            failure(refused[position], request) if position in refused else done
            for position, request in enumerate(requests)
        ]

    @serves(RequestCode.BATCH_ACK_MESSAGE)
    def handle_batch(self, request: Request) -> Outcome:
        """Take acknowledgements of several check points' messages."""
        body: BatchAckBody = request.body
        if not body.acks:
            return Reply(ResponseCode.NO_MESSAGE, "the batch of acknowledgements is empty")
        if len(body.acks) > ACKS_MAX:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"a batch acknowledges {len(body.acks)} check points; {ACKS_MAX} are allowed",
            )
        popped: list[AckSet] = []
        ordered: list[AckSet] = []
        for ack in body.acks:
            (ordered if ack.revive_queue == ORDERED else popped).append(ack_set(ack))
        return self._safe(self._acknowledging.acknowledge_sets(popped, request.now, ordered=ordered), SUCCESS)

    @serves(RequestCode.CHANGE_MESSAGE_INVISIBLETIME)
    def change(self, request: Request) -> Outcome:
        """Make a message invisible for longer, or visible sooner."""
        header: ChangeInvisibleTimeHeader = request.header
        changed = self._acknowledging.change(
            _popped(header), header.invisible_time, request.now, is_unseen=bool(header.lb_unseen)
        )
        ext = {
            "popTime": str(changed.pop_time_ms),
            "invisibleTime": str(changed.invisible_ms),
            "reviveQid": str(changed.revive_queue),
        }
        return self._safe(changed.end, Reply(ext=ext))

    def _safe(self, end: int, reply: Reply) -> Outcome:
        return ReplyWhenDurable(end, reply) if end and self._waits_for_disk else reply


def ack_set(ack: BatchAckText) -> AckSet:
    """Return the check point that an entry names, and its messages that are done."""
    key = _real_topic(ack), ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time
    return key, ack.bits()


def _real_topic(ack: BatchAckText) -> str:
    """Return the topic from which the messages of an entry were popped (ExtraInfoUtil.getRealTopic)."""
    if ack.retry not in ("0", "1", "2"):
        raise broker_error(ResponseCode.INVALID_PARAMETER, f"retry {ack.retry!r}; 0, 1 or 2 is allowed")
    if ack.retry == "0":
        return ack.topic
    return names.pop_retry_topic(ack.topic, ack.consumer_group, is_new=ack.retry == "2")


def _popped(header: AckMessageHeader) -> Popped:
    return Popped(header.topic, header.consumer_group, header.queue_id, header.offset, header.extra_info)
