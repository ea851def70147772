"""RECALL_MESSAGE, GET_TIMER_CHECK_POINT, GET_TIMER_METRICS: when a timer message can still be recalled; the
timers' state for slaves and tools.

A recall is itself a message: it waits in the slot of the message that it deletes.
Upstream: RecallMessageProcessor.java, RecallMessageHandle.java, AdminBrokerProcessor.java.
"""

from typing import Final

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import BrokerError, broker_error
from libramq.formats.document import encode_body
from libramq.message import properties as p
from libramq.message.ids import RecallHandle, born_host, decode_recall_handle
from libramq.message.tags import tag_code
from libramq.remoting.headers import RecallMessageHeader
from libramq.rpc.outcome import Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import Request, serves
from libramq.store.log.append import StoreMessage

_TAG: Final = "_RECALL_TAG_"


class TimerRequests:
    """The processors of requests about timer messages."""

    def __init__(self, config: BrokerConfig, files: BrokerFiles) -> None:
        self._files, self._log, self._topics = files.timers, files.log, files.tables.topics
        self._broker_name = config.broker_name
        #: Whether producers may recall messages; changes while the broker runs.
        self.recall_enabled = config.recall_message_enable
        self._region, self._is_slave = config.region_id, config.is_slave
        self._max_delay_ms = config.timer_max_delay_sec * 1000

    @serves(RequestCode.RECALL_MESSAGE)
    def recall(self, request: Request) -> Outcome:
        """Recall a timer message, unless it was delivered."""
        region = {p.MSG_REGION: self._region}  # Java's clients need it to trace a recall.
        try:
            return self._recall(request, region)
        except BrokerError as refused:
            return Reply(refused.response_code, refused.remark, region)

    def _recall(self, request: Request, region: dict[str, str]) -> Outcome:
        if self._is_slave:
            raise broker_error(ResponseCode.SLAVE_NOT_AVAILABLE, "recall failed, broker is slave")
        if not self.recall_enabled:
            raise broker_error(
                ResponseCode.NO_PERMISSION,
                "recall failed, operation is forbidden; set recallMessageEnable=true",
            )
        header: RecallMessageHeader = request.header
        if self._topics.get(header.topic) is None:
            raise broker_error(
                ResponseCode.TOPIC_NOT_EXIST, f"recall failed, the topic[{header.topic}] not exist"
            )
        handle = decode_recall_handle(header.recall_handle)
        if handle is None:
            raise broker_error(ResponseCode.ILLEGAL_OPERATION, "recall handle is invalid")
        if handle.topic != header.topic:
            raise broker_error(ResponseCode.ILLEGAL_OPERATION, "recall failed, topic not match")
        if handle.broker_name != self._broker_name:
            raise broker_error(ResponseCode.ILLEGAL_OPERATION, "recall failed, broker service not available")
        time_ms = p.whole_number(handle.time_ms) or 0
        if not 0 < time_ms - int(request.wall_ms) < self._max_delay_ms:
            raise broker_error(ResponseCode.ILLEGAL_OPERATION, "recall failed, timestamp invalid")
        message = _deletion(handle, header.producer_group, request)
        self._files.timers.accept(message, message.properties_text.decode(), request.wall_ms)
        (result,) = self._log.append_all([message])
        reply = Reply(ext=region | {"msgId": handle.unique_key})
        return ReplyWhenDurable(result.end, reply) if self._log.must_wait else reply

    @serves(RequestCode.GET_TIMER_CHECK_POINT)
    def checkpoint(self, request: Request) -> Outcome:
        """Return the timers' progress, as a slave stores it."""
        return Reply(body=self._files.current_checkpoint.encode())

    @serves(RequestCode.GET_TIMER_METRICS)
    def metrics(self, request: Request) -> Outcome:
        """Return how many timer messages wait, by topic."""
        return Reply(body=encode_body(self._files.timers.metrics.content()))


def _deletion(handle: RecallHandle, producer_group: str | None, request: Request) -> StoreMessage:
    properties = {
        p.TAGS: _TAG,
        p.TIMER_DEL_UNIQKEY: f"{handle.topic}+{handle.unique_key}",
        p.UNIQ_KEY: handle.unique_key,
        p.TIMER_DELIVER_MS: handle.time_ms,
        p.BORN_TIMESTAMP: str(int(request.wall_ms)),
        p.PRODUCER_GROUP: producer_group or "",
    }
    return StoreMessage(
        handle.topic,
        0,
        b"0",
        p.encode_properties(properties),
        tag_code(_TAG),
        born_timestamp_ms=int(request.wall_ms),
        born_host=born_host(request.peer.address),
    )
