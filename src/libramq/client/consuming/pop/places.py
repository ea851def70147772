"""The places where a consumer pops, each topic at each broker: how many messages it may hold from one, and
when it pops there again.

    at most one pop under way ─► messages held ─► settled ─► room again

Upstream: impl/consumer/PopRequest.java, DefaultMQPushConsumerImpl.popMessage.
"""

from collections.abc import Iterable, Iterator
from typing import Final

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.pop.held_message import HeldMessage
from libramq.client.popping.pop_round import Place
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs

#: DefaultMQPushConsumer.popBatchNums; a broker gives no more (PopMessageProcessor).
POP_COUNT_MAX: Final = 32
#: DefaultMQPushConsumer.popThresholdForQueue: messages held from a place; more if as many handlers may run.
HELD_MAX: Final = 96
#: DefaultMQPushConsumerImpl: pullTimeDelayMillsWhenException is 3 s; ours comes back sooner, as for pulls.
FAILED_PAUSE_MS: Final = 1_000
#: Ours: an empty answer that was not held is not asked for again at once. Java: 50 ms by flow control.
EMPTY_PAUSE_MS: Final = 50
#: Ours: an answer that took as long was held.
HELD_MS: Final = 1_000

_MIB: Final = 1024 * 1024


class _State:
    """The state of one place."""

    __slots__ = ("count", "is_pending", "not_before_ms", "size")

    def __init__(self) -> None:
        self.is_pending = False
        self.not_before_ms = MonotonicMs(0)
        self.count = 0
        self.size = 0


class Places:
    """Decides where to pop next."""

    def __init__(self, settings: ConsumerSettings, topics: Iterable[str], routes: RouteTable) -> None:
        self._topics = tuple(topics)
        self._routes = routes
        self._states: dict[Place, _State] = {}
        self._count_max = max(HELD_MAX, settings.threads * min(settings.batch_size, POP_COUNT_MAX))
        self._size_max = settings.pull_threshold_mib_for_queue * _MIB

    def routes_changed(self) -> None:
        """Take the places of the current routes; those that are gone are popped from no more."""
        now = dict.fromkeys(  # In order: a set's would differ from process to process.
            Place(topic, queue.broker_name)
            for topic in self._topics
            for queue in self._routes.subscribe_queues(topic)
        )
        for place in now:
            if place not in self._states:
                self._states[place] = _State()
        for place, state in list(self._states.items()):
            if place not in now and not state.is_pending and not state.count:
                del self._states[place]

    def to_pop(self, now_ms: MonotonicMs) -> Iterator[tuple[Place, str]]:
        """Yield every place with room, and its address."""
        for place, state in self._states.items():
            full = state.count >= self._count_max or state.size >= self._size_max
            if full or state.is_pending or now_ms < state.not_before_ms:
                continue
            address = self._routes.master(place.broker_name)
            if address is not None:
                state.is_pending = True
                yield place, address

    def next_due_ms(self, now_ms: MonotonicMs) -> MonotonicMs | None:
        """Return when the first pause ends."""
        pauses = [each.not_before_ms for each in self._states.values() if each.not_before_ms > now_ms]
        return min(pauses, default=None)

    def popped(self, place: Place, sent_ms: MonotonicMs, now_ms: MonotonicMs, *, found: bool) -> None:
        """Note an answer."""
        state = self._states[place]
        state.is_pending = False
        was_held = now_ms - sent_ms >= HELD_MS
        state.not_before_ms = now_ms if found or was_held else now_ms + EMPTY_PAUSE_MS

    def failed(self, place: Place, now_ms: MonotonicMs) -> None:
        """Note an error: the place pauses."""
        state = self._states[place]
        state.is_pending = False
        state.not_before_ms = now_ms + FAILED_PAUSE_MS

    def reachable(self, address: str, now_ms: MonotonicMs) -> None:
        """End the pauses of a broker that answers again."""
        for place, state in self._states.items():
            if self._routes.master(place.broker_name) == address:
                state.not_before_ms = min(state.not_before_ms, now_ms)

    def hold(self, held: HeldMessage) -> None:
        """Count a message that is held from now on."""
        state = self._states[held.place]
        state.count += 1
        state.size += len(held.message.body)

    def release(self, held: HeldMessage) -> None:
        """Count a message no more."""
        state = self._states[held.place]
        state.count -= 1
        state.size -= len(held.message.body)
