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
#: How long a returning master waits for its acting slave's messages (ReturningMaster.WAIT_MS_MAX).
AWAITED_MS: Final = 30_000
#: Ours: at least half of the delay must have passed. A delay measured by a clock that was set is either off
#: by much more, or the error does not matter.
EARLY_SHARE: Final = 2


class ClocksChangeNothing(Invariant):
    """Check that setting a wall clock affects no running delay, held pull, or connected member's session.

    Other effects are caught by the other rules, which allow no exceptions after a clock was set.
    """

    name = "setting a wall clock changes no duration"

    def __init__(self, cluster: "Cluster") -> None:
        super().__init__(cluster)
        self._is_disturbed = False
        self._abandoned = ""
        self._looked_ms = cluster.now_ms
        #: When each broker's process was last paused.
        self._paused_ms: dict[str, MonotonicMs] = {}
        self._levels: dict[tuple[str, int], tuple[_Ends, _Ends]] = {}

    def disturbed(self, what: str) -> None:
        self._is_disturbed = True

    def broker_died(self, name: str, durable_to: int | None) -> None:
        """Drop a dead broker's levels: its next process relies on the wall clock, which may have been set."""
        self._levels = {key: level for key, level in self._levels.items() if key[0] != name}

    def rebalance_recorded(self, broker: str, event: RebalanceEvent) -> None:
        if event.reason != Reason.SESSION_EXPIRED or self._is_disturbed or event.who is None:
            return
        abandoned = set(event.who.split(", ")).intersection(each.client_id for each in self.cluster.alive())
        if abandoned:  # Raised in `step`: here it would only be logged.
            self._abandoned = f"{broker} gives up {', '.join(sorted(abandoned))}, which are alive"

    def step(self) -> None:
        if self._abandoned:
            self.broken(self._abandoned)
        now_ms = self.cluster.now_ms
        for name, node in self.cluster.brokers.items():
            broker = node.broker
            if broker is None:
                continue
            if broker.store.failure is not None or node.process.is_paused:  # Nothing due can be stored.
                self.broker_died(name, None)
                self._paused_ms[name] = now_ms
                continue
            self._look_at_delays(name, broker, now_ms)
            due_ms = broker.held.next_due_ms
            # A resumed process handles overdue events only as far as each turn has time for.
            is_behind = now_ms - self._paused_ms.get(name, now_ms - LATE_MS_MAX) < LATE_MS_MAX
            earliest_ms = node.process.now_ms - LATE_MS_MAX
            if due_ms is not None and (
                due_ms > node.process.now_ms + SUSPEND_MS_MAX or (due_ms < earliest_ms and not is_behind)
            ):
                self.broken(f"{name} holds a pull for {due_ms - node.process.now_ms} ms")
        self._looked_ms = now_ms

    def _look_at_delays(self, name: str, broker: "Broker", now_ms: MonotonicMs) -> None:
        for number, delay_ms in enumerate(broker.config.delay_levels_ms, 1):
            stored_end = broker.store.next_offset(SCHEDULE_TOPIC, number - 1)
            readable_end = broker.store.max_offset(SCHEDULE_TOPIC, number - 1)
            done = broker.schedule.offsets.get(number, 0)
            ends = self._levels.get((name, number))
            if ends is None:
                self._levels[name, number] = _Ends(stored_end), _Ends(readable_end)
                continue
            stored, readable = ends
            stored.reached(stored_end, self._looked_ms)
            readable.reached(readable_end, self._looked_ms)
            for stored_ms in stored.passed(done):
                if now_ms - stored_ms < delay_ms // EARLY_SHARE:
                    self.broken(
                        f"{name} delivers after {now_ms - stored_ms} ms with a delay of {delay_ms} ms"
                    )
            readable.passed(done)
            late_ms = LATE_MS_MAX
            if self.cluster.has_acting_slaves and name in self.cluster.slaves:
                late_ms += AWAITED_MS
            if readable.waiting and now_ms - readable.waiting[0][1] > delay_ms + late_ms:
                waited_ms = now_ms - readable.waiting[0][1]
                self.broken(f"{name} has not delivered after {waited_ms} ms, the delay is {delay_ms} ms")


class _Ends:
    """The end of a level's queue after each step, and the last time when it was not yet reached.

    A delay runs from storing. The message may become readable only later, when an absent slave is back.
    """

    def __init__(self, end: int) -> None:
        self._end = end
        self.waiting: deque[tuple[int, MonotonicMs]] = deque()

    def reached(self, end: int, looked_ms: MonotonicMs) -> None:
        """Note new messages since the last check."""
        if end > self._end:
            self._end = end
            self.waiting.append((end, looked_ms))

    def passed(self, done: int) -> list[MonotonicMs]:
        """Remove the ends that are fully delivered; return the last time before each was reached."""
        times = []
        while self.waiting and self.waiting[0][0] <= done:
            times.append(self.waiting.popleft()[1])
        return times
