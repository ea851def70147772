"""Calls from clients to a broker: send, pull, heartbeat, offsets, locks, transactions; each request and the
form of its answer.

Upstream: MQClientAPIImpl.java.
"""

from typing import NamedTuple

from libramq.codes import RequestCode, ResponseCode
from libramq.filter.subscription import SubscriptionData
from libramq.formats.document import decode_body, encode_body
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import (
    CheckClientBody,
    ConsumerList,
    LockBatchBody,
    LockBatchReply,
    QueueRef,
)
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.remoting.command import Command
from libramq.rpc.call import Call, header_call, nothing

#: PullSysFlag.java.
PULL_COMMIT_OFFSET = 1
PULL_SUSPEND = 2
PULL_SUBSCRIPTION = 4
#: Ours: the ext field by which clients declare that they use a coordinator, and brokers that they have one.
COORDINATED = "libraGroups"
#: Ours: the ext field by which a client declares that its lease has ended.
LEASE_ENDED = "libraLeaseEnded"


class SendReply(NamedTuple):
    """The outcome of a send: 0 stored; 10, 11, 12 stored, but not yet safe on disk or at a slave.

    inner_num: the number of messages in a batch stored as one record; the id is then the first message's.
    """

    code: int
    queue_id: int
    queue_offset: int
    offset_message_id: str
    transaction_id: str
    recall_handle: str
    inner_num: str = ""


class HeartbeatReply(NamedTuple):
    """A broker's version, and whether it has coordinators for groups."""

    version: int
    coordinates: bool


class PullReply(NamedTuple):
    """The result of a pull: 0 found, 19 nothing new, 20 nothing matched, 21 the offset is illegal."""

    code: int
    next_offset: int
    min_offset: int
    max_offset: int
    suggested_broker_id: int
    body: bytes


_STORED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.SLAVE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
    }
)
_PULLED = frozenset(
    {
        ResponseCode.SUCCESS,
        ResponseCode.PULL_NOT_FOUND,
        ResponseCode.PULL_RETRY_IMMEDIATELY,
        ResponseCode.PULL_OFFSET_MOVED,
    }
)


def _send_reply(reply: Command) -> SendReply:
    ext = reply.ext
    return SendReply(
        reply.code,
        int(ext["queueId"]),
        int(ext["queueOffset"]),
        ext.get("msgId", ""),
        ext.get("transactionId", ""),
        ext.get("recallHandle", ""),
        ext.get("lbInnerNum", ""),
    )


def send_message(
    header: h.SendMessageHeaderV2, body: bytes, *, oneway: bool = False, is_reply: bool = False
) -> Call[SendReply]:
    """Send one message, or a batch if the header says so. is_reply: it answers another client's request."""
    if is_reply:
        code = RequestCode.SEND_REPLY_MESSAGE_V2
    else:
        code = RequestCode.SEND_BATCH_MESSAGE if header.batch else RequestCode.SEND_MESSAGE_V2
    return Call(code, _send_reply, h.encode_header(header), body, oneway, _STORED)


def end_transaction(header: h.EndTransactionHeader, *, oneway: bool = False) -> Call[None]:
    """Commit or roll back a half message."""
    return Call(RequestCode.END_TRANSACTION, nothing, h.encode_header(header), oneway=oneway)


def recall_message(header: h.RecallMessageHeader) -> Call[str]:
    """Recall a timer message; return its unique id."""
    return header_call(RequestCode.RECALL_MESSAGE, header, lambda reply: reply.ext.get("msgId", ""))


def _pull_reply(reply: Command) -> PullReply:
    ext = reply.ext
    return PullReply(
        reply.code,
        int(ext["nextBeginOffset"]),
        max(0, int(ext["minOffset"])),  # Apache sends -1 for an empty batch queue.
        int(ext["maxOffset"]),
        int(ext.get("suggestWhichBrokerId", "0")),
        reply.body,
    )


def pull_message(header: h.PullMessageHeader) -> Call[PullReply]:
    """Pull the messages of a queue from an offset on."""
    return Call(RequestCode.PULL_MESSAGE, _pull_reply, h.encode_header(header), accepts=_PULLED)


def send_back(header: h.SendBackHeader) -> Call[None]:
    """Have a message redelivered later, through the group's retry topic."""
    return header_call(RequestCode.CONSUMER_SEND_MSG_BACK, header, nothing)


def heartbeat(
    data: HeartbeatData, *, coordinated: bool = False, lease_ended: bool = False
) -> Call[HeartbeatReply]:
    """Send a broker our groups and subscriptions. coordinated: our groups may have a coordinator.

    lease_ended: the broker has not renewed our lease, so we handle nothing.
    """
    ext = {COORDINATED: "1"} if coordinated else {}
    if lease_ended:
        ext[LEASE_ENDED] = "1"
    return Call(
        RequestCode.HEART_BEAT,
        lambda reply: HeartbeatReply(reply.version, reply.ext.get(COORDINATED) == "1"),
        ext,
        encode_body(data),
    )


