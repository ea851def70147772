"""The requests of a consumer's core, as read by the brokers that a test plays.

Two are equal if the same bytes would leave; `ask` is the effect, whose `done` takes the answer.
"""

from dataclasses import dataclass, field

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import PULL_BATCH_SIZE
from libramq.codes import RequestCode
from libramq.fencing import Claim
from libramq.formats.document import decode_body
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import LockBatchBody
from libramq.remoting.body.coordination import (
    GroupJoinBody,
    GroupLeaveBody,
    GroupPollBody,
    GroupReleaseBody,
    QueueGrant,
)
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.remoting.headers import GroupJoinHeader, SendMessageHeaderV2, decode_header
from libramq.rpc.broker_calls import COORDINATED, LEASE_ENDED


@dataclass
class Request:
    ask: fx.Ask = field(default=None, kw_only=True, compare=False, repr=False)


@dataclass
class FetchRoutes(Request):
    """The request to a name server for a topic's route."""

    topics: tuple[str, ...]


@dataclass
class ListTopics(Request):
    """The request to a name server for the names of all topics."""


@dataclass
class ListBrokers(Request):
    """The request to a name server for the brokers of the cluster."""


@dataclass
class SendHeartbeat(Request):
    address: str
    data: HeartbeatData
    lease_ended: bool = False
    coordinated: bool = False


@dataclass
class FetchConsumerList(Request):
    address: str


@dataclass
class QueryOffset(Request):
    queue: MessageQueue
    address: str
    zero_if_not_found: bool = True


@dataclass
class MaxOffset(Request):
    queue: MessageQueue
    address: str


@dataclass
class SearchOffset(Request):
    queue: MessageQueue
    address: str
    timestamp_ms: int


@dataclass
class OpenQueue(Request):
    queue: MessageQueue
    address: str
    claim: Claim


@dataclass
class Pull(Request):
    queue: MessageQueue
    address: str
    offset: int
    count_max: int = PULL_BATCH_SIZE
    claim: Claim | None = None
    topic_start: int = 0
    takes_batches: bool = True

    @property
    def as_records(self):
        """The decoding of its messages, which no broker reads."""
        _, pull, _ = self.ask.done.args
        return pull.as_records


@dataclass
class CommitOffset(Request):
    queue: MessageQueue
    offset: int
    address: str
    claim: Claim | None = None


@dataclass
class SendBack(Request):
    """A send-back. message: the stored message."""

    address: str
    message: MessageExt


@dataclass
class SendCopy(Request):
    queue: MessageQueue
    address: str
    message: MessageExt


@dataclass
class FindGroup(Request):
    address: str


@dataclass
class JoinGroup(Request):
    address: str
    header: GroupJoinHeader
    body: GroupJoinBody


@dataclass
class PollGroup(Request):
    address: str
    member: str
    epoch: int
    body: GroupPollBody


@dataclass
class ReleaseQueues(Request):
    address: str
    member: str
    queues: tuple[QueueGrant, ...]
    leaving: bool = False
    slow: bool = False
    uncommitted: tuple[QueueGrant, ...] = ()


@dataclass
class LeaveGroup(Request):
    address: str
    member: str
    reason: str
    queues: tuple[QueueGrant, ...] = ()


@dataclass
class Unregister(Request):
    address: str


@dataclass
class LockQueues(Request):
    address: str
    queues: tuple[MessageQueue, ...]


@dataclass
class UnlockQueues(Request):
    address: str
    queues: tuple[MessageQueue, ...]


def _queue(ask):
    """Return the queue of a request; broker "a" is at "a:1", and its slave at "a:2"."""
    ext = ask.call.ext
    return MessageQueue(ext["topic"], ask.address.split(":")[0], int(ext["queueId"]))


def _queues(ask):
    return tuple(each.queue for each in decode_body(ask.call.body, LockBatchBody).mq_set)


def _heartbeat(ask):
    data = decode_body(ask.call.body, HeartbeatData)
    ext = ask.call.ext
    return SendHeartbeat(ask.address, data, LEASE_ENDED in ext, COORDINATED in ext, ask=ask)


def _claim(ask):
    ext = ask.call.ext
    return Claim(ext["lbMember"], int(ext["lbQueueEpoch"])) if "lbQueueEpoch" in ext else None


