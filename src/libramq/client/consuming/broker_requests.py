"""The requests of brokers to a consumer, and their answers: change notifications, offset resets, running
info, and messages to be consumed directly.

Upstream: impl/ClientRemotingProcessor.java, DefaultMQPushConsumerImpl.consumerRunningInfo,
ProcessQueue.fillProcessQueueInfo, ConsumeMessageConcurrentlyService.consumeMessageDirectly.
"""

import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq import __version__
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, NotDone
from libramq.client.consuming.handling.send_back import DEAD_LETTER, delay_level
from libramq.client.consuming.pop.pop_consumer_core import PopConsumerCore
from libramq.client.consuming.push_consumer_core import PushConsumerCore
from libramq.client.consuming.queues.owned_queue import Delivery, HandlerError, OwnedQueue
from libramq.client.consuming.subscription import Subscriptions, heartbeat_data, with_retry_topic
from libramq.clock import Clock, MonotonicMs, Now, read_clock
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError, RemoteProtocolError
from libramq.formats.document import decode_body, encode_body
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.properties import RETRY_TOPIC
from libramq.message.record import decode_records
from libramq.remoting.body.administration import ConsumeDirectlyResult, ConsumerStatus
from libramq.remoting.body.consumers import ConsumerRunningInfo, ProcessQueueInfo, ResetOffsetBody
from libramq.remoting.command import Command, reply_to
from libramq.remoting.headers import DELAY_LEVEL, PASSED_ON, UNCOUNTED

log = get_logger(__name__)

#: Ours: how many directly consumed messages handlers process at a time.
DIRECT_MAX: Final = 16
#: Ours: the length of the stack dump of all threads, which a broker passes on.
THREADS_CHARACTERS_MAX: Final = 256 * 1024

#: The requests of brokers that a consumer serves.
SERVED: Final = (
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT,
    RequestCode.GET_CONSUMER_RUNNING_INFO,
    RequestCode.CONSUME_MESSAGE_DIRECTLY,
)
#: CMResult.
CR_SUCCESS = "CR_SUCCESS"
CR_LATER = "CR_LATER"
CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
_MIB: Final = 1024 * 1024

Answer = Callable[[Command], None]
Core = PushConsumerCore | PopConsumerCore


class DirectDelivery(Delivery):
    """A message that an operator passes to a handler, outside of its queue.

    Brokers do the same with a retry that reached a group member without a subscription to its topic.
    The delivery does not block the queue, and its result neither moves an offset nor sends the message back.
    ended: called with the result, on the network thread.
    """

    __slots__ = ("_error", "_monotonic_ms", "_orderly", "ended")

    def __init__(
        self,
        messages: Sequence[MessageExt],
        *,
        orderly: bool,
        monotonic_ms: Callable[[], MonotonicMs],
        ended: Callable[[ConsumeDirectlyResult, Ending], None],
    ) -> None:
        self.messages = messages
        self.started = False
        self.began_ms = monotonic_ms()
        self.ended = ended
        self._orderly = orderly
        self._monotonic_ms = monotonic_ms
        self._error: str | None = None

    def begin(self) -> bool:
        """Begin unconditionally."""
        self.began_ms = self._monotonic_ms()
        self.started = True
        return True

    def raised(self, error: BaseException) -> None:
        """Keep the handler's exception for the operator."""
        kind, text = HandlerError.of(error)
        self._error = f"{kind}: {text}"

    def result(self, ending: Ending) -> ConsumeDirectlyResult:
        """Return the answer to the operator."""
        if self._error is not None:
            outcome = CR_THROW_EXCEPTION
        else:
            outcome = CR_SUCCESS if ending is HandlerOutcome.SUCCESS else CR_LATER
        return ConsumeDirectlyResult(
            order=self._orderly,
            consume_result=outcome,
            remark=self._error,
            spent_time_mills=self._monotonic_ms() - self.began_ms,
        )


