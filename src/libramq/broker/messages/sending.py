"""Sending: the order of a send's checks, whether its topic is created, and whether a message goes to its
queue (or that of its priority), a delay level, a timer, the half topic or the dead letters.

    Draft ─► topic (may be created), queue, size ─► properties ─┬─ nothing special ──► its own queue
                                                                ├─ DELAY, TIMER_… ───► a level, or a timer
                                                                ├─ TRAN_MSG ─────────► the half topic
                                                                └─ many attempts ────► the dead letters

All messages of one call are stored by one append. The order of the checks and their codes are upstream's:
SendMessageProcessor.java, AbstractSendMessageProcessor.java.
"""

from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter
from typing import Any, Final, TypeVar

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.broker.files.files import BrokerFiles
from libramq.broker.machine import Machine
from libramq.broker.messages.creation_rate import CreationRate
from libramq.broker.messages.drafts import PLAIN_RUN_ITEMS_MAX, RUN_ITEMS_MAX, Draft, Making, SentBatch
from libramq.broker.messages.redelivery import Redelivery
from libramq.broker.transactions import half
from libramq.broker.transactions.transactions import Transactions
from libramq.catalog.requirements import require_sendable, require_writable
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError, broker_error
from libramq.formats.tables import PERM_WRITE, TopicConfig
from libramq.kernel.connection import Connection
from libramq.kernel.purgatory import Gate, Gated, Missing, Waiter
from libramq.message import names, stored_properties
from libramq.message import properties as p
from libramq.message.batch import count_items, has_more_items
from libramq.message.ids import RecallHandle, UniqueIdGenerator, born_host
from libramq.message.stored_properties import BrokerProperties
from libramq.message.sys_flag import INNER_BATCH, TRANSACTION_MASK, is_queued
from libramq.message.tags import tag_code
from libramq.store.log.append import NOT_SAFE, AppendResult, AppendStatus, MessageRun, StoreMessage
from libramq.store.retention import DiskSpace

#: Ours: messages of a batch kept between check and append; those of a larger batch are decoded twice. Twenty
#: batches of 16,384 took 133 MB.
BATCH_ITEMS_KEPT_MAX: Final = 2_048
#: Ours: messages of one call per append (endpoint.BATCH_MAX); the rest are long work.
APPENDED_MAX: Final = 256
#: Message.getPriority: NumberUtils.toInt; a number that does not fit into Java's int is no priority.
_PRIORITY_MAX: Final = 2**31 - 1
_OK: Final = AppendStatus.PUT_OK
#: Message types exclude each other; these take precedence over a priority.
_OTHER_TYPES: Final = (p.DELAY, *p.TIMER_REQUESTS, p.SHARDING_KEY)


class Prepared(msgspec.Struct, frozen=True):
    """A draft's messages, checked and ready to be stored.

    waits: whether the sender waits for the disk if it is flushed synchronously. recall_handle: of a timer
    message.
    count: of messages. record_count: the messages of a batch stored as one record; otherwise 0.
    """

    messages: list[StoreMessage | MessageRun]
    queue_id: int
    unique_key: str
    waits: bool
    creates_topic: bool
    recall_handle: str = ""
    count: int = 1
    record_count: int = 0


class Stored(msgspec.Struct, frozen=True, gc=False):
    """A draft's place: its first message's queue offset, and the log's end behind its last message.

    Its sender is answered once the log is safe up to `end`, if it `waits`, and once the name servers know the
    topic, if it `creates_topic`. The rest is as in `Prepared`, whose messages are not kept.
    """

    queue_id: int
    queue_offset: int
    end: int
    offset_ids: str
    unique_key: str
    waits: bool
    creates_topic: bool
    recall_handle: str
    record_count: int


#: The steps that store or refuse a large draft; they also raise the errors that refuse a small one.
Steps = Generator[None, None, Stored | Exception]
#: The outcome of a draft.
Sent = Stored | Exception | Steps
T = TypeVar("T")


