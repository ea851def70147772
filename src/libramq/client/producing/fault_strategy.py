"""The fault strategy: which queue a producer sends to next, and how long a slow or failed broker is avoided.

Round robin from a random start; the broker that just failed is skipped. With `enabled`, a broker whose send
was slow, or failed, is avoided for a time taken from a table.
Upstream: latency/MQFaultStrategy.java, LatencyFaultToleranceImpl.java, TopicPublishInfo.java.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from libramq.client.routing.publish_info import TopicPublishInfo
from libramq.clock import MonotonicMs
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class BackOff:
    """A send that took `latency_ms` or longer excludes its broker for `unavailable_ms`."""

    latency_ms: int
    unavailable_ms: int


#: MQFaultStrategy.latencyMax and notAvailableDuration.
BACK_OFF_TABLE: Final = (
    BackOff(50, 0),
    BackOff(100, 0),
    BackOff(550, 2_000),
    BackOff(1_800, 5_000),
    BackOff(3_000, 6_000),
    BackOff(5_000, 10_000),
    BackOff(15_000, 30_000),
)
#: MQFaultStrategy.updateFaultItem: a failed broker counts as one this slow.
ISOLATION_LATENCY_MS: Final = 10_000
_INDEX_MASK: Final = 0x7FFF_FFFF


@dataclass(slots=True)
class FaultItem:
    """The latency and availability of a broker, as last observed."""

    available_from_ms: MonotonicMs
    reachable: bool


class FaultStrategy:
    """Chooses queues; remembers the latency of brokers."""

    def __init__(
        self, randomness: random.Random, *, enabled: bool = False, table: Sequence[BackOff] = BACK_OFF_TABLE
    ) -> None:
        if any(line.latency_ms < 0 or line.unavailable_ms < 0 for line in table):
            raise ConfigError("a back-off table has latencies and pauses in milliseconds, none below 0")
        self._random = randomness
        self._enabled = enabled
        self._table = sorted(table, key=lambda line: line.latency_ms, reverse=True)
        self._items: dict[str, FaultItem] = {}
        self._index = randomness.randint(0, _INDEX_MASK)

    def select(self, info: TopicPublishInfo, last_broker: str | None, now_ms: MonotonicMs) -> MessageQueue:
        """Return the queue to try next; `last_broker` has just failed."""
        queues = info.queues
        if self._enabled:
            found = self._next(queues, last_broker, lambda name: self._is_available(name, now_ms))
            if found is None:
                found = self._next(queues, last_broker, self._is_reachable)
        else:
            found = self._next(queues, last_broker)
        if found is None:  # All are at the broker that just failed, or at unavailable ones.
            found = self._next(queues, None)
        assert found is not None, "a topic to send to has queues"
        return found

    def start_anew(self) -> None:
        """Continue from another random queue: the rule for a retry."""
        self._index = self._random.randint(0, _INDEX_MASK)

    def update(self, broker_name: str, latency_ms: int, *, reachable: bool, now_ms: MonotonicMs) -> None:
        """Record the latency of a send, of a failed one as ISOLATION_LATENCY_MS.

        A later result can only extend the pause.
        """
        if not self._enabled:
            return
        pause_ms = self.pause_ms(latency_ms)
        item = self._items.setdefault(broker_name, FaultItem(MonotonicMs(0), reachable))
        item.reachable = reachable
        if pause_ms > 0:
            item.available_from_ms = max(item.available_from_ms, now_ms + pause_ms)

    def pause_ms(self, latency_ms: int) -> int:
        """Return how long a broker with that latency is avoided."""
        return next((line.unavailable_ms for line in self._table if latency_ms >= line.latency_ms), 0)

    def _is_available(self, broker_name: str, now_ms: MonotonicMs) -> bool:
        item = self._items.get(broker_name)
        return item is None or now_ms >= item.available_from_ms

    def _is_reachable(self, broker_name: str) -> bool:
        item = self._items.get(broker_name)
        return item is None or item.reachable

    def _next(
        self,
        queues: Sequence[MessageQueue],
        last_broker: str | None,
        is_wanted: Callable[[str], bool] | None = None,
    ) -> MessageQueue | None:
        """Return the next eligible queue in one round, except at the broker that just failed."""
        for _ in queues:
            self._index = self._index + 1 & _INDEX_MASK
            queue = queues[self._index % len(queues)]
            name = queue.broker_name
            if name != last_broker and (is_wanted is None or is_wanted(name)):
                return queue
        return None
