"""The result of a send: the broker's status for a message, and its position.

Upstream: client/producer/SendResult.java, SendStatus.java.
"""

from collections.abc import Sequence
from enum import Enum
from itertools import repeat
from typing import Final, NamedTuple

from libramq.codes import ResponseCode
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import SendReply


class SendStatus(Enum):
    """The safety with which a message is stored."""

    SEND_OK = "SEND_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"


_STATUS: Final = {
    int(ResponseCode.SUCCESS): SendStatus.SEND_OK,
    int(ResponseCode.FLUSH_DISK_TIMEOUT): SendStatus.FLUSH_DISK_TIMEOUT,
    int(ResponseCode.FLUSH_SLAVE_TIMEOUT): SendStatus.FLUSH_SLAVE_TIMEOUT,
    int(ResponseCode.SLAVE_NOT_AVAILABLE): SendStatus.SLAVE_NOT_AVAILABLE,
}


class SendResult(NamedTuple):
    """message_id is the producer's unique id; offset_message_id is the position where it is stored.

    recall_handle: takes a message back that waits for its time; see `Producer.recall`.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""


def send_results(ids: Sequence[str], queue: MessageQueue, reply: SendReply) -> list[SendResult]:
    """Return one result per message of a request: a batch is contiguous in its queue."""
    status = _STATUS[reply.code]
    stored_in = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    offset_ids = reply.offset_message_id.split(",")
    if len(offset_ids) != len(ids):
        offset_ids = [""] * len(ids)
    offsets = range(reply.queue_offset, reply.queue_offset + len(ids))
    columns = zip(
        repeat(status),
        ids,
        offset_ids,
        repeat(stored_in),
        offsets,
        repeat(reply.transaction_id),
        repeat(reply.recall_handle),
    )
    return [SendResult._make(each) for each in columns]  # Half the time of a call with seven arguments.
