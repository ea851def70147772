"""ACK_MESSAGE, BATCH_ACK_MESSAGE at an acting slave: what is acknowledged is not delivered again.

Acknowledgements are in the slave's account (`pop/passed_on.py`): it does not pass these messages on, and its
master acknowledges them when it is back.
Upstream: AckMessageProcessor.appendAck, whose acting slave stores them at another master, where the check
points of a master that returns are not.
"""

from collections.abc import Callable, Iterable, Sequence

from libramq.broker.pop.pops_at_slave import PopsAtSlave
from libramq.broker.processor.messages.ack_message import ACKS_MAX, real_topic
from libramq.codes import ResponseCode
from libramq.errors import broker_error
from libramq.pop.check_point import Key
from libramq.pop.handle import ORDERED, decode_handle
from libramq.remoting.body.pop import BatchAckBody
from libramq.remoting.pop_headers import AckMessageHeader
from libramq.rpc.outcome import SUCCESS, Outcome
from libramq.rpc.request import Processor, Request

#: A check point and those of its messages that are done, as a BitSet of Java's.
Acknowledged = tuple[Key, bytes]


class AckAtSlave:
    """Takes acknowledgements. pops: what was popped here.

    acknowledge: notes what was popped at the master; returns whether this slave passes that on.
    """

    def __init__(self, pops: PopsAtSlave, acknowledge: Callable[[Iterable[Acknowledged]], bool]) -> None:
        self._pops = pops
        self._acknowledge = acknowledge

    def handle(self, refuse: Processor, request: Request) -> Outcome:
        """Take the acknowledgement of one message."""
        header: AckMessageHeader = request.header
        handle = decode_handle(header.extra_info)
        distance = header.offset - handle.start_offset
        if handle.revive_queue == ORDERED or not 0 <= distance < 8 * ACKS_MAX:
            return refuse(request)
        key = (header.topic, header.consumer_group, header.queue_id, handle.start_offset, handle.pop_time_ms)
        bit_set = (1 << distance).to_bytes(distance // 8 + 1, "little")
        return self._take(refuse, request, [(key, bit_set)])

    def handle_batch(self, refuse: Processor, request: Request) -> Outcome:
        """Take acknowledgements of several check points' messages."""
        body: BatchAckBody = request.body
        if len(body.acks) > ACKS_MAX:
            raise broker_error(ResponseCode.INVALID_PARAMETER, f"{len(body.acks)} check points; {ACKS_MAX}")
        if any(ack.revive_queue == ORDERED for ack in body.acks):
            return refuse(request)
        done = [
            ((real_topic(ack), ack.consumer_group, ack.queue_id, ack.start_offset, ack.pop_time), ack.bits())
            for ack in body.acks
        ]
        return self._take(refuse, request, done)

    def _take(self, refuse: Processor, request: Request, done: Sequence[Acknowledged]) -> Outcome:
        """Take what was popped here, and what the master had popped."""
        of_master = [each for each in done if not self._pops.has(each[0])]
        if len(of_master) < len(done):
            self._pops.acknowledge(done, request.now)
        is_taken = not of_master or self._acknowledge(of_master)
        return SUCCESS if is_taken else refuse(request)
