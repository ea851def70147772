"""The pulling: what each of our queues requests next, and what the answers mean.

Upstream: DefaultMQPushConsumerImpl.pullMessage, PullAPIWrapper.java.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due, PullDue
from libramq.client.consuming.handling.delivering import Delivering
from libramq.client.consuming.handling.duplicates import Duplicates
from libramq.client.consuming.ownership.process_queue import ProcessQueue, QueueState
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.pulling.catch_up import CatchUpPace
from libramq.client.consuming.pulling.pull_flow_control import (
    BROKER_BUSY_MS,
    PULL_FAILED_MS,
    THROTTLED_MS,
    PullLimits,
    pull_limits,
)
from libramq.client.consuming.timers import DueItems
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import BrokerError, LibraError
from libramq.filter.selector import Selector
from libramq.filter.tag import TagFilter
from libramq.logs import get_logger
from libramq.message import properties as names
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import PullReply
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: a heartbeat and this pull were in flight at the same time.
NOT_SUBSCRIBED_YET_MS: Final = 100
#: Ours: the routes are asked for about so often while they do not name a broker that we read from.
BROKER_MISSING_MS: Final = 1_000
_NOT_SUBSCRIBED: Final = (ResponseCode.SUBSCRIPTION_NOT_EXIST, ResponseCode.SUBSCRIPTION_NOT_LATEST)


class Pulling:
    """Pulls each queue, one request at a time, while the queue does not hold too much."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        routes: RouteTable,
        offsets: OffsetStore,
        timers: DueItems[Due],
        table: QueueTable,
        delivering: Delivering,
        duplicates: Duplicates,
    ) -> None:
        self._settings = settings
        self._subscriptions = subscriptions
        self._routes = routes
        self._offsets = offsets
        self._timers = timers
        self._table = table
        self._delivering = delivering
        self._duplicates = duplicates
        self._limits: dict[str, PullLimits] = {}
        self._retry_topic = retry_topic(settings.group)
        #: Brokers that reported our subscription as unknown.
        self.unaware_brokers: set[str] = set()

    def highest_handled(self, queue: MessageQueue) -> int:
        """Return the highest offset of a queue that was handled here; -1 for none."""
        return self._duplicates.highest(queue)

    def start(
        self, owned: ProcessQueue, offset: int, now_ms: MonotonicMs, *, was_committed: bool
    ) -> list[fx.Effect]:
        """Start at an offset; a backlog is read no faster than the configured rate."""
        owned.state = QueueState.PULLING
        owned.start_offset = owned.next_offset = offset
        owned.handled_before = self.highest_handled(owned.queue)
        rate = self._settings.catch_up_rate
        if rate and was_committed and owned.queue.topic != self._retry_topic:
            owned.catch_up = CatchUpPace(rate, now_ms)
        return self.pull(owned, now_ms)

    def shares_changed(self) -> None:
        """Note that the number of our queues has changed, and with it the limits of each."""
        self._limits.clear()

    def due(self, queue: MessageQueue, generation: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Pull after a delay."""
        owned = self._table.current(queue, generation)
        return [] if owned is None or now_ms < owned.pull_due_ms else self.pull(owned, now_ms)

    def resume(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Pull again after a handler has finished, if the queue holds little enough now."""
        return self.pull(owned, now_ms) if owned.is_throttled else []

    def reachable(self, address: str, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Retry at once at a broker that answers again."""
        found: list[fx.Effect] = []
        for owned in self._table.each():
            if owned.has_failed and self._routes.reader(owned.queue.broker_name, owned.broker_id) == address:
                found += self.pull(owned, now_ms)
        return found

    def go_on(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Continue: handlers may begin again, and pulls are sent."""
        return self._delivering.resume(owned) + self.pull(owned, now_ms)

    def pulled(
        self,
        owned: ProcessQueue,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
    ) -> list[fx.Effect]:
        """Handle the result of a pull; the caller handles a refused offset."""
        owned.is_pulling = False
        if isinstance(outcome, LibraError):
            return self._failed(owned, outcome, now_ms)
        queue = owned.queue
        owned.broker_id = outcome.suggested_broker_id
        owned.next_offset = outcome.next_offset
        if messages:
            owned.last_stored_ms = messages[-1].store_timestamp_ms
        wanted = self._accept(queue.topic, messages, outcome) if messages else ()
        found: list[fx.Effect] = []
        if wanted:
            self._duplicates.arrived(wanted, owned.handled_before)
            owned.put(wanted)
            found += self._delivering.arrived(owned, wanted)
        elif not owned.count:
            # Everything up to here was consumed or does not match our subscription.
            self._offsets.advance(queue, owned.next_offset)
        delay_ms = max(
            self._settings.pull_interval_ms if wanted else 0, self._pace(owned, len(wanted), outcome, now_ms)
        )
        if delay_ms:
            self._later(owned, now_ms, delay_ms)
        else:
            found += self.pull(owned, now_ms)
        return found

    def pull(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Pull now, unless something prevents it."""
        if owned.is_pulling or owned.paused or owned.dropped or owned.state is not QueueState.PULLING:
            return []
        owned.last_pull_ms = now_ms
        queue = owned.queue
        owned.is_throttled = self._limits_of(queue.topic).exceeded_by(owned) is not None
        if owned.is_throttled:
            self._later(owned, now_ms, THROTTLED_MS)
            return []
        address = self._routes.reader(queue.broker_name, owned.broker_id)
        if address is None:
            owned.has_failed = True
            self._later(owned, now_ms, BROKER_MISSING_MS)
            return []
        owned.is_pulling, owned.has_failed = True, False
        count_max = self._settings.pull_batch_size
        if owned.catch_up is not None:
            count_max = min(count_max, owned.catch_up.portion)
        return [fx.Pull(queue, owned.generation, address, owned.next_offset, count_max, owned.opened)]

    def _pace(self, owned: ProcessQueue, count: int, reply: PullReply, now_ms: MonotonicMs) -> int:
        if owned.catch_up is None:
            return 0
        if reply.next_offset >= reply.max_offset:
            owned.catch_up = None
            return 0
        return owned.catch_up.brought(count, now_ms)

    def _failed(self, owned: ProcessQueue, error: LibraError, now_ms: MonotonicMs) -> list[fx.Effect]:
        code = error.response_code if isinstance(error, BrokerError) else None
        if code == ResponseCode.FLOW_CONTROL:
            self._later(owned, now_ms, BROKER_BUSY_MS)
        elif code in _NOT_SUBSCRIBED:
            address = self._routes.reader(owned.queue.broker_name, owned.broker_id)
            if address is not None:
                self.unaware_brokers.add(address)
            self._later(owned, now_ms, NOT_SUBSCRIBED_YET_MS)
        else:
            log_failed_request(log, "pull failed", error, queue=str(owned.queue))
            owned.broker_id, owned.has_failed = 0, True
            owned.was_missing = owned.was_missing or code == ResponseCode.TOPIC_NOT_EXIST
            self._later(owned, now_ms, PULL_FAILED_MS)
        return []

    def _later(self, owned: ProcessQueue, now_ms: MonotonicMs, delay_ms: int) -> None:
        owned.pull_due_ms = now_ms + delay_ms
        self._timers.at(owned.pull_due_ms, PullDue(owned.queue, owned.generation))

    def _accept(self, topic: str, messages: Sequence[MessageExt], reply: PullReply) -> Sequence[MessageExt]:
        """Return the messages of our subscription, under the topic they were sent to."""
        selector = self._subscriptions[topic]
        if isinstance(selector, TagFilter) and selector.tags:  # Brokers compare hashes only.
            messages = [message for message in messages if selector.matches(message.tags)]
        bounds = {names.MIN_OFFSET: str(reply.min_offset), names.MAX_OFFSET: str(reply.max_offset)}
        for message in messages:
            message.properties.update(bounds)
            if message.reconsume_times < 0:  # As a producer sent it: it would be tried 2^31 times.
                message.reconsume_times = 0
        if topic == self._retry_topic:
            for message in messages:
                message.topic = message.properties.get(names.RETRY_TOPIC, topic)
        return messages

    def _limits_of(self, topic: str) -> PullLimits:
        limits = self._limits.get(topic)
        if limits is None:
            limits = self._limits[topic] = pull_limits(self._settings, len(self._table.of_topic(topic)))
        return limits
