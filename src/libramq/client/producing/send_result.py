"""The result of a send: how safely the message is stored (SendStatus), and its ids and position.

Upstream: client/producer/SendResult.java, SendStatus.java.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from itertools import repeat
from typing import Final, NamedTuple, overload

from libramq.codes import ResponseCode
from libramq.message.ids import inner_offset_ids
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
    """message_id is the producer's unique id; offset_message_id encodes where the message is stored.

    recall_handle: recalls a message that is still delayed; see `Producer.recall`.
    """

    status: SendStatus
    message_id: str
    offset_message_id: str
    queue: MessageQueue
    queue_offset: int
    transaction_id: str = ""
    recall_handle: str = ""


def send_results(ids: Sequence[str], queue: MessageQueue, reply: SendReply) -> Sequence[SendResult]:
    """Return the results of a request's messages. ids: one unique id per message.

    A batch is contiguous in its queue.
    """
    queue = MessageQueue(queue.topic, queue.broker_name, reply.queue_id)
    status, offset_id = _STATUS[reply.code], reply.offset_message_id
    if len(ids) > 1:
        return BatchResults(ids, status, queue, reply)
    if "," in offset_id:  # One message has one position.
        offset_id = ""
    return [
        SendResult(
            status, ids[0], offset_id, queue, reply.queue_offset, reply.transaction_id, reply.recall_handle
        )
    ]


class BatchResults(Sequence[SendResult]):
    """The results of a batch, each created on access.

    Many callers read each one once, so none is cached.
    """

    __slots__ = ("_ids", "_offset_ids", "_queue", "_reply", "_status")

    def __init__(self, ids: Sequence[str], status: SendStatus, queue: MessageQueue, reply: SendReply) -> None:
        self._ids = ids
        self._status = status
        self._queue = queue
        self._reply = reply
        offset_ids = reply.offset_message_id.split(",")
        if reply.inner_num == str(len(ids)):
            offset_ids = inner_offset_ids(offset_ids[0], len(ids))
        self._offset_ids = offset_ids if len(offset_ids) == len(ids) else [""] * len(ids)

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, at: int) -> SendResult: ...
    @overload
    def __getitem__(self, at: slice) -> list[SendResult]: ...
    def __getitem__(self, at: int | slice) -> SendResult | list[SendResult]:
        if isinstance(at, slice):
            return list(self)[at]
        reply, unique_id, offset_id = self._reply, self._ids[at], self._offset_ids[at]
        queue_offset = reply.queue_offset + range(len(self._ids))[at]
        return SendResult(
            self._status,
            unique_id,
            offset_id,
            self._queue,
            queue_offset,
            reply.transaction_id,
            reply.recall_handle,
        )

    def __iter__(self) -> Iterator[SendResult]:
        reply, first = self._reply, self._reply.queue_offset
        columns = zip(
            repeat(self._status),
            self._ids,
            self._offset_ids,
            repeat(self._queue),
            range(first, first + len(self._ids)),
            repeat(reply.transaction_id),
            repeat(reply.recall_handle),
        )
        return map(tuple.__new__, repeat(SendResult), columns)  # A quarter of the constructor's time.
