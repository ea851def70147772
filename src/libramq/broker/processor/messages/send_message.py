"""SEND_MESSAGE, SEND_MESSAGE_V2, SEND_BATCH_MESSAGE: store messages.

All sends of one read are stored by one append. The order of the checks and their codes are upstream's:
SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

import random
from collections.abc import Generator, Mapping, Sequence
from functools import partial
from typing import Final

from libramq.broker.messages import stored_properties as text_properties
from libramq.broker.messages.appending import Appending
from libramq.broker.messages.creation_rate import CreationRate
from libramq.broker.messages.message_log import MessageLog
from libramq.broker.messages.priorities import prioritised
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.messages.schedule import DelaySchedule
from libramq.broker.messages.stored_properties import BrokerProperties
from libramq.broker.processor.messages.prepared import Prepared, prepared_batch, prepared_whole
from libramq.broker.processor.messages.sent_batch import BATCH_ITEMS_PER_STEP, Making, SentBatch
from libramq.broker.processor.messages.stored_reply import refusal, stored_reply
from libramq.broker.transactions import half
from libramq.broker.transactions.transactions import Transactions
from libramq.catalog import GroupTable, TopicTable
from libramq.catalog.requirements import require_sendable, require_writable
from libramq.clock import MonotonicMs
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import broker_error
from libramq.formats.tables import TopicConfig
from libramq.groups.queue_lock import QueueLocks
from libramq.message import names
from libramq.message import properties as p
from libramq.message.batch import count_items, has_more_items
from libramq.message.ids import born_host
from libramq.message.recall_handle import RecallHandle
from libramq.message.sys_flag import TRANSACTION_MASK, is_queued
from libramq.message.tags import tag_code
from libramq.remoting.headers import SendMessageHeader
from libramq.rpc.outcome import InSteps, Outcome, Reply, ReplyWhenAnnounced
from libramq.rpc.request import BatchProcessor, Request, failure
from libramq.store.log.append import AppendResult, AppendStatus, StoreMessage
from libramq.store.log.message_run import MessageRun
from libramq.store.retention.disk_space import DiskSpace
from libramq.timers.timers import TimerMessages

#: MQVersion.V3_4_9: older clients do not fill in maxReconsumeTimes.
_VERSION_WITH_MAX_RECONSUME_TIMES = 121
#: Ours: sizes of a batch's messages that are looked at before others are served; one takes 0.2 µs.
ITEMS_COUNTED_PER_STEP: Final = 4_096
#: Ours: messages of a batch that are kept between its check and its storing; those of a larger one are
#: decoded twice. Twenty batches of 16,384 took 133 MB.
BATCH_ITEMS_KEPT_MAX: Final = 2_048
#: Ours: messages of neighbouring requests that are stored before others are served (endpoint.BATCH_MAX).
MESSAGES_PER_TURN: Final = 256


class SendMessage:
    """The processor of all sends."""

    def __init__(
        self,
        *,
        topics: TopicTable,
        groups: GroupTable,
        disk_space: DiskSpace,
        locks: QueueLocks,
        log: MessageLog,
        appending: Appending,
        redelivery: Redelivery,
        properties: BrokerProperties,
        schedule: DelaySchedule,
        timers: TimerMessages,
        transactions: Transactions,
        broker_name: str,
        reject_transactions: bool,
        randomness: random.Random,
        creations: CreationRate,
    ) -> None:
        self._disk_space = disk_space
        self._topics = topics
        self._groups = groups
        self._locks = locks
        self._log = log
        self._appending = appending
        self._redelivery = redelivery
        self._schedule = schedule
        self._timers = timers
        self._transactions = transactions
        self._broker_name = broker_name
        self._reject_transactions = reject_transactions
        self._random = randomness
        self._creations = creations
        self._tail_ext = {p.MSG_REGION: properties.region, p.TRACE_ON: properties.trace_on}

    def batch_processors(self) -> Mapping[int, BatchProcessor]:
        """Return the requests that it serves in batches, all of one read together."""
        return {
            RequestCode.SEND_MESSAGE: self.handle_many,
            RequestCode.SEND_MESSAGE_V2: self.handle_many,
            RequestCode.SEND_BATCH_MESSAGE: self.handle_many,
        }

    def handle_many(self, requests: Sequence[Request]) -> Sequence[Outcome]:
        """Store the messages of several requests by one append."""
        no_space = self._disk_space.refusal(requests[0].monotonic_ms)
        if no_space is not None:
            return [Reply(ResponseCode.SERVICE_NOT_AVAILABLE, no_space)] * len(requests)
        prepared: list[Prepared | Outcome] = []
        messages: list[StoreMessage | MessageRun] = []
        count, in_steps = 0, False
        for request in requests:
            if in_steps:  # Requests behind a large batch, or many batches, are stored after it.
                prepared.append(InSteps(self._alone(request)))
                continue
            try:
                sent = self._prepare(request)
            except Exception as error:  # A malformed request does not affect its neighbours.
                prepared.append(failure(error, request))
                continue
            prepared.append(sent)
            if isinstance(sent, Prepared):
                messages += sent.messages
                count += sent.count
                in_steps = count >= MESSAGES_PER_TURN
            else:
                in_steps = True
        results = self._log.append(messages) if messages else []
        outcomes: list[Outcome] = []
        position = 0
        for each in prepared:
            if not isinstance(each, Prepared):
                outcomes.append(each)
                continue
            end = position + len(each.messages)
            outcomes.append(self._answer(each, results[position:end]))
            position = end
        return outcomes

    def prepare_reply(self, request: Request) -> Prepared:
        """Check a reply to a request of another client, and build its message; raises BrokerError."""
        prepared = self._prepare(request)
        assert isinstance(prepared, Prepared), "only a batch is prepared in steps"
        return prepared

    def append_reply(self, reply: Prepared, now_ms: MonotonicMs, *, stores: bool) -> dict[str, str]:
        """Store a reply if that is wanted and there is room, and return the fields of the answer.

        Nobody waits for the disk.
        """
        place = {"msgId": "0", "queueId": str(reply.queue_id), "queueOffset": "0"}
        if stores and self._disk_space.refusal(now_ms) is None:
            (result,) = self._log.append(reply.messages)
            if result.status is AppendStatus.PUT_OK:
                place |= {"msgId": result.offset_id, "queueOffset": str(result.queue_offset)}
        return place | self._tail_ext

    def _alone(self, request: Request) -> Generator[None, None, Outcome]:
        (outcome,) = self.handle_many([request])
        if isinstance(outcome, InSteps):
            outcome = yield from outcome.steps
        return outcome

    def _prepare(self, request: Request) -> Prepared | InSteps:
        """Check one request and build its messages; raises an error if it is invalid."""
        command = request.command
        header: SendMessageHeader = request.header
        topics_before = self._topics.data_version
        topic = self._topic(header, request)
        creates = self._topics.data_version is not topics_before
        queue_id = header.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(topic.write_queue_nums)
        elif queue_id >= max(topic.read_queue_nums, topic.write_queue_nums):
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {topic.topic_name} has {topic.write_queue_nums}"
                f" queues, producer: {request.peer.address}",
            )
        self._appending.check_size(command.body)
        if header.batch:
            return self._prepare_batch(request, header, topic.topic_name, queue_id, creates)
        return self._prepare_one(request, header, topic, queue_id, creates)

    def _topic(self, header: SendMessageHeader, request: Request) -> TopicConfig:
        require_sendable(header.topic)
        topic = self._topics.get(header.topic)
        if topic is None:
            take = partial(self._creations.take, request.peer, header.topic, request.monotonic_ms)
            topic = self._topics.for_send(
                header.topic,
                header.default_topic,
                header.default_topic_queue_nums,
                request.wall_ms,
                unit=bool(header.unit_mode),
                before_creation=take,
            )
        require_writable(topic)
        return topic

    def _prepare_one(
        self, request: Request, header: SendMessageHeader, topic: TopicConfig, queue_id: int, creates: bool
    ) -> Prepared:
        text = header.properties or ""
        name = topic.topic_name
        sys_flag = header.sys_flag
        is_half = half.is_marked(text, header.reconsume_times or 0)
        if is_half and self._reject_transactions:
            raise broker_error(ResponseCode.NO_PERMISSION, "sending a transaction message is rejected here")
        if sys_flag & TRANSACTION_MASK:
            if not is_half:
                half.require_queued(text, sys_flag, header.reconsume_times or 0)
            # Clients before 4.6.1 resend a transaction's committed message as prepared.
            if not is_queued(sys_flag):
                sys_flag &= ~TRANSACTION_MASK
        if p.PRIORITY in text:
            queue_id, text = prioritised(text, queue_id, topic.write_queue_nums)
        if name.startswith(names.RETRY_PREFIX):
            name, queue_id, text = self._retry_send(request, header, name, queue_id, text)
        text, unique_key = self._appending.completed(text)
        message = StoreMessage(
            name,
            queue_id,
            request.command.body,
            text.encode("utf-8", "replace"),
            tag_code(text_properties.find(text, p.TAGS)),
            header.flag,
            sys_flag,
            header.born_timestamp,
            born_host(request.peer.address),
            max(header.reconsume_times or 0, 0),  # Attempts are counted from here to the dead letters.
        )
        recall_handle = ""
        if is_half:  # A delay begins when it is committed; an impossible one could never be.
            if "TIMER_D" in text:
                self._timers.slot_of(text, request.wall_ms)
            self._transactions.create_topics(request.now)
            half.prepare(message, unique_key)
        elif "DEL" in text:
            recall_handle = self._postpone(request, message, text, unique_key)
        waits = self._log.must_wait and text_properties.find(text, p.WAIT) != "false"
        return Prepared([message], queue_id, unique_key, waits, creates, recall_handle)

    def _postpone(self, request: Request, message: StoreMessage, text: str, unique_key: str) -> str:
        """Redirect a message with a delay level or a time (TIMER_DELAY_…, TIMER_DELIVER_MS).

        Return the handle by which it can be recalled. The delay level counts if it has both.
        """
        delay = text_properties.find(text, p.DELAY) if p.DELAY in text else None
        if delay is not None and p.whole_number(delay):
            for name in p.TIMER_REQUESTS:
                text = text_properties.without(text, name)
            message.properties_text = text.encode("utf-8", "replace")
            self._schedule.delay(message, delay)
        elif "TIMER_D" in text:
            topic = message.topic
            time_ms = self._timers.accept(message, text, request.wall_ms)
            if time_ms is not None and not topic.startswith(names.RETRY_PREFIX):
                return RecallHandle(topic, self._broker_name, time_ms, unique_key).encode()
        return ""

    def _prepare_batch(
        self, request: Request, header: SendMessageHeader, topic: str, queue_id: int, creates: bool
    ) -> Prepared | InSteps:
        batch = SentBatch(request, header, topic, queue_id, self._appending)
        is_named = header.lb_inner or text_properties.find(header.properties or "", p.UNIQ_KEY)
        if is_named and self._log.is_in_batches(topic) and self._log.may_hold((topic,), len(batch.data)):
            making = batch.whole()
            try:
                next(making)
            except StopIteration as made:
                if made.value is not None:
                    return prepared_whole(header, queue_id, made.value, creates)
            else:
                return InSteps(self._whole_in_steps(batch, making, header, queue_id, creates))
        if has_more_items(batch.data, BATCH_ITEMS_PER_STEP):
            return InSteps(self._batch_in_steps(batch, header, queue_id, creates))
        runs = batch.at_once()
        if not runs:
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        return prepared_batch(header, queue_id, runs, creates)

    def _whole_in_steps(
        self, batch: SentBatch, making: Making, header: SendMessageHeader, queue_id: int, creates: bool
    ) -> Generator[None, None, Outcome]:
        """Check all of a large batch, then store it as one record, or else as so many."""
        message = yield from making
        if message is None:
            return (yield from self._batch_in_steps(batch, header, queue_id, creates))
        return self._answer(prepared_whole(header, queue_id, message, creates), self._log.append([message]))

    def _batch_in_steps(
        self, batch: SentBatch, header: SendMessageHeader, queue_id: int, creates: bool
    ) -> Generator[None, None, Outcome]:
        """Check all of a large batch, then store it, some messages at a time.

        A store that fails half-way has stored the first ones, as after any send without an answer.
        """
        count = yield from count_items(batch.data, ITEMS_COUNTED_PER_STEP)
        kept: list[MessageRun] = []
        is_large = count > BATCH_ITEMS_KEPT_MAX
        for run in batch:
            if not is_large:
                kept.append(run)
            yield
        sent = prepared_batch(header, queue_id, kept, creates)
        ends: list[AppendResult] = []
        offset_ids: list[str] = []
        for run in batch if is_large else kept:
            (result,) = self._log.append([run])
            if result.status is not AppendStatus.PUT_OK:
                return refusal(self._log, result)
            offset_ids.append(result.offset_ids)
            ends = [*ends[:1], result]
            yield
        return self._stored(sent, ends[0], ends[-1], ",".join(offset_ids))

    def _retry_send(
        self, request: Request, header: SendMessageHeader, topic: str, queue_id: int, text: str
    ) -> tuple[str, int, str]:
        """Handle a client's send to its group's retry topic; too many attempts make it a dead letter."""
        name = names.retry_group(
            topic, is_group=self._groups.__contains__, is_topic=self._topics.__contains__
        )
        group = self._groups.require(name, request.wall_ms)
        times_max = group.retry_max_times
        if (
            request.command.version >= _VERSION_WITH_MAX_RECONSUME_TIMES
            and header.max_reconsume_times is not None
        ):
            times_max = header.max_reconsume_times
        orderly = self._locks.holds_any(group.group_name, now_ms=request.monotonic_ms)
        if (header.reconsume_times or 0) > times_max or orderly:
            target = self._redelivery.dead_letters(group.group_name, request.wall_ms)
            text = text_properties.with_property(text, p.DELAY, "-1")
            return target.config.topic_name, target.queue_id, text
        return topic, queue_id, text

    def _answer(self, sent: Prepared, results: Sequence[AppendResult]) -> Outcome:
        for result in results:
            if result.status is not AppendStatus.PUT_OK:
                return refusal(self._log, result)
        first = results[0]
        offset_ids = (
            first.offset_ids if len(results) == 1 else ",".join([result.offset_ids for result in results])
        )
        return self._stored(sent, first, results[-1], offset_ids)

    def _stored(self, sent: Prepared, first: AppendResult, last: AppendResult, offset_ids: str) -> Outcome:
        ext = {
            "msgId": offset_ids,
            "queueId": str(sent.queue_id),
            "queueOffset": str(first.queue_offset),
            "transactionId": sent.unique_key,
            **self._tail_ext,
        }
        if sent.recall_handle:
            ext["recallHandle"] = sent.recall_handle
        if sent.added:
            ext |= sent.added
        reply = Reply(ext=ext)
        later = ReplyWhenAnnounced(reply) if sent.creates_topic else reply
        return stored_reply(self._log, later, last, is_send=True) if sent.waits else later