class BrokerRequests:
    """Handles requests of brokers. event: passes events to the core; deliver: runs handlers."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Subscriptions,
        core: Core,
        clock: Clock,
        *,
        name_servers: Sequence[str],
        event: Callable[[Callable[[MonotonicMs], None]], None],
        deliver: Callable[[Sequence[Delivery]], None],
    ) -> None:
        self._settings = settings
        self._subscriptions = with_retry_topic(settings, subscriptions)
        self._core = core
        self._clock = clock
        self._name_servers = name_servers
        self._event = event
        self._deliver = deliver
        self._started_ms = clock.wall_ms()
        self._direct_count = 0
        handlers = (
            self._members_changed, self._offsets_set, self._status, self._running_info, self._consume_directly
        )  # fmt: skip
        self._by_code: dict[int, Callable[[Command, Answer], None]] = dict(zip(SERVED, handlers, strict=True))

    def handle(self, request: Command, answer: Answer) -> None:
        """Handle a request to a running consumer."""
        handler = self._by_code.get(request.code)
        if handler is not None:
            handler(request, answer)
        elif not request.is_oneway:
            remark = f"request type {request.code} is not supported by this client"
            answer(reply_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))

    def _members_changed(self, request: Command, answer: Answer) -> None:
        if request.ext.get("consumerGroup") == self._settings.group:
            self._event(self._core.members_changed)

    def _offsets_set(self, request: Command, answer: Answer) -> None:
        if request.ext.get("group") == self._settings.group:
            try:
                offsets = decode_body(request.body, ResetOffsetBody).offset_table
            except LibraError as error:
                log.warning("offsets that an operator set cannot be read", reason=str(error))
                return
            self._event(partial(self._core.offsets_set, request.ext.get("topic", ""), offsets))

    def _status(self, request: Command, answer: Answer) -> None:
        """Answer with the consumer's offsets in a topic."""
        offsets = {}
        if request.ext.get("group") == self._settings.group:
            topic = request.ext.get("topic", "")
            owned_queues = self._core.process_queues()
            offsets = {each.queue: each.continues_at for each in owned_queues if each.queue.topic == topic}
        body = encode_body(ConsumerStatus(message_queue_table=offsets))
        answer(reply_to(request, ResponseCode.SUCCESS, body=body))

    def _running_info(self, request: Command, answer: Answer) -> None:
        """Answer with settings, subscriptions and queues; brokers also probe silent members with this."""
        group = request.ext.get("consumerGroup")
        if group != self._settings.group:
            answer(self._not_here(request, group))
            return
        info = self._info(threads=_threads() if request.ext.get("jstackEnable") == "true" else None)
        answer(reply_to(request, ResponseCode.SUCCESS, body=encode_body(info)))

    def _info(self, *, threads: str | None) -> ConsumerRunningInfo:
        """Return the consumer's state; threads: their stacks, if requested."""
        settings, started_ms, now = self._settings, int(self._started_ms), read_clock(self._clock)
        (consumer,) = heartbeat_data(settings, self._subscriptions, started_ms).consumer_data_set
        return ConsumerRunningInfo(
            properties={
                "PROP_NAMESERVER_ADDR": ";".join(self._name_servers),
                "PROP_CONSUME_TYPE": consumer.consume_type,
                "PROP_CLIENT_VERSION": f"LibraMQ {__version__}",
                "PROP_CONSUMEORDERLY": "true" if settings.orderly else "false",
                "PROP_THREADPOOL_CORE_SIZE": str(settings.threads),
                "PROP_CONSUMER_START_TIMESTAMP": str(started_ms),
                "consumerGroup": settings.group,
                "messageModel": consumer.message_model,
                "consumeFromWhere": consumer.consume_from_where,
                "consumeMessageBatchMaxSize": str(settings.batch_size),
                "pullBatchSize": str(settings.pull_batch_size),
                "allocateMessageQueueStrategy": settings.group_strategy,
            },
            subscription_set=consumer.subscription_data_set,
            mq_table={each.queue: _queue_info(each, settings, now) for each in self._core.process_queues()},
            jstack=threads,
        )

    def _consume_directly(self, request: Command, answer: Answer) -> None:
        """Run the handler on one message, and answer with the outcome."""
        group = request.ext.get("consumerGroup")
        if group != self._settings.group:
            answer(self._not_here(request, group))
            return
        if self._settings.fetches:
            remark = "this consumer fetches its messages, and has no handler to pass one to"
            answer(reply_to(request, ResponseCode.SYSTEM_ERROR, remark=remark))
            return
        is_retry = PASSED_ON in request.ext
        if is_retry and not self._core.begins_handlers:
            answer(reply_to(request, ResponseCode.SYSTEM_BUSY, remark="this consumer begins no handlers now"))
            return
        if self._direct_count >= DIRECT_MAX:
            remark = f"{DIRECT_MAX} messages are processed directly already; try again"
            answer(reply_to(request, ResponseCode.SYSTEM_BUSY, remark=remark))
            return
        try:
            message = self._message(request)
        except LibraError as error:
            answer(reply_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)))
            return

        def ended(result: ConsumeDirectlyResult, ending: Ending) -> None:
            self._direct_count -= 1
            ext = _redelivery(ending) if is_retry else {}
            answer(reply_to(request, ResponseCode.SUCCESS, ext=ext, body=encode_body(result)))

        self._direct_count += 1
        delivery = DirectDelivery(
            (message,),
            orderly=self._settings.orderly,
            monotonic_ms=self._clock.monotonic_ms,
            ended=ended,
        )
        if not is_retry:
            log.info("an operator has a message processed", topic=message.topic, id=message.message_id)
        self._deliver((delivery,))

    def _message(self, request: Command) -> MessageExt:
        """Return the message of a request; raises LibraError if it is not for this consumer."""
        messages = decode_records(request.body, broker_name=request.ext.get("brokerName", ""))
        if len(messages) != 1:
            raise RemoteProtocolError(f"{len(messages)} messages, not one")
        (message,) = messages
        if message.topic == retry_topic(self._settings.group):
            message.topic = message.properties.get(RETRY_TOPIC, message.topic)
        if message.topic not in self._subscriptions:
            raise RemoteProtocolError(f"this consumer has no handler for topic {message.topic}")
        return message

    def _not_here(self, request: Command, group: str | None) -> Command:
        remark = f"The Consumer Group <{group}> not exist in this consumer"
        return reply_to(request, ResponseCode.SYSTEM_ERROR, remark=remark)