def check_subscription(client_id: str, group: str, subscription: SubscriptionData) -> Call[None]:
    """Check that a broker supports a subscription: SubscriptionParseFailed for an invalid expression."""
    body = CheckClientBody(client_id=client_id, group=group, subscription_data=subscription)
    return Call(RequestCode.CHECK_CLIENT_CONFIG, nothing, {}, encode_body(body))


def unregister_client(
    client_id: str, *, producer_group: str | None, consumer_group: str | None
) -> Call[None]:
    """Unregister one of our producers or consumers from a broker."""
    header = h.UnregisterClientHeader(
        client_id=client_id, producer_group=producer_group, consumer_group=consumer_group
    )
    return header_call(RequestCode.UNREGISTER_CLIENT, header, nothing)


def consumer_list(group: str) -> Call[list[str]]:
    """Return the client ids of a group's members."""
    return header_call(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        h.GroupHeader(consumer_group=group),
        lambda reply: decode_body(reply.body, ConsumerList).consumer_id_list,
    )


def query_consumer_offset(
    group: str, queue: MessageQueue, *, zero_if_not_found: bool = False
) -> Call[int | None]:
    """Return a group's committed offset in a queue, or None."""
    header = h.QueryConsumerOffsetHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        set_zero_if_not_found=zero_if_not_found,
    )
    return Call(
        RequestCode.QUERY_CONSUMER_OFFSET,
        lambda reply: int(reply.ext["offset"]) if reply.code == ResponseCode.SUCCESS else None,
        h.encode_header(header),
        accepts=frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}),
    )


def update_consumer_offset(
    group: str,
    queue: MessageQueue,
    offset: int,
    *,
    oneway: bool = False,
    member: str | None = None,
    epoch: int | None = None,
    is_returned: bool = False,
    is_mirrored: bool = False,
) -> Call[None]:
    """Commit a group's offset in a queue; raises Fenced.

    member, epoch: the queue's owner in a coordinated group. is_returned: a slave returns the commit to its
    master. is_mirrored: a program that keeps its position elsewhere mirrors it here.
    """
    header = h.UpdateConsumerOffsetHeader(
        consumer_group=group,
        topic=queue.topic,
        queue_id=queue.queue_id,
        commit_offset=offset,
        lb_member=member,
        lb_queue_epoch=epoch,
        lb_returned=is_returned or None,
        lb_mirrored=is_mirrored or None,
    )
    return Call(RequestCode.UPDATE_CONSUMER_OFFSET, nothing, h.encode_header(header), oneway=oneway)


def _offset(reply: Command) -> int:
    return int(reply.ext["offset"])


def max_offset(queue: MessageQueue) -> Call[int]:
    """Return the offset of the queue's next message."""
    header = h.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return header_call(RequestCode.GET_MAX_OFFSET, header, _offset)


class QueueEnd(NamedTuple):
    """The end of a queue. since: the end of the log at the last deletion of its topic; None at Apache's."""

    offset: int
    since: int | None


def queue_end(queue: MessageQueue) -> Call[QueueEnd]:
    """Return the end of a queue, and since when its current topic has existed."""
    header = h.MaxOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, lb_since=True)
    return header_call(RequestCode.GET_MAX_OFFSET, header, _queue_end)


def _queue_end(reply: Command) -> QueueEnd:
    since = reply.ext.get("lbSince")
    return QueueEnd(_offset(reply), None if since is None else int(since))


def min_offset(queue: MessageQueue) -> Call[int]:
    """Return the offset of the queue's oldest message."""
    header = h.QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
    return header_call(RequestCode.GET_MIN_OFFSET, header, lambda reply: max(0, _offset(reply)))


def search_offset(queue: MessageQueue, timestamp_ms: int) -> Call[int]:
    """Return the first message stored at or after a time."""
    header = h.SearchOffsetHeader(
        topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms, boundary_type="lower"
    )
    return header_call(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header, _offset)


def lock_batch(group: str, client_id: str, queues: list[MessageQueue]) -> Call[list[MessageQueue]]:
    """Lock queues; return those we now hold."""
    return header_call(
        RequestCode.LOCK_BATCH_MQ,
        None,
        lambda reply: [ref.queue for ref in decode_body(reply.body, LockBatchReply).lock_ok_mq_set],
        body=_lock_body(group, client_id, queues),
    )


def unlock_batch(group: str, client_id: str, queues: list[MessageQueue]) -> Call[None]:
    """Unlock queues."""
    return header_call(RequestCode.UNLOCK_BATCH_MQ, None, nothing, body=_lock_body(group, client_id, queues))


def _lock_body(group: str, client_id: str, queues: list[MessageQueue]) -> bytes:
    return encode_body(
        LockBatchBody(
            consumer_group=group, client_id=client_id, mq_set=[QueueRef.of(queue) for queue in queues]
        )
    )
