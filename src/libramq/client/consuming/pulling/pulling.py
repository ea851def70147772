"""The pulling: what each queue requests next, when it holds too much to pull (flow control), and how long it
pauses after a failure; the pull's request, and the messages in its answer.

`Duplicates` counts the redeliveries that a member can detect: messages up to the highest offset that it
handled when it owned the queue before. It cannot see what others handled in between.

A pull commits nothing, unlike upstream's: a multi-threaded broker may process it after later commits.
Upstream: DefaultMQPushConsumerImpl.pullMessage, MQClientAPIImpl.pullMessage, PullAPIWrapper.java,
RebalancePushImpl.messageQueueChanged.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.pulling.pulled_records import PulledRecords, ends_of, queue_offset_at
from libramq.client.consuming.queues.owned_queue import (
    CatchUpPace,
    Delivery,
    HeldMessages,
    Lease,
    OwnedQueue,
    QueueState,
)
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BodyDamaged, BrokerError, FilterRefused, LibraError
from libramq.fencing import NO_ATTEMPTS, Claim
from libramq.filter.sql import SQL92
from libramq.filter.subscription import Selector, kind_of
from libramq.filter.tag import TagFilter
from libramq.kernel.effect import Effects
from libramq.logs import BoundedLines, get_logger
from libramq.message import properties as names
from libramq.message.inner_batch import decode_pulled
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.message.record import damaged_records
from libramq.remoting.headers import PullMessageHeader
from libramq.rpc.broker_calls import PULL_SUBSCRIPTION, PULL_SUSPEND, PullReply, pull_message
from libramq.rpc.call import Call
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: DefaultMQPushConsumerImpl: how long the broker may hold a pull.
HOLD_MS: Final = 15_000
#: DefaultMQPushConsumerImpl: how long we wait for the answer to a pull.
PULL_TIMEOUT_MS: Final = 30_000
#: The answers to a pull with a refused expression. SYSTEM_ERROR: enablePropertyFilter is off.
_FILTER_REFUSED: Final = frozenset({
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED,
    ResponseCode.FILTER_DATA_NOT_EXIST,
})  # fmt: skip
#: Ours: for how many queues the highest offset is remembered; the oldest is forgotten first.
QUEUES_MAX: Final = 100_000


class Duplicates:
    """Our highest handled offsets, and how many messages were redelivered since the last report."""

    def __init__(self) -> None:
        self._handled: dict[MessageQueue, int] = {}
        self.count = 0

    def handled(self, queue: MessageQueue, highest: int) -> None:
        """Note the last offset that a handler has processed, whether the queue is still ours or not."""
        if highest >= self._handled.get(queue, -1):
            self._handled[queue] = highest
            if len(self._handled) > QUEUES_MAX:
                del self._handled[next(iter(self._handled))]

    def highest(self, queue: MessageQueue) -> int:
        """Return the highest offset of a queue that was handled here; -1 for none."""
        return self._handled.get(queue, -1)

    def arrived(self, messages: Sequence[MessageExt], highest: int) -> None:
        """Count messages up to the offset `highest`, which we handled when we owned the queue before."""
        if queue_offset_at(messages, 0) <= highest:
            self.count += sum(message.queue_offset <= highest for message in messages)


class Pull(NamedTuple):
    """A pull in flight.

    claim: the queue's open claim, in a coordinated group. number: the cursor's at the time, which may change
    meanwhile. as_records: the messages are wanted as PulledRecords. accepts_damaged: bodies are accepted even
    if they do not match their checksums.
    """

    queue: MessageQueue
    offset: int
    claim: Claim | None
    number: int
    as_records: bool
    accepts_damaged: bool

    def messages(self, reply: PullReply) -> Sequence[MessageExt]:
        """Return the messages of a reply, with the properties that Java's client adds: the queue's bounds.

        Messages that are stored damaged are delivered all the same, as by Java's client: refusing the reply
        would block their queue for ever.
        """
        queue, body, check_crc = self.queue, reply.body, not self.accepts_damaged
        if not check_crc:
            for head in damaged_records(body):
                log.error(
                    "a message is delivered as it is stored: its body does not match its checksum",
                    queue=str(queue),
                    offset=head.queue_offset,
                )
        if self.as_records:
            return PulledRecords.of(body, queue.broker_name, self.offset, check_crc=check_crc)
        bounds = {names.MIN_OFFSET: str(reply.min_offset), names.MAX_OFFSET: str(reply.max_offset)}
        return decode_pulled(
            body, self.offset, check_crc=check_crc, broker_name=queue.broker_name, added=bounds
        )


#: PULL_TIME_DELAY_MILLS_WHEN_CACHE_FLOW_CONTROL.
THROTTLED_MS: Final = 50
#: PULL_TIME_DELAY_MILLS_WHEN_BROKER_FLOW_CONTROL.
BROKER_BUSY_MS: Final = 20
#: pullTimeDelayMillsWhenException.
PULL_FAILED_MS: Final = 1_000
#: Ours: about how often the routes are fetched while they lack a broker that we read from.
BROKER_MISSING_MS: Final = 1_000
_MIB: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class PullLimits:
    """The limits on the messages held for one queue."""

    count_max: int
    mib_max: int
    span_max: int

    def are_exceeded_by(self, held: HeldMessages) -> bool:
        """Return whether a queue's messages exceed a limit, which pauses its pulls."""
        count = len(held)
        if count > self.count_max or held.size // _MIB > self.mib_max:
            return True
        return count > 0 and held.span > self.span_max


