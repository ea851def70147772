"""ACK_MESSAGE, BATCH_ACK_MESSAGE, CHANGE_MESSAGE_INVISIBLETIME: popped messages are done, or need longer.

The acknowledgements of one read are one append, and one entry for each check point.
Upstream: AckMessageProcessor.java, ChangeInvisibleTimeProcessor.java.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libramq.broker.pop.acknowledging import Acknowledging, Popped
from libramq.broker.pop.ordering import Ordering
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, broker_error
from libramq.message import names
from libramq.pop.check_point import Key
from libramq.pop.handle import ORDERED, Handle, decode_handle
from libramq.pop.positions import QueueOfGroup
from libramq.remoting.body.pop import BatchAckBody, BatchAckText
from libramq.remoting.pop_headers import AckMessageHeader, ChangeInvisibleTimeHeader
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import BatchProcessor, Processor, Request, failure

#: Ours: check points that one request acknowledges messages of; each is an entry of the journal.
ACKS_MAX: Final = 1024


class AckMessage:
    """The processor of acknowledgements. waits_for_disk: they are answered once they are on the disk."""

    def __init__(self, acknowledging: Acknowledging, ordering: Ordering, *, waits_for_disk: bool) -> None:
        self._acknowledging = acknowledging
        self._ordering = ordering
        self._waits_for_disk = waits_for_disk

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves singly."""
        return {
            RequestCode.BATCH_ACK_MESSAGE: self.handle_batch,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME: self.change,
        }

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests of which it takes all of a read together."""
        return {RequestCode.ACK_MESSAGE: self.handle_many}

    def handle_many(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Take acknowledgements of one message each."""
        popped: list[Popped] = []
        outcomes: list[Outcome | None] = []
        for request in requests:
            try:
                header: AckMessageHeader = request.header
                handle = self._handle(header)
                if handle.revive_queue == ORDERED:
                    self._ordering.acknowledge(_queue(header), handle.pop_time_ms, header.offset)
                    outcomes.append(SUCCESS)
                else:
                    popped.append(_popped(header, handle))
                    outcomes.append(None)
            except LibraError as error:
                outcomes.append(failure(error, request))
        if not popped:
            return [outcome or SUCCESS for outcome in outcomes]
        done = self._safe(self._acknowledging.acknowledge(popped, requests[0].now), SUCCESS)
        return [done if outcome is None else outcome for outcome in outcomes]

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
        popped: list[tuple[Key, bytes]] = []
        for ack in body.acks:
            topic, bit_set = real_topic(ack), ack.bits()
            if ack.revive_queue != ORDERED:
                key = (topic, ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time)
                popped.append((key, bit_set))
                continue
            queue = (ack.consumer_group, topic, ack.queue_id)
            for offset in self._ordering.in_flight(queue, ack.pop_time):
                if _has(bit_set, offset - ack.start_offset):
                    self._ordering.acknowledge(queue, ack.pop_time, offset)
        return self._safe(self._acknowledging.acknowledge_sets(popped, request.now), SUCCESS)

    def change(self, request: Request) -> Outcome:
        """Have a message invisible for longer, or visible sooner."""
        header: ChangeInvisibleTimeHeader = request.header
        handle = self._handle(header)
        if handle.revive_queue == ORDERED:
            return self._change_ordered(header, handle)
        changed = self._acknowledging.change(
            _popped(header, handle), header.invisible_time, request.now, is_unseen=bool(header.lb_unseen)
        )
        ext = {
            "popTime": str(changed.pop_time_ms),
            "invisibleTime": str(header.invisible_time),
            "reviveQid": str(changed.revive_queue),
        }
        return self._safe(changed.end, Reply(ext=ext))

    def _change_ordered(self, header: ChangeInvisibleTimeHeader, handle: Handle) -> Reply:
        self._acknowledging.check_invisible_time(header.invisible_time)
        pop_time_ms = handle.pop_time_ms
        left_ms = self._ordering.change(_queue(header), pop_time_ms, header.offset, header.invisible_time)
        if left_ms is None:
            raise broker_error(
                ResponseCode.NO_MESSAGE, f"message {header.offset} was acknowledged, or popped again"
            )
        numbers = {"popTime": pop_time_ms, "invisibleTime": left_ms, "reviveQid": ORDERED}
        return Reply(ext={name: str(number) for name, number in numbers.items()})

    def _handle(self, header: AckMessageHeader) -> Handle:
        """Return the handle of a message that exists."""
        self._acknowledging.check(header.topic, header.queue_id, header.offset)
        return decode_handle(header.extra_info)

    def _safe(self, end: int, reply: Reply) -> Outcome:
        return ReplyWhenDurable(end, reply) if end and self._waits_for_disk else reply


def real_topic(ack: BatchAckText) -> str:
    """Return the topic that the messages of an entry were popped from (ExtraInfoUtil.getRealTopic)."""
    if ack.retry not in ("0", "1", "2"):
        raise broker_error(ResponseCode.INVALID_PARAMETER, f"retry {ack.retry!r}; 0, 1 or 2 is allowed")
    if ack.retry == "0":
        return ack.topic
    return names.pop_retry_topic(ack.topic, ack.consumer_group, is_new=ack.retry == "2")


def _queue(header: AckMessageHeader) -> QueueOfGroup:
    return header.consumer_group, header.topic, header.queue_id


def _popped(header: AckMessageHeader, handle: Handle) -> Popped:
    return Popped(
        header.topic,
        header.consumer_group,
        header.queue_id,
        handle.start_offset,
        handle.pop_time_ms,
        header.offset,
    )


def _has(bits: bytes, index: int) -> bool:
    """Return whether a BitSet of Java's has a bit."""
    return index >> 3 < len(bits) and bool(bits[index >> 3] >> (index & 7) & 1)