def _queue_info(owned: OwnedQueue, settings: ConsumerSettings, now: Now) -> ProcessQueueInfo:
    first, last = owned.held.bounds
    return ProcessQueueInfo(
        commit_offset=owned.continues_at,
        cached_msg_min_offset=first,
        cached_msg_max_offset=last,
        cached_msg_count=len(owned.held),
        cached_msg_size_in_mib=owned.held.size // _MIB,
        locked=settings.orderly and owned.lock.is_held,
        dropped=not owned.is_ours,
        last_pull_timestamp=int(now.wall_ms) - (now.monotonic_ms - owned.cursor.last_ms),
    )


def _redelivery(ending: Ending) -> dict[str, str]:
    """Return how a retry that a broker passed on is to be redelivered."""
    if not isinstance(ending, NotDone):
        return {UNCOUNTED: "true"} if ending is HandlerOutcome.SKIPPED else {}
    if ending.rejects:
        return {DELAY_LEVEL: str(DEAD_LETTER)}
    if ending.busy:
        return {DELAY_LEVEL: str(delay_level(ending.busy[0][1])), UNCOUNTED: "true"}
    return {DELAY_LEVEL: str(delay_level(ending.retries[0][1]))}


def _threads() -> str:
    """Return the stacks of all threads of the process, for mqadmin consumerStatus -s."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    parts = [
        f"{names.get(ident, ident)}\n{''.join(traceback.format_stack(frame))}"
        for ident, frame in sys._current_frames().items()
    ]
    return "\n".join(parts)[:THREADS_CHARACTERS_MAX]
