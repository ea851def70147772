"""CONSUMER_SEND_MSG_BACK: a consumer failed to handle a message and requests its redelivery.

Upstream: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

from collections.abc import Mapping
from typing import Final

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import SendBack as SendBackOperation
from libramq.broker.messages.message_log import MessageLog
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.messages.schedule import DelaySchedule
from libramq.broker.processor.messages.stored_reply import refusal, stored_reply
from libramq.catalog import GroupTable
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.remoting.headers import SendBackHeader, decode_header
from libramq.rpc.outcome import SUCCESS, Outcome, Reply
from libramq.rpc.request import Processor, Request
from libramq.store.log.append import stored_again
from libramq.store.message_store import MessageStore

_UNSTORABLE: Final = (p.NUL, p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR)


class SendBack:
    """The processor of messages that are sent back."""

    def __init__(
        self,
        *,
        store: MessageStore,
        log: MessageLog,
        groups: GroupTable,
        redelivery: Redelivery,
        schedule: DelaySchedule,
        authorizer: Authorizer,
    ) -> None:
        self._store = store
        self._log = log
        self._groups = groups
        self._redelivery = redelivery
        self._schedule = schedule
        self._authorizer = authorizer

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.CONSUMER_SEND_MSG_BACK: self.handle,
        }

    def handle(self, request: Request) -> Outcome:
        """Store a copy for another attempt, or as a dead letter.

        One that was no attempt (`lbUncounted`, of our members) comes again whatever the number of attempts.
        """
        header = decode_header(request.command, SendBackHeader)
        if any(mark in (header.origin_msg_id or "") for mark in _UNSTORABLE):
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                "the originMsgId, which is stored as a property, has a NUL or a separator in it",
            )
        group = self._groups.require(header.group, request.wall_ms)
        if group.retry_queue_nums <= 0:
            return SUCCESS
        message = self._store.message_at(header.offset)
        if message is None:
            return Reply(ResponseCode.SYSTEM_ERROR, f"look message by offset failed, {header.offset}")
        if not _is_meant(message, header.origin_msg_id):
            return Reply(
                ResponseCode.SYSTEM_ERROR,
                f"look message by offset failed, {header.offset}: {header.origin_msg_id} is gone",
            )
        # The request names a topic, but the offset decides which message the group gets to read.
        sent_back = SendBackOperation(request.principal, header.group, (message.topic,))
        require_permission(self._authorizer, sent_back)
        times_max = group.retry_max_times
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            times_max = header.max_reconsume_times
        if header.lb_uncounted:
            times_max = message.reconsume_times + 1
        target = self._redelivery.target(
            group,
            reconsume_times=message.reconsume_times,
            reconsume_times_max=times_max,
            delay_level=header.delay_level,
            wall_ms=request.wall_ms,
        )
        properties = dict(message.properties)
        properties.setdefault(p.RETRY_TOPIC, message.topic)
        properties.setdefault(p.ORIGIN_MESSAGE_ID, header.origin_msg_id or message.offset_id)
        properties[p.WAIT] = "false"
        # Properties of an earlier delay do not apply to this one.
        for name in (p.DELAY, p.REAL_TOPIC, p.REAL_QUEUE_ID):
            properties.pop(name, None)
        if target.delay_level:
            properties[p.DELAY] = str(target.delay_level)
        again = stored_again(
            message,
            target.config.topic_name,
            target.queue_id,
            properties,
            reconsume_times=message.reconsume_times + (not header.lb_uncounted),
        )
        if target.delay_level:
            self._schedule.delay(again, str(target.delay_level))
        result = self._log.append([again])[0]
        if not result.is_ok:
            return refusal(self._log, result)
        return stored_reply(self._log, SUCCESS, result)


def _is_meant(message: MessageExt, origin_msg_id: str | None) -> bool:
    """Return whether a request names this message, and not a lost one that had the same offset.

    Under ASYNC_FLUSH a power cut can lose messages that members still handle. Clients send a message's unique
    id or its offset id; only the end of an offset id is compared, since it begins with the broker's address,
    which may have changed.
    """
    unique_id = message.properties.get(p.UNIQ_KEY)
    if not origin_msg_id or not unique_id or origin_msg_id == unique_id:
        return True
    return origin_msg_id.upper().endswith(f"{message.physical_offset:016X}")
