"""CONSUMER_SEND_MSG_BACK: a consumer failed to handle a message and requests its redelivery.

Upstream: AbstractSendMessageProcessor.consumerSendMsgBack.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from libramq.auth.authorizer import Authorizer, require_permission
from libramq.auth.operation import SendBack as SendBackOperation
from libramq.broker.messages.message_log import MessageLog
from libramq.broker.messages.redelivery import FIRST_DELAY_LEVEL, Redelivery
from libramq.broker.messages.schedule import DelaySchedule
from libramq.broker.processor.groups.client_calls import ClientCalls, Target
from libramq.catalog import GroupTable
from libramq.clock import WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.document import decode_body
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.logs import get_logger
from libramq.message import properties as p
from libramq.message.message import MessageExt
from libramq.remoting.admin_headers import DELAY_LEVEL, PASSED_ON, UNCOUNTED
from libramq.remoting.body.administration import ConsumeDirectlyResult
from libramq.remoting.command import Command
from libramq.remoting.headers import SendBackHeader
from libramq.rpc.outcome import SUCCESS, Outcome, Reply, ReplyWhenDurable
from libramq.rpc.request import Processor, Request
from libramq.store.log.append import stored_again

log = get_logger(__name__)

#: The delay that Redelivery chooses by the number of attempts, and its level for a dead letter.
DELAY_OF_BROKER: Final = 0
DEAD_LETTER: Final = -1
#: Ours: how long a group's members may leave a topic without a subscriber before its retries are given up: a
#: day, in which a deployment that dropped the topic can be taken back.
NO_SUBSCRIBER_MS_MAX: Final = 24 * 60 * 60 * 1000
#: Ours: how often a retry without a subscriber is looked at: level 5 is a minute.
WAIT_LEVEL: Final = 5
#: ConsumerSettings: the upper bound of consume_timeout_ms.
PASSED_ON_MS_MAX: Final = 86_400_000
#: CMResult: done, in order and without.
_DONE: Final = ("CR_SUCCESS", "CR_COMMIT")
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})
_LEVEL: Final = re.compile(r"-?[0-9]{1,2}")
_UNSTORABLE: Final = (p.NUL, p.NAME_VALUE_SEPARATOR, p.PROPERTY_SEPARATOR)


class _Sent(NamedTuple):
    """A message that was sent back."""

    header: SendBackHeader
    group: SubscriptionGroupConfig
    message: MessageExt
    wall_ms: WallMs

    @property
    def topic(self) -> str:
        """Return the topic that its handler subscribes to."""
        return self.message.properties.get(p.RETRY_TOPIC, self.message.topic)


class SendBack:
    """The processor of messages that are sent back. calls: passes retries on to other members."""

    def __init__(
        self,
        *,
        log: MessageLog,
        groups: GroupTable,
        redelivery: Redelivery,
        schedule: DelaySchedule,
        authorizer: Authorizer,
        calls: ClientCalls,
    ) -> None:
        self._log = log
        self._groups = groups
        self._redelivery = redelivery
        self._schedule = schedule
        self._authorizer = authorizer
        self._calls = calls

    def processors(self) -> Mapping[int, Processor]:
        """Return the requests that it serves."""
        return {
            RequestCode.CONSUMER_SEND_MSG_BACK: self.handle,
        }

    def handle(self, request: Request) -> Outcome:
        """Store a copy for another attempt, or as a dead letter.

        One that was no attempt (`lbUncounted`, of our members) comes again whatever the number of attempts.
        """
        header: SendBackHeader = request.header
        if any(mark in (header.origin_msg_id or "") for mark in _UNSTORABLE):
            raise broker_error(
                ResponseCode.MESSAGE_ILLEGAL,
                "the originMsgId, which is stored as a property, has a NUL or a separator in it",
            )
        group = self._groups.require(header.group, request.wall_ms)
        if group.retry_queue_nums <= 0:
            return SUCCESS
        message = self._log.message_at(header.offset)
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
        sent = _Sent(header, group, message, request.wall_ms)
        if header.lb_pass_on_ms is not None:
            return self._pass_on(request, sent, header.lb_pass_on_ms)
        return self._again(sent, header.delay_level, is_counted=not header.lb_uncounted)

    def _pass_on(self, request: Request, sent: _Sent, timeout_ms: int) -> Outcome:
        """Have a member that subscribes to a retry's topic handle it, and answer with what became of it."""
        member = self._calls.subscriber(sent.group.group_name, sent.topic, request.peer)
        record = self._log.record_at(sent.header.offset)
        if member is None or record is None:
            return self._wait_for_subscriber(sent)

        def collect(answers: Mapping[str, Command]) -> Outcome:
            return self._handled(sent, answers.get(member.client_id), is_connected=member.peer.is_open)

        ext = {
            "consumerGroup": sent.group.group_name,
            "clientId": member.client_id,
            "msgId": sent.message.offset_id,
            "topic": sent.topic,
            "brokerName": self._calls.broker_name,
            PASSED_ON: "true",
        }
        target = Target(member.client_id, member.peer)
        code, timeout_ms = RequestCode.CONSUME_MESSAGE_DIRECTLY, min(timeout_ms, PASSED_ON_MS_MAX)
        return self._calls.call(request, code, [target], ext, record, timeout_ms, collect)

    def _handled(self, sent: _Sent, answer: Command | None, *, is_connected: bool) -> Outcome:
        """Handle the answer of the member that a retry was passed on to; None: none came."""
        if answer is None:  # Its handler took too long, or it has died.
            return self._again(sent, DELAY_OF_BROKER, is_counted=is_connected)
        if answer.code != ResponseCode.SUCCESS:  # It is busy, paused or stopping.
            return self._again(sent, FIRST_DELAY_LEVEL, is_counted=False)
        if decode_body(answer.body, ConsumeDirectlyResult).consume_result in _DONE:
            return SUCCESS
        level = answer.ext.get(DELAY_LEVEL, "")
        is_level = _LEVEL.fullmatch(level) is not None
        return self._again(
            sent, int(level) if is_level else DELAY_OF_BROKER, is_counted=UNCOUNTED not in answer.ext
        )

    def _wait_for_subscriber(self, sent: _Sent) -> Outcome:
        """Have a retry come again, uncounted, until a member subscribes to its topic, or a day has passed."""
        about = {"group": sent.group.group_name, "topic": sent.topic, "message_id": sent.message.message_id}
        known = sent.message.properties.get(p.NO_SUBSCRIBER_SINCE, "")[:15]
        wall_ms = int(sent.wall_ms)
        is_known = known.isascii() and known.isdigit()
        since_ms = min(int(known), wall_ms) if is_known else wall_ms  # The clock may have been set back.
        if not is_known:
            log.warning("a retry waits: no member of its group subscribes to its topic", **about)
        if wall_ms - since_ms >= NO_SUBSCRIBER_MS_MAX:
            hours = NO_SUBSCRIBER_MS_MAX // 3_600_000
            log.warning(
                "a retry becomes a dead letter: no member of its group has subscribed to its topic",
                hours=hours,
                **about,
            )
            return self._again(sent, DEAD_LETTER, is_counted=True)
        return self._again(sent, WAIT_LEVEL, is_counted=False, added={p.NO_SUBSCRIBER_SINCE: str(since_ms)})

    def _again(
        self, sent: _Sent, delay_level: int, *, is_counted: bool, added: Mapping[str, str] = NOTHING
    ) -> Outcome:
        header, group, message, wall_ms = sent
        times_max = group.retry_max_times
        if header.max_reconsume_times is not None and header.max_reconsume_times >= 0:
            times_max = header.max_reconsume_times
        target = self._redelivery.target(
            group,
            reconsume_times=message.reconsume_times,
            reconsume_times_max=times_max if is_counted else message.reconsume_times + 1,
            delay_level=delay_level,
            wall_ms=wall_ms,
        )
        properties = dict(message.properties)
        properties.setdefault(p.RETRY_TOPIC, message.topic)
        properties.setdefault(p.ORIGIN_MESSAGE_ID, header.origin_msg_id or message.offset_id)
        properties[p.WAIT] = "false"
        # Properties of an earlier delay do not apply to this one.
        for name in (p.DELAY, p.REAL_TOPIC, p.REAL_QUEUE_ID, p.NO_SUBSCRIBER_SINCE):
            properties.pop(name, None)
        if target.delay_level:
            properties[p.DELAY] = str(target.delay_level)
        again = stored_again(
            message,
            target.config.topic_name,
            target.queue_id,
            {**properties, **added},
            reconsume_times=message.reconsume_times + is_counted,
        )
        if target.delay_level:
            self._schedule.delay(again, str(target.delay_level))
        result = self._log.append([again])[0]
        if not result.is_ok:
            error = self._log.refused(result)
            return Reply(error.response_code, error.remark)
        return ReplyWhenDurable(result.end, SUCCESS) if self._log.must_wait else SUCCESS


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
