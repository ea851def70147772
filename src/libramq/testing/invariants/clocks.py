"""The invariant of wall clocks: setting a clock changes no duration."""

from collections import deque
from typing import TYPE_CHECKING, Final

from libramq.clock import MonotonicMs
from libramq.groups.rebalance_event import Reason, RebalanceEvent
from libramq.message.names import SCHEDULE_TOPIC
from libramq.testing.invariants.invariant import Invariant
from libramq.waits.held_pulls import SUSPEND_MS_MAX

if TYPE_CHECKING:
    from libramq.broker.broker import Broker
    from libramq.testing.cluster import Cluster

#: Ours: brokers look for due messages every 100 ms, and we look as often; clocks drift a little.
LATE_MS_MAX: Final = 1_000
#: Ours: half of the delay. A delay measured by a clock that was set is off by much more, or it does not
#: matter.
EARLY_SHARE: Final = 2


class ClocksChangeNothing(Invariant):
    """Delays last as long as they should at a running broker; holds end; connected members keep their
    sessions.

    Other effects are seen by the other rules: they allow nothing more after a clock was set.
    """

    name = "a wall clock that is set changes nothing"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_disturbed = False
        self._abandoned = ""
        self._looked_ms = cluster.now_ms
        self._levels: dict[tuple[str, int], _Level] = {}

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def broker_died(self, name: str, durable_to: int | None) -> None:
        """Drop a dead broker's levels: its next process uses the wall clock, which may have been set."""
        self._levels = {key: level for key, level in self._levels.items() if key[0] != name}

    def rebalance_recorded(self, broker: str, event: RebalanceEvent) -> None:
        if event.reason != Reason.SESSION_EXPIRED or self._is_disturbed or event.who is None:
            return
        abandoned = set(event.who.split(", ")).intersection(each.client_id for each in self.cluster.alive())
        if abandoned:  # Raised in `step`: here it would only be logged.
            self._abandoned = f"{broker} gives {', '.join(sorted(abandoned))} up, who are there"

    def step(self) -> None:
        if self._abandoned:
            self.broken(self._abandoned)
        now_ms = self.cluster.now_ms
        for name, node in self.cluster.brokers.items():
            broker = node.broker
            if broker is None:
                continue
            if broker.store.failure is not None:  # Due messages cannot be stored.
                self.broker_died(name, None)
                continue
            self._look_at_delays(name, broker, now_ms)
            due_ms = broker.held.next_due_ms
            if due_ms is not None and not -LATE_MS_MAX <= due_ms - node.process.now_ms <= SUSPEND_MS_MAX:
                self.broken(f"{name} holds a pull for {due_ms - node.process.now_ms} ms")
        self._looked_ms = now_ms

    def _look_at_delays(self, name: str, broker: "Broker", now_ms: MonotonicMs) -> None:
        for number, delay_ms in enumerate(broker.config.delay_levels_ms, 1):
            end = broker.store.max_offset(SCHEDULE_TOPIC, number - 1)
            done = broker.schedule.offsets.get(number, 0)
            level = self._levels.get((name, number))
            if level is None:
                self._levels[name, number] = _Level(end)
                continue
            if end > level.end:
                level.grew(end, self._looked_ms)
            while level.waiting and level.waiting[0][0] <= done:
                _, stored_ms = level.waiting.popleft()
                if now_ms - stored_ms < delay_ms // EARLY_SHARE:
                    self.broken(f"{name} delivers after {now_ms - stored_ms} ms what waits {delay_ms} ms")
            if level.waiting and now_ms - level.waiting[0][1] > delay_ms + LATE_MS_MAX:
                waited_ms = now_ms - level.waiting[0][1]
                self.broken(f"{name} has not delivered after {waited_ms} ms what waits {delay_ms} ms")


class _Level:
    """The waiting messages of a level: the end after each step, and when it was not reached yet."""

    def __init__(self, end: int) -> None:
        self.end = end
        self.waiting: deque[tuple[int, MonotonicMs]] = deque()

    def grew(self, end: int, looked_ms: MonotonicMs) -> None:
        """Note new messages since the last check."""
        self.end = end
        self.waiting.append((end, looked_ms))
