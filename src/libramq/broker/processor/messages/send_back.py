"""CONSUMER_SEND_MSG_BACK: a consumer failed to handle a message, which is redelivered later, or passed on to
another member that has a handler for it.

Upstream: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

import re
from collections.abc import Mapping
from typing import Final

from libramq.broker.files.message_log import MessageLog
from libramq.broker.messages.redelivery import (
    DELAY_OF_BROKER,
    FIRST_DELAY_LEVEL,
    SendingBack,
    SentBack,
    error_properties,
)
from libramq.broker.processor.client_calls import CalledClient, ClientCalls
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import BrokerError
from libramq.formats.document import decode_body
from libramq.remoting import headers as h
from libramq.remoting.body.administration import ConsumeDirectlyResult
from libramq.remoting.command import Command
from libramq.rpc.outcome import SUCCESS, Outcome, ReplyWhenDurable
from libramq.rpc.request import Request, failure, serves

#: ConsumerSettings: the upper bound of consume_timeout_ms.
PASSED_ON_MS_MAX: Final = 86_400_000
#: CMResult: success, concurrently and in order.
_DONE: Final = ("CR_SUCCESS", "CR_COMMIT")
_LEVEL: Final = re.compile(r"-?[0-9]{1,2}")


class SendBack:
    """The processor of messages sent back. calls: passes retries on to other members."""

    def __init__(self, sending_back: SendingBack, log: MessageLog, calls: ClientCalls) -> None:
        self._sending_back = sending_back
        self._log = log
        self._calls = calls

    @serves(RequestCode.CONSUMER_SEND_MSG_BACK)
    def handle(self, request: Request) -> Outcome:
        """Store a copy for another attempt, or as a dead letter."""
        header: h.SendBackHeader = request.header
        origin_id, times_max = header.origin_msg_id or "", header.max_reconsume_times
        sent = self._sending_back.find(
            header.group, header.offset, origin_id, times_max, request.principal, request.wall_ms
        )
        if sent is None:
            return SUCCESS
        sent = sent._replace(error=error_properties(header.lb_error_type, header.lb_error_text))
        if header.lb_pass_on_ms is not None:
            return self._pass_on(request, sent, header.lb_pass_on_ms)
        is_counted = not header.lb_uncounted
        return _stored(self._sending_back.again(sent, header.delay_level, is_counted=is_counted))

    def _pass_on(self, request: Request, sent: SentBack, timeout_ms: int) -> Outcome:
        """Let a member that subscribes to a retry's topic handle it, and answer with the outcome."""
        member = self._calls.subscriber(sent.group.group_name, sent.topic, request.peer)
        record = self._log.record_at(request.header.offset)
        if member is None or record is None:
            return _stored(self._sending_back.wait_for_subscriber(sent))

        def collect(answers: Mapping[str, Command]) -> Outcome:
            try:
                return self._handled(sent, answers.get(member.client_id), is_connected=member.peer.is_open)
            except BrokerError as error:
                return failure(error, request)

        ext = {
            "consumerGroup": sent.group.group_name,
            "clientId": member.client_id,
            "msgId": sent.message.offset_id,
            "topic": sent.topic,
            "brokerName": self._calls.broker_name,
            h.PASSED_ON: "true",
        }
        target = CalledClient(member.client_id, member.peer)
        code, timeout_ms = RequestCode.CONSUME_MESSAGE_DIRECTLY, min(timeout_ms, PASSED_ON_MS_MAX)
        return self._calls.call(request, code, [target], ext, record, timeout_ms, collect)

    def _handled(self, sent: SentBack, answer: Command | None, *, is_connected: bool) -> Outcome:
        """Handle the answer of the member to which a retry was passed on; None: there was none."""
        again = self._sending_back.again
        if answer is None:  # Its handler took too long, or it has died.
            return _stored(again(sent, DELAY_OF_BROKER, is_counted=is_connected))
        if answer.code != ResponseCode.SUCCESS:  # It is busy, paused or stopping.
            return _stored(again(sent, FIRST_DELAY_LEVEL, is_counted=False))
        if decode_body(answer.body, ConsumeDirectlyResult).consume_result in _DONE:
            return SUCCESS
        level = answer.ext.get(h.DELAY_LEVEL, "")
        delay_level = int(level) if _LEVEL.fullmatch(level) else DELAY_OF_BROKER
        return _stored(again(sent, delay_level, is_counted=h.UNCOUNTED not in answer.ext))


def _stored(log_end: int) -> Outcome:
    return ReplyWhenDurable(log_end, SUCCESS) if log_end else SUCCESS