class Sending:
    """Stores messages. durability: the gate at which replies wait until messages are safe."""

    def __init__(
        self,
        config: BrokerConfig,
        machine: Machine,
        files: BrokerFiles,
        *,
        durability: Gate,
        redelivery: Redelivery,
        transactions: Transactions,
    ) -> None:
        self._topics, self._log = files.tables.topics, files.log
        self._schedule, self._timers = files.schedule, files.timers.timers
        self._requirements = files.tables.requirements
        self._durability = durability
        self._redelivery = redelivery
        self._transactions = None if config.reject_transaction_message else transactions
        self.creations = CreationRate(machine.clock.monotonic_ms())
        self.disk_space = DiskSpace(
            files.filesystem, files.store.config.disks, config.disk_space_warning_level_ratio
        )
        self.properties = BrokerProperties(
            cluster=config.cluster_name, region=config.region_id, trace_on=config.trace_on
        )
        self._random = machine.randomness
        self._unique_id = UniqueIdGenerator(
            config.broker_ip, machine.process_id, machine.clock, machine.randomness
        )
        self._message_bytes_max = config.max_message_size

    def send(
        self, drafts: Sequence[Draft], sender: Connection, *, wall_ms: WallMs, now_ms: MonotonicMs
    ) -> Sequence[Sent]:
        """Store messages by one append; a refused message does not affect the others.

        Messages after a large batch, or after many batches, are stored after it in order, provided that their
        steps are run in order.
        """
        no_space = self.disk_space.refusal(now_ms)
        if no_space is not None:
            return [broker_error(ResponseCode.SERVICE_NOT_AVAILABLE, no_space)] * len(drafts)
        sent: list[Any] = []  # Prepared drafts, until they are stored.
        messages: list[StoreMessage | MessageRun] = []
        count, in_steps = 0, False
        for draft in drafts:
            if in_steps:
                sent.append(self._alone(draft, sender, wall_ms, now_ms))
                continue
            try:
                ready = self.prepare(draft, sender, wall_ms, now_ms)
            except Exception as error:
                sent.append(_kept(error))
                continue
            sent.append(ready)
            if type(ready) is Prepared:
                messages += ready.messages
                count += ready.count
                in_steps = count >= APPENDED_MAX
            else:
                in_steps = True
        results = self._log.append(messages) if messages else []
        position = 0
        for at, each in enumerate(sent):
            if type(each) is Prepared:
                end = position + len(each.messages)
                sent[at] = self._stored(each, results[position:end])
                position = end
        return sent

    def send_one(self, draft: Draft, sender: Connection, wall_ms: WallMs, now_ms: MonotonicMs) -> Sent:
        """Store a message, or a batch, like `send`, whose lists would take a fifth of the time."""
        no_space = self.disk_space.refusal(now_ms)
        if no_space is not None:
            return broker_error(ResponseCode.SERVICE_NOT_AVAILABLE, no_space)
        try:
            ready = self.prepare(draft, sender, wall_ms, now_ms)
        except Exception as error:
            return _kept(error)
        if isinstance(ready, Prepared):
            return self._stored(ready, self._log.append(ready.messages))
        return ready

    def append(
        self,
        drafts: Sequence[Draft],
        waiter: Waiter[Sequence[AppendResult]],
        *,
        wall_ms: WallMs,
        now_ms: MonotonicMs,
        stored: Callable[[int, int], None] | None = None,
    ) -> None:
        """Store several messages by one append, in the queues they name; their properties have no effect.

        The waiter gets their positions once they are safe. If one of them is refused, raises BrokerError and
        stores nothing. If no single log file holds all of them, the first ones may be stored although the
        disk refused the others. stored: called first, with how many messages were stored, if any, and where
        they end.
        """
        for topic, queue_id in dict.fromkeys((draft.topic, draft.queue_id) for draft in drafts):
            self._requirements.queue_to_write(topic, queue_id)
        no_space = self.disk_space.refusal(now_ms)
        if no_space is not None:
            raise broker_error(ResponseCode.SERVICE_NOT_AVAILABLE, no_space)
        sender = born_host(waiter.connection.address)
        messages = self._runs(drafts, sender, wall_ms)
        if messages is None:
            messages = [self._message(draft, sender, wall_ms) for draft in drafts]
        results = self._log.append(messages)
        done = [
            each.count if isinstance(each, StoreMessage) else len(each.bodies)
            for each, result in zip(messages, results, strict=True)
            if result.is_ok
        ]
        if stored is not None and done:
            stored(sum(done), max(result.end for result in results))
        for result in results:
            if not result.is_ok:
                raise self._log.refused(result)
        self.answer_when_safe(results, results[-1].end, waiter)

    def answer_when_safe(self, result: T, end: int, waiter: Waiter[T]) -> None:
        """Answer once the log is safe up to a message's end; the message may have been stored long before."""
        if end and self._log.must_wait:
            succeed = partial(waiter.answer, result)
            self._durability.wait(Gated(waiter.connection, succeed, partial(_not_safe, waiter)), end)
        else:
            waiter.answer(result)

    def store_unawaited(self, ready: Prepared, now_ms: MonotonicMs) -> Stored | None:
        """Store prepared messages if there is room, without waiting for the disk or reporting failures."""
        if self.disk_space.refusal(now_ms) is not None:
            return None
        stored = self._stored(ready, self._log.append(ready.messages))
        return stored if isinstance(stored, Stored) else None

    def _alone(self, draft: Draft, sender: Connection, wall_ms: WallMs, now_ms: MonotonicMs) -> Steps:
        sent = self.send_one(draft, sender, wall_ms, now_ms)
        return sent if isinstance(sent, Stored | Exception) else (yield from sent)

    def prepare(
        self, draft: Draft, sender: Connection, wall_ms: WallMs, now_ms: MonotonicMs
    ) -> Prepared | Steps:
        """Check a draft and build its messages, in steps for a large batch; raises BrokerError."""
        if not names.is_sendable(draft.topic):
            require_sendable(draft.topic)
        topic = self._topics.get(draft.topic)
        creates = topic is None
        if topic is None:
            topic = self._topics.for_send(
                draft.topic,
                draft.template,
                draft.template_queues,
                wall_ms,
                unit=draft.is_unit,
                before_creation=partial(self.creations.take, sender, draft.topic, now_ms),
            )
        if not topic.perm & PERM_WRITE:
            require_writable(topic)
        queue_id = draft.queue_id
        if queue_id < 0:
            queue_id = self._random.randrange(topic.write_queue_nums)
        elif queue_id >= topic.write_queue_nums and queue_id >= topic.read_queue_nums:
            raise broker_error(
                ResponseCode.INVALID_PARAMETER,
                f"request queueId[{queue_id}] is illegal, {topic.topic_name} has {topic.write_queue_nums}"
                f" queues, producer: {sender.address}",
            )
        if len(draft.body) > self._message_bytes_max:
            raise self._too_large(draft.body)
        if draft.is_batch:
            return self._prepare_batch(draft, queue_id, creates, sender, wall_ms)
        return self._prepare_one(draft, topic, queue_id, creates, sender, wall_ms, now_ms)

    def _prepare_one(
        self,
        draft: Draft,
        topic: TopicConfig,
        queue_id: int,
        creates: bool,
        sender: Connection,
        wall_ms: WallMs,
        now_ms: MonotonicMs,
    ) -> Prepared:
        text, name, sys_flag, times = draft.properties, draft.topic, draft.sys_flag, draft.reconsume_times
        is_half = half.is_marked(text, times)
        if is_half and self._transactions is None:
            raise broker_error(ResponseCode.NO_PERMISSION, "sending a transaction message is rejected here")
        if sys_flag & TRANSACTION_MASK:
            if not is_half:
                half.require_queued(text, sys_flag, times)
            # Clients before 4.6.1 resend a transaction's committed message as prepared.
            if not is_queued(sys_flag):
                sys_flag &= ~TRANSACTION_MASK
        if p.PRIORITY in text:
            queue_id, text = prioritised(text, queue_id, topic.write_queue_nums)
        is_retry = name.startswith(names.RETRY_PREFIX)
        if is_retry:
            dead = self._redelivery.dead_letters_of_send(
                name, times, draft.reconsume_times_max, wall_ms=wall_ms, now_ms=now_ms
            )
            if dead is not None:
                name, queue_id = dead.config.topic_name, dead.queue_id
                text = stored_properties.with_property(text, p.DELAY, "-1")
            text = stored_properties.sent_back(text)
        if p.KAFKA_PRODUCER in text:  # A forged mark would make it look like a retry of a Kafka producer.
            text = stored_properties.without(text, p.KAFKA_PRODUCER)
        text, unique_key = self.completed(text, is_retry=is_retry)
        # A message stored before tags were limited must keep its tags when sent back, or it blocks its queue.
        tags = stored_properties.find(text, p.TAGS) if is_retry else stored_properties.storable_tags(text)
        message = StoreMessage(
            name,
            queue_id,
            draft.body,
            text.encode("utf-8", "replace"),
            tag_code(tags),
            draft.flag,
            sys_flag,
            int(wall_ms) if draft.born_ms is None else draft.born_ms,
            born_host(sender.address),
            times if times > 0 else 0,  # Attempts are counted until the dead letters.
        )
        recall_handle = ""
        if is_half:  # A delay begins at the commit; an impossible delay could never be committed.
            if "TIMER_D" in text:
                self._timers.slot_of(text, wall_ms)
            assert self._transactions is not None, "refused above"
            self._transactions.create_topics(wall_ms)
            half.prepare(message, unique_key)
        elif "DEL" in text:
            recall_handle = self._postpone(message, text, unique_key, wall_ms)
        waits = self._log.must_wait and stored_properties.find(text, p.WAIT) != "false"
        return Prepared([message], queue_id, unique_key, waits, creates, recall_handle)

    def _postpone(self, message: StoreMessage, text: str, unique_key: str, wall_ms: WallMs) -> str:
        """Redirect a message with a delay level or a time (TIMER_DELAY_…, TIMER_DELIVER_MS).

        Return the handle by which it can be recalled. If it has both, the delay level counts.
        """
        delay = stored_properties.find(text, p.DELAY) if p.DELAY in text else None
        if delay is not None and p.whole_number(delay):
            for name in p.TIMER_REQUESTS:
                text = stored_properties.without(text, name)
            message.properties_text = text.encode("utf-8", "replace")
            self._schedule.delay(message, delay)
        elif "TIMER_D" in text:
            topic = message.topic
            time_ms = self._timers.accept(message, text, wall_ms)
            if time_ms is not None and not topic.startswith(names.RETRY_PREFIX):
                return RecallHandle(topic, self._topics.broker_name, time_ms, unique_key).encode()
        return ""

    def _prepare_batch(
        self, draft: Draft, queue_id: int, creates: bool, sender: Connection, wall_ms: WallMs
    ) -> Prepared | Steps:
        host = born_host(sender.address)
        batch = SentBatch(draft, queue_id, host, self.properties, self.completed, wall_ms)
        text, topic = draft.properties, draft.topic
        unique_key = stored_properties.find(text, p.UNIQ_KEY) or ""  # The batch's own key.
        waits = self._log.must_wait and stored_properties.find(text, p.WAIT) != "false"
        ready = Prepared([], queue_id, unique_key, waits, creates)
        is_named = draft.has_one_id or unique_key
        if is_named and self._log.is_in_batches(topic) and self._log.may_hold((topic,), len(batch.data)):
            making = batch.whole()
            try:
                next(making)
            except StopIteration as made:
                if made.value is not None:
                    return _as_one(ready, made.value)
            else:
                return self._whole_in_steps(batch, making, ready)
        if has_more_items(batch.data, RUN_ITEMS_MAX):
            return self._batch_in_steps(batch, ready)
        runs = batch.at_once()
        if not runs:
            raise broker_error(ResponseCode.MESSAGE_ILLEGAL, "the batch is empty")
        count = sum([len(run.bodies) for run in runs])
        return msgspec.structs.replace(ready, messages=runs, count=count)

    def _whole_in_steps(self, batch: SentBatch, making: Making, ready: Prepared) -> Steps:
        """Check all of a large batch, then store it as one record, or otherwise as single messages."""
        message = yield from making
        if message is None:
            return (yield from self._batch_in_steps(batch, ready))
        return self._stored(_as_one(ready, message), self._log.append([message]))

    def _batch_in_steps(self, batch: SentBatch, ready: Prepared) -> Steps:
        """Check all of a large batch, then store it, some messages at a time.

        If the store fails half-way, the first ones are stored, as after any unanswered send.
        """
        count = yield from count_items(batch.data, PLAIN_RUN_ITEMS_MAX)
        kept: list[MessageRun] = []
        is_large = count > BATCH_ITEMS_KEPT_MAX
        for run in batch:
            if not is_large:
                kept.append(run)
            yield
        ends: list[AppendResult] = []
        offset_ids: list[str] = []
        for run in batch if is_large else kept:
            (result,) = self._log.append([run])
            if not result.is_ok:
                return self._log.refused(result)
            offset_ids.append(result.offset_ids)
            ends = [*ends[:1], result]
            yield
        return self._stored(ready, ends, ",".join(offset_ids))

    def _stored(
        self, ready: Prepared, results: Sequence[AppendResult], offset_ids: str = ""
    ) -> Stored | BrokerError:
        for result in results:
            if result.status is not _OK:
                return self._log.refused(result)
        first = results[0]
        if not offset_ids and len(results) > 1:
            offset_ids = ",".join([result.offset_ids for result in results])
        return Stored(
            ready.queue_id,
            first.queue_offset,
            result.end,
            offset_ids or first.offset_ids,
            ready.unique_key,
            ready.waits,
            ready.creates_topic,
            ready.recall_handle,
            ready.record_count,
        )

    def _runs(
        self, drafts: Sequence[Draft], sender: bytes, wall_ms: WallMs
    ) -> list[StoreMessage | MessageRun] | None:
        """Return messages as runs with one queue and time each, whose common parts are built once.

        None if a message must be examined by itself, or if no log file may hold all messages: a run is stored
        as a whole.
        """
        encoded = self._with_ids(drafts)
        plain = self.properties.suffix_of_all_plain(encoded) if encoded else None
        if plain is None or plain[1]:
            return None
        suffix = plain[0]
        longest = max(map(len, encoded)) + len(suffix)
        size = sum([len(draft.body) for draft in drafts]) + sum(map(len, encoded)) + len(suffix) * len(drafts)
        topics = [draft.topic for draft in drafts]
        if longest > p.PROPERTIES_BYTES_MAX or not self._log.may_hold(topics, size):
            return None
        runs: list[StoreMessage | MessageRun] = []
        start = 0
        for (topic, queue_id, born_ms), of_place in groupby(
            drafts, key=attrgetter("topic", "queue_id", "born_ms")
        ):
            bodies = [draft.body for draft in of_place]
            end, zeros = start + len(bodies), [0] * len(bodies)
            runs.append(
                MessageRun(
                    topic, queue_id, bodies, encoded[start:end], zeros, zeros, suffix,
                    born_timestamp_ms=int(wall_ms) if born_ms is None else born_ms, born_host=sender,
                )
            )  # fmt: skip
            start = end
        return runs

    def _with_ids(self, drafts: Sequence[Draft]) -> list[bytes]:
        """Return the properties of messages with a new unique id each; none if more must be added."""
        texts = [draft.properties for draft in drafts]
        if (
            p.UNIQ_KEY in "".join(texts)
            or any(draft.record_count for draft in drafts)
            or max([len(draft.body) for draft in drafts]) > self._message_bytes_max
        ):
            return []
        key, end = f"{p.UNIQ_KEY}{p.NAME_VALUE_SEPARATOR}", p.PROPERTY_SEPARATOR
        return [
            f"{text}{key}{unique_id}{end}".encode("utf-8", "replace")
            for text, unique_id in zip(texts, self._unique_id.many(len(texts)), strict=True)
        ]

    def _message(self, draft: Draft, sender: bytes, wall_ms: WallMs) -> StoreMessage:
        if len(draft.body) > self._message_bytes_max:
            raise self._too_large(draft.body)
        if draft.record_count:  # Its messages have their own ids and tags.
            text, tags = self.properties.added_to(draft.properties), None
        else:
            text, _ = self.completed(draft.properties)
            tags = stored_properties.storable_tags(text)
        message = StoreMessage(
            draft.topic,
            draft.queue_id,
            draft.body,
            text.encode("utf-8", "replace"),
            tag_code(tags),
            sys_flag=INNER_BATCH if draft.record_count else 0,
            born_timestamp_ms=int(wall_ms) if draft.born_ms is None else draft.born_ms,
            born_host=sender,
            count=max(draft.record_count, 1),
        )
        self._log.require_storable(message)  # Later, the others would be stored without it.
        return message

    def _too_large(self, body: bytes) -> BrokerError:
        remark = f"message of {len(body)} bytes; maxMessageSize is {self._message_bytes_max}"
        return broker_error(ResponseCode.MESSAGE_ILLEGAL, remark)

    def completed(self, text: str, *, is_retry: bool = False) -> tuple[str, str]:
        """Return properties in stored form, and the message's unique key.

        The broker's own properties are added to every stored message. A pop handle is removed, because a
        consumer would acknowledge the message it names. Only a retry may name an original topic: its group's
        members take it for a message of that topic, and a dead letter is resent there.
        """
        stored_properties.require_storable(text)
        if p.DLQ_ORIGIN_TOPIC in text:
            text = stored_properties.without(text, p.DLQ_ORIGIN_TOPIC)
        if p.RETRY_TOPIC in text and not is_retry:
            text = stored_properties.without(text, p.RETRY_TOPIC)
        if p.POP_CK in text:
            text = stored_properties.without(text, p.POP_CK)
        if "INNER_" in text:
            # Only the broker may set these.
            for name in (p.INNER_MULTI_QUEUE_OFFSET, p.INNER_BASE, p.INNER_NUM):
                text = stored_properties.without(text, name)
            self._log.require_light(stored_properties.find(text, p.INNER_MULTI_DISPATCH))
        unique_key = stored_properties.find(text, p.UNIQ_KEY)
        if unique_key is None:
            unique_key = self._unique_id()
            text = stored_properties.with_property(text, p.UNIQ_KEY, unique_key)
        return self.properties.added_to(text), unique_key