def pull_limits(settings: ConsumerSettings, owned_of_topic: int, owned: int = 0) -> PullLimits:
    """Return the limits of a queue. owned_of_topic, owned: our queues of its topic, and in all."""
    count_max, mib_max = settings.pull_threshold_for_queue, settings.pull_threshold_mib_for_queue
    if owned_of_topic:
        if settings.pull_threshold_for_topic != -1:
            count_max = max(1, settings.pull_threshold_for_topic // owned_of_topic)
        if settings.pull_threshold_mib_for_topic != -1:
            mib_max = max(1, settings.pull_threshold_mib_for_topic // owned_of_topic)
    if settings.pull_threshold_for_all != -1 and owned:
        count_max = min(count_max, max(1, settings.pull_threshold_for_all // owned))
    return PullLimits(count_max, mib_max, settings.span_max)


class Delivering:
    """Splits pulled messages into portions for handlers, and decides which they get next.

        concurrent    all pulled messages, at once
        orderly       one portion per queue; the next when that one is done

    A portion has at most batch_size messages of one topic. It is held back while its queue is not READING, or
    the lease has expired.
    Upstream: ConsumeMessageConcurrentlyService.submitConsumeRequest, ConsumeMessageOrderlyService.java.
    """

    def __init__(self, settings: ConsumerSettings, lease: Lease, effects: Effects) -> None:
        self._lease = lease
        self._effects = effects
        self._orderly = settings.orderly
        self._size = settings.batch_size
        self._retry_topic = retry_topic(settings.group)

    def arrived(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> None:
        """Handle the messages of a pull."""
        if self._orderly:
            if messages and owned.former_attempts.times:
                # Continue the former owner's count of failed attempts.
                offset, times = owned.former_attempts
                owned.former_attempts = NO_ATTEMPTS
                if messages[0].queue_offset == offset:
                    messages[0].reconsume_times = max(messages[0].reconsume_times, times)
            owned.work.waiting.extend(messages)
            self.deliver_next(owned)
            return
        deliveries = [Delivery(owned, portion) for portion in self._cut(owned, messages)]
        owned.work.deliveries.update(deliveries)
        if self._is_kept_back(owned):
            owned.work.kept += deliveries
        else:
            self._effects.add(fx.Deliver(deliveries))

    def deliver_next(self, owned: OwnedQueue) -> None:
        """Deliver the next portion of an orderly queue, if nothing holds it."""
        work = owned.work
        waiting = work.waiting
        if not waiting or work.deliveries or work.sending_back or work.is_suspended:
            return
        if not owned.lock.is_held or self._is_kept_back(owned):
            return
        portion = [waiting.popleft()]
        while waiting and len(portion) < self._size and waiting[0].topic == portion[0].topic:
            portion.append(waiting.popleft())
        delivery = Delivery(owned, portion)
        work.deliveries.add(delivery)
        self._effects.add(fx.Deliver((delivery,)))

    def not_begun(self, delivery: Delivery) -> None:
        """Hold a delivery whose handler did not begin: queue not READING, or lease expired."""
        owned = delivery.owned
        if not owned.is_ours:
            return
        if self._orderly:
            owned.work.waiting.extendleft(reversed(delivery.messages))
            self.deliver_next(owned)
            return
        delivery.started = False
        owned.work.deliveries.add(delivery)
        if self._is_kept_back(owned):
            owned.work.kept.append(delivery)
        else:  # Paused and resumed in the meantime.
            self._effects.add(fx.Deliver((delivery,)))

    def resume(self, owned: OwnedQueue) -> None:
        """Continue after a pause, or after the lease was renewed."""
        if self._is_kept_back(owned):
            return
        if self._orderly:
            self.deliver_next(owned)
            return
        kept, owned.work.kept = owned.work.kept, []
        if kept:
            self._effects.add(fx.Deliver(kept))

    def _is_kept_back(self, owned: OwnedQueue) -> bool:
        return owned.state is not QueueState.READING or not self._lease.holds()

    def _cut(self, owned: OwnedQueue, messages: Sequence[MessageExt]) -> list[Sequence[MessageExt]]:
        size = self._size
        if owned.queue.topic != self._retry_topic:
            return [messages[start : start + size] for start in range(0, len(messages), size)]
        cut: list[Sequence[MessageExt]] = []
        for message in messages:
            if cut and len(cut[-1]) < size and cut[-1][0].topic == message.topic:
                cut[-1] = [*cut[-1], message]
            else:
                cut.append([message])
        return cut


class Pulling:
    """Pulls each queue, one request at a time, while the queue does not hold too much."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        offsets: OffsetStore,
        table: QueueTable,
        known_brokers: KnownBrokers,
        delivering: Delivering,
        duplicates: Duplicates,
    ) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self._routes = known_brokers.routes
        self._offsets = offsets
        self._kernel = known_brokers.kernel
        self._table = table
        self._known_brokers = known_brokers
        self._delivering = delivering
        self._duplicates = duplicates
        self.highest_handled = duplicates.highest
        self._limits: dict[str, PullLimits] = {}
        self._warnings = BoundedLines(log.warning)
        self._as_records = False
        self._retry_topic = retry_topic(settings.group)
        #: Handles the answer to a pull of a queue under a claim, and its messages.
        self.on_pulled: Callable[
            [OwnedQueue, Claim | None, PullReply | LibraError, Sequence[MessageExt], MonotonicMs], None
        ]

    def read_records(self) -> None:
        """Pull messages as PulledRecords from now on."""
        self._as_records = True

    def is_retry(self, queue: MessageQueue) -> bool:
        """Return whether a queue is one of the group's retry topic."""
        return queue.topic == self._retry_topic

    def start(self, owned: OwnedQueue, offset: int, now_ms: MonotonicMs, *, was_committed: bool) -> None:
        """Start at an offset; a backlog is read no faster than the configured rate."""
        sought, owned.cursor.sought_offset = owned.cursor.sought_offset, None
        if sought is not None:
            offset = owned.work.finished = sought
            self._offsets.sought(owned.queue, sought)
        owned.cursor.start(offset, self.highest_handled(owned.queue))
        rate = self._settings.catch_up_rate
        if rate and was_committed and not self.is_retry(owned.queue):
            owned.cursor.catch_up = CatchUpPace(rate, now_ms)
        self.pull(owned, now_ms)

    def move(self, owned: OwnedQueue, offset: int) -> None:
        """Continue at another offset; the answer to a pull in flight will be ignored."""
        cursor = owned.cursor
        cursor.is_under_way = cursor.is_throttled = False
        cursor.number += 1
        cursor.catch_up = None
        cursor.start(offset, self.highest_handled(owned.queue))

    def shares_changed(self) -> None:
        """Note that the number of our queues has changed, and with it the limits of each."""
        self._limits.clear()

    def resume(self, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
        """Pull again after a handler has finished, if flow control had stopped the queue."""
        if owned.cursor.is_throttled:
            self.pull(owned, now_ms)

    def reachable(self, address: str, now_ms: MonotonicMs) -> None:
        """Retry at once at a broker that answers again."""
        for owned in self._table.each():
            cursor = owned.cursor
            if (
                cursor.has_failed
                and self._routes.reader(owned.queue.broker_name, cursor.broker_id) == address
            ):
                self.pull(owned, now_ms)

    def go_on(self, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
        """Continue: handlers may begin again, and pulls are sent."""
        self._delivering.resume(owned)
        self.pull(owned, now_ms)

    def pulled(
        self,
        owned: OwnedQueue,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
    ) -> None:
        """Handle the result of a pull; the caller handles a refused offset."""
        queue, cursor = owned.queue, owned.cursor
        cursor.is_under_way = False
        if isinstance(outcome, LibraError):
            self._failed(owned, outcome, now_ms)
            return
        first_place, last_stored_ms = ends_of(messages) if messages else (owned.claim.topic_start, 0)
        if first_place < owned.claim.topic_start:
            # A slave of Apache's ignores `lbTopicStart`, and still has messages of the former topic.
            self._later(owned, now_ms, PULL_FAILED_MS)
            return
        cursor.accepts_damaged = False
        cursor.broker_id = outcome.suggested_broker_id
        cursor.next_offset, cursor.end_offset = outcome.next_offset, outcome.max_offset
        if messages:
            cursor.last_stored_ms = last_stored_ms
        wanted = self._accept(queue.topic, messages) if messages else ()
        if wanted:
            self._duplicates.arrived(wanted, cursor.handled_before)
            owned.held.put(wanted)
            self._delivering.arrived(owned, wanted)
        elif not owned.held:
            # Everything up to here was consumed or does not match our subscription.
            self._offsets.advance(queue, cursor.next_offset)
        delay_ms = max(
            self._settings.pull_interval_ms if wanted else 0, self._pace(owned, len(wanted), outcome, now_ms)
        )
        if delay_ms:
            self._later(owned, now_ms, delay_ms)
        else:
            self.pull(owned, now_ms)

    def pull(self, owned: OwnedQueue, now_ms: MonotonicMs) -> None:
        """Pull now, unless something prevents it."""
        queue, cursor = owned.queue, owned.cursor
        if cursor.is_under_way or owned.state is not QueueState.READING:
            return
        cursor.last_ms = now_ms
        limits, settings = self._limits.get(queue.topic), self._settings
        if limits is None:  # Queues are counted only for limits that are set.
            topic_limits = settings.pull_threshold_for_topic, settings.pull_threshold_mib_for_topic
            owned_of_topic = len(self._table.of_topic(queue.topic)) if topic_limits != (-1, -1) else 0
            of_all = len(self._table) if settings.pull_threshold_for_all != -1 else 0
            limits = self._limits[queue.topic] = pull_limits(settings, owned_of_topic, of_all)
        cursor.is_throttled = limits.are_exceeded_by(owned.held)
        if cursor.is_throttled:
            self._later(owned, now_ms, THROTTLED_MS)
            return
        address = self._routes.reader(queue.broker_name, cursor.broker_id)
        if address is None:
            cursor.has_failed = True
            self._later(owned, now_ms, BROKER_MISSING_MS)
            self._known_brokers.look_soon(now_ms)
            return
        cursor.is_under_way, cursor.has_failed = True, False
        count_max = min(settings.pull_batch_size, limits.count_max)  # So at most twice as many wait.
        if cursor.catch_up is not None:
            count_max = min(count_max, cursor.catch_up.portion)
        claim, number = owned.claim.opened, cursor.number
        pull = Pull(queue, cursor.next_offset, claim, number, self._as_records, cursor.accepts_damaged)
        call = self._call(pull, owned, count_max)
        self._kernel.ask(address, call, partial(self._answered, owned, pull, address), PULL_TIMEOUT_MS)

    def _call(self, pull: Pull, owned: OwnedQueue, count_max: int) -> Call[PullReply]:
        settings, selector, claim = self._settings, self._subscriptions[pull.queue.topic], pull.claim
        # Inner batches come whole, perhaps with more than `count_max` messages, too many for the pace.
        takes_batches = owned.cursor.catch_up is None
        header = PullMessageHeader(
            consumer_group=settings.group,
            topic=pull.queue.topic,
            queue_id=pull.queue.queue_id,
            queue_offset=pull.offset,
            max_msg_nums=count_max,
            # Without PULL_SUBSCRIPTION brokers filter by the group's last heartbeat, maybe another member's.
            sys_flag=PULL_SUSPEND | PULL_SUBSCRIPTION,
            subscription=selector.expression,
            commit_offset=0,
            suspend_timeout_millis=HOLD_MS,
            max_msg_bytes=settings.pull_batch_bytes,
            expression_type=kind_of(selector),
            sub_version=0,
            lb_member=claim.member if claim else None,
            lb_queue_epoch=claim.epoch if claim else None,
            lb_topic_start=owned.claim.topic_start or None,
            lb_takes_batches=takes_batches or None,
        )
        return pull_message(header)

    def _answered(
        self,
        owned: OwnedQueue,
        pull: Pull,
        address: str,
        outcome: PullReply | LibraError,
        now_ms: MonotonicMs,
    ) -> None:
        """Decode the answer to a pull; ignore it if the position has changed since."""
        topic = pull.queue.topic
        messages: Sequence[MessageExt] = ()
        if isinstance(outcome, BrokerError):
            is_by_sql = kind_of(self._subscriptions[topic]) == SQL92
            if is_by_sql and outcome.response_code in _FILTER_REFUSED:  # The expression is the cause.
                outcome = FilterRefused(outcome.response_code, outcome.remark, where=address)
        elif isinstance(outcome, PullReply) and outcome.code == ResponseCode.SUCCESS:
            try:
                messages = pull.messages(outcome)
            except LibraError as error:
                outcome = error
        self._known_brokers.troubles.answered(f"topic {topic}", outcome)
        if owned.cursor.number == pull.number:
            self.on_pulled(owned, pull.claim, outcome, messages, now_ms)

    def _pace(self, owned: OwnedQueue, count: int, reply: PullReply, now_ms: MonotonicMs) -> int:
        cursor = owned.cursor
        if cursor.catch_up is None:
            return 0
        if reply.next_offset >= reply.max_offset:
            cursor.catch_up = None
            return 0
        return cursor.catch_up.brought(count, now_ms)

    def _failed(self, owned: OwnedQueue, error: LibraError, now_ms: MonotonicMs) -> None:
        code = error.response_code if isinstance(error, BrokerError) else None
        if code == ResponseCode.FLOW_CONTROL:
            self._later(owned, now_ms, BROKER_BUSY_MS)
        elif isinstance(error, BodyDamaged):  # In transit or at a slave; accepted the second time.
            log.warning("a damaged answer is pulled again", queue=str(owned.queue), reason=str(error))
            owned.cursor.accepts_damaged, owned.cursor.broker_id = True, 0
            self.pull(owned, now_ms)
        else:
            warn = partial(self._warnings.at, now_ms)
            log_failed_request(log, "pull failed", error, warn=warn, queue=str(owned.queue))
            cursor = owned.cursor
            cursor.broker_id, cursor.has_failed = 0, True
            cursor.was_missing = cursor.was_missing or code == ResponseCode.TOPIC_NOT_EXIST
            self._later(owned, now_ms, PULL_FAILED_MS)

    def _later(self, owned: OwnedQueue, now_ms: MonotonicMs, delay_ms: int) -> None:
        if owned.cursor.timer is None:
            owned.cursor.timer = self._kernel.deadlines.new(partial(self.pull, owned))
        owned.cursor.timer.at(now_ms + delay_ms)

    def _accept(self, topic: str, messages: Sequence[MessageExt]) -> Sequence[MessageExt]:
        """Return the messages of our subscription, under the topic they were sent to."""
        selector = self._subscriptions[topic]
        tags = selector.tags if isinstance(selector, TagFilter) else None
        if isinstance(messages, PulledRecords):  # A program that fetches has no retry topic.
            return messages.with_tags(tags) if tags else messages
        if tags:  # Brokers compare hashes only.
            messages = [message for message in messages if message.tags in tags]
        for message in messages:
            if message.reconsume_times < 0:  # Set by a producer: the message would be tried 2^31 times.
                message.reconsume_times = 0
        if topic == self._retry_topic:
            for message in messages:
                message.topic = message.properties.get(names.RETRY_TOPIC, topic)
        return messages
