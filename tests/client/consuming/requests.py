"""The requests of a consumer's core, as the brokers read them that a test plays.

Two are equal if the same bytes would leave; `ask` is the effect, whose `done` takes the answer.
"""

from dataclasses import dataclass, field

from libramq.client.consuming import effects as fx
from libramq.codes import RequestCode
from libramq.formats.document import decode_body
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import LockBatchBody
from libramq.remoting.body.heartbeat import HeartbeatData
from libramq.rpc.broker_calls import LEASE_ENDED


@dataclass
class Request:
    ask: fx.Ask = field(default=None, kw_only=True, compare=False, repr=False)


@dataclass
class FetchRoutes(Request):
    """A name server's."""

    topics: tuple[str, ...]


@dataclass
class ListTopics(Request):
    """A name server's: the names of all topics."""


@dataclass
class ListBrokers(Request):
    """A name server's: the brokers of the cluster."""


@dataclass
class SendHeartbeat(Request):
    address: str
    data: HeartbeatData
    lease_ended: bool = False


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
    return SendHeartbeat(ask.address, data, LEASE_ENDED in ask.call.ext, ask=ask)


_READERS = {
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda ask: ListTopics(ask=ask),
    RequestCode.GET_BROKER_CLUSTER_INFO: lambda ask: ListBrokers(ask=ask),
    RequestCode.HEART_BEAT: _heartbeat,
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