def _pull(ask):
    ext = ask.call.ext
    return Pull(
        _queue(ask),
        ask.address,
        int(ext["queueOffset"]),
        int(ext["maxMsgNums"]),
        _claim(ask),
        int(ext.get("lbTopicStart", 0)),
        ext.get("lbTakesBatches") == "true",
        ask=ask,
    )


def _commit(ask):
    return CommitOffset(_queue(ask), int(ask.call.ext["commitOffset"]), ask.address, _claim(ask), ask=ask)


def _copy(ask):
    header = decode_header(ask.call.command(), SendMessageHeaderV2)
    queue = MessageQueue(header.topic, ask.address.split(":")[0], header.queue_id)
    _, message = ask.done.args
    return SendCopy(queue, ask.address, message, ask=ask)


def _join(ask):
    header = decode_header(ask.call.command(), GroupJoinHeader)
    return JoinGroup(ask.address, header, decode_body(ask.call.body, GroupJoinBody), ask=ask)


def _poll(ask):
    ext, body = ask.call.ext, decode_body(ask.call.body, GroupPollBody)
    return PollGroup(ask.address, ext["lbMember"], int(ext["lbEpoch"]), body, ask=ask)


def _release(ask):
    body = decode_body(ask.call.body, GroupReleaseBody)
    queues, uncommitted = tuple(body.queues), tuple(body.uncommitted)
    member = ask.call.ext["lbMember"]
    return ReleaseQueues(ask.address, member, queues, body.leaving, body.slow, uncommitted, ask=ask)


def _leave(ask):
    body = decode_body(ask.call.body, GroupLeaveBody)
    return LeaveGroup(ask.address, ask.call.ext["lbMember"], body.reason, tuple(body.queues), ask=ask)


_READERS = {
    RequestCode.OPEN_QUEUE: lambda ask: OpenQueue(_queue(ask), ask.address, _claim(ask), ask=ask),
    RequestCode.PULL_MESSAGE: _pull,
    RequestCode.UPDATE_CONSUMER_OFFSET: _commit,
    RequestCode.CONSUMER_SEND_MSG_BACK: lambda ask: SendBack(ask.address, ask.done.args[1], ask=ask),
    RequestCode.SEND_MESSAGE_V2: _copy,
    RequestCode.GROUP_FIND: lambda ask: FindGroup(ask.address, ask=ask),
    RequestCode.GROUP_JOIN: _join,
    RequestCode.GROUP_POLL: _poll,
    RequestCode.GROUP_RELEASE: _release,
    RequestCode.GROUP_LEAVE: _leave,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda ask: ListTopics(ask=ask),
    RequestCode.GET_BROKER_CLUSTER_INFO: lambda ask: ListBrokers(ask=ask),
    RequestCode.HEART_BEAT: _heartbeat,
    RequestCode.UNREGISTER_CLIENT: lambda ask: Unregister(ask.address, ask=ask),
    RequestCode.GET_CONSUMER_LIST_BY_GROUP: lambda ask: FetchConsumerList(ask.address, ask=ask),
    RequestCode.QUERY_CONSUMER_OFFSET: lambda ask: QueryOffset(
        _queue(ask), ask.address, ask.call.ext["setZeroIfNotFound"] == "true", ask=ask
    ),
    RequestCode.GET_MAX_OFFSET: lambda ask: MaxOffset(_queue(ask), ask.address, ask=ask),
    RequestCode.SEARCH_OFFSET_BY_TIMESTAMP: lambda ask: SearchOffset(
        _queue(ask), ask.address, int(ask.call.ext["timestamp"]), ask=ask
    ),
    RequestCode.LOCK_BATCH_MQ: lambda ask: LockQueues(ask.address, _queues(ask), ask=ask),
    RequestCode.UNLOCK_BATCH_MQ: lambda ask: UnlockQueues(ask.address, _queues(ask), ask=ask),
}


def received(effects):
    """Return effects, with the requests among them as brokers receive them."""
    return [_received(each) for each in effects]


def _received(effect):
    if isinstance(effect, fx.FetchRoutes):
        return FetchRoutes(effect.topics, ask=effect)
    return _READERS[effect.call.code](effect) if isinstance(effect, fx.Ask) else effect
