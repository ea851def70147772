"""Calls from a slave to its master. Tables are returned undecoded, for a thread to decode.

Upstream: BrokerOuterAPI.java, SlaveSynchronize.java.
"""

from hashlib import sha256

from libramq.codes import RequestCode
from libramq.formats.document import decode_body
from libramq.remoting.body.replication import HAStatus
from libramq.remoting.command import Command
from libramq.remoting.headers import ViewMessageHeader
from libramq.rpc.call import Call, header_call


def record_at(physical_offset: int, ours: bytes) -> Call[bytes]:
    """Return the record at an offset of the commit log; SYSTEM_ERROR if there is none.

    ours: what we have there. If the master has the same, it answers also if no queue refers to it any more.
    """
    header = ViewMessageHeader(offset=physical_offset, lb_sha256=sha256(ours).hexdigest())
    return header_call(RequestCode.VIEW_MESSAGE_BY_ID, header, _body)


def all_topics() -> Call[bytes]:
    """Return the topics, a TopicConfigSerializeWrapper."""
    return header_call(RequestCode.GET_ALL_TOPIC_CONFIG, None, _body)


def all_groups() -> Call[bytes]:
    """Return the groups, a SubscriptionGroupWrapper."""
    return header_call(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, None, _body)


def all_consumer_offsets() -> Call[bytes]:
    """Return the committed offsets, the content of consumerOffset.json."""
    return header_call(RequestCode.GET_ALL_CONSUMER_OFFSET, None, _body)


def all_delay_offsets() -> Call[bytes]:
    """Return the delivered offset of each delay level, the content of delayOffset.json."""
    return header_call(RequestCode.GET_ALL_DELAY_OFFSET, None, _body)


def all_request_modes() -> Call[bytes]:
    """Return by which mode groups read, the content of messageRequestMode.json."""
    return header_call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE, None, _body)


def timer_checkpoint() -> Call[bytes]:
    """Return how far the master's timers have come, the first 56 bytes of its timercheck."""
    return header_call(RequestCode.GET_TIMER_CHECK_POINT, None, _body)


def timer_metrics() -> Call[bytes]:
    """Return how many timer messages wait at the master, the content of timermetrics."""
    return header_call(RequestCode.GET_TIMER_METRICS, None, _body)


def log_end() -> Call[int]:
    """Return where the master's log ends."""
    return header_call(RequestCode.GET_BROKER_HA_STATUS, None, _log_end)


def _log_end(reply: Command) -> int:
    return decode_body(reply.body, HAStatus).master_commit_log_max_offset


def _body(reply: Command) -> bytes:
    return reply.body