def _not_safe(waiter: Waiter[T], missing: Missing) -> None:
    """Answer that a message is stored, but not as safely as it should be."""
    waiter.refuse(broker_error(*NOT_SAFE[missing]))


def _kept(error: Exception) -> Exception:
    """Return an error that can be kept: frames in its traceback refer to it, so it would never be freed."""
    return error.with_traceback(None) if isinstance(error, LibraError) else error


def prioritised(text: str, queue_id: int, queue_count: int) -> tuple[int, str]:
    """Return the queue of a message with these properties, and the properties without a useless priority.

    A priority (5.4) is a queue: 0 is the lowest. Groups that pop a topic with `message.type=PRIORITY` get the
    messages of higher queues first (`pop/taking.py`). The property counts in topics of every type, as in
    Apache's broker. Upstream: SendMessageProcessor.sendMessage, TopicMessageType.parseFromMessageProperty.
    """
    value = stored_properties.find(text, p.PRIORITY)
    priority = p.whole_number(value) if value is not None else None
    if priority is None or priority > _PRIORITY_MAX:
        return queue_id, text
    is_half = (stored_properties.find(text, p.TRANSACTION_PREPARED) or "").lower() == "true"
    if is_half or any(stored_properties.find(text, name) is not None for name in _OTHER_TYPES):
        return queue_id, stored_properties.without(text, p.PRIORITY)
    return min(priority, queue_count - 1), text


def _as_one(ready: Prepared, message: StoreMessage) -> Prepared:
    """Return a batch that is stored as one record."""
    return msgspec.structs.replace(ready, messages=[message], record_count=message.count)
