"""The client watch: a broker's timed work for its clients, while it has any.

members that have not fetched since a change   notified again, once a second each
silent members, silent producers               probed, then removed
rebalances                                     recorded once they have settled
groups                                         diagnosed every few seconds
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_health import GroupHealth
from libramq.clock import MonotonicMs, read_clock
from libramq.groups.notice import Notice
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection
from libramq.kernel.parts import Kernel, Phase

#: Ours: the precision of repeated notifications.
REPEAT_CHECK_MS: Final = 50
#: Ours: the precision of the sessions of members that send heartbeats only; these last 75 s.
TICK_MS: Final = 1_000
#: Ours: notices that are sent before others are served, each in 5 µs. When one of twenty clients with 1,000
#: groups comes or goes, there are 19,000.
NOTIFIED_PER_STEP: Final = 128
#: Ours: groups that a connection leaves before others are served, each in 0.1 ms.
LEFT_PER_STEP: Final = 16


class ClientWatch:
    """Watches consumers and producers. notify: sends notices."""

    def __init__(
        self,
        consumers: ConsumerClients,
        producers: ProducerGroups[Connection],
        health: GroupHealth,
        kernel: Kernel,
        *,
        notify: Callable[[Sequence[Notice[Connection]]], None],
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._health = health
        self._clock = kernel.clock
        self._notify = notify
        self._leaving: deque[Connection] = deque()
        self._departure = kernel.deadlines.new(lambda _: self._leave())
        self._round: Iterator[None] = iter(())
        self._checking = kernel.deadlines.new(self._check_on)
        self._diagnosing = kernel.deadlines.new(lambda _: self._diagnose())
        self._sending = kernel.deadlines.new(lambda _: self._send())
        self._tick = kernel.deadlines.new(self._check)
        self._repeat = kernel.deadlines.new(lambda _: self._notify_again())
        self._soon = partial(kernel.soon, Phase.TIMERS, self._look)
        consumers.notifications.wake = consumers.rebalances.changed = producers.changed = self._soon
        consumers.observe_members(lambda _: self._soon())
        self._soon()

    def _look(self) -> None:
        """Send notices, the first ones at once, and set the deadlines."""
        consumers = self._consumers
        if consumers.notifications.outbox and self._sending.due_ms is None:
            self._send()
        if consumers.notifications.to_look_at:
            self._repeat.by(self._clock.monotonic_ms())
        elif self._repeat.due_ms is None and consumers.notifications.unfinished:
            self._repeat.at(self._clock.monotonic_ms() + REPEAT_CHECK_MS)
        is_idle = self._tick.due_ms is None and self._checking.due_ms is None
        if is_idle and (consumers.is_busy or len(self._producers)):
            self._tick.at(self._clock.monotonic_ms() + TICK_MS)

    def connection_ended(self, connection: Connection) -> None:
        """Handle a client's disconnection."""
        self._producers.remove_peer(connection)
        self._leaving.append(connection)
        if self._departure.due_ms is None:
            self._leave()

    def _notify_again(self) -> None:
        self._consumers.repeat_notifications()
        self._soon()

    def _leave(self) -> None:
        """Remove ended connections from their groups, a slice of groups at a time."""
        connection = self._leaving.popleft()
        now = read_clock(self._clock)
        try:
            self._consumers.closed(connection, groups_max=LEFT_PER_STEP, now=now)
            if self._consumers.is_member(connection):
                self._leaving.appendleft(connection)
        finally:
            if self._leaving:
                self._departure.at(now.monotonic_ms)

    def _check(self, now_ms: MonotonicMs) -> None:
        """Begin a round over all members, producers and rebalances."""
        self._round = chain(
            self._consumers.expire(),
            self._producers.remove_silent(now_ms),
            self._consumers.rebalances.settle(),
        )
        self._check_on(now_ms)

    def _check_on(self, now_ms: MonotonicMs) -> None:
        """Check some more, and the others after everything else was served."""
        self._soon()
        if next(self._round, self) is not self:
            self._checking.at(now_ms)
            return
        self._health.tick()
        self._diagnosing.at(now_ms)

    def _diagnose(self) -> None:
        """Check some groups' health, and the others after everything else was served."""
        self._health.look_on()
        if self._health.is_looking:
            self._diagnosing.at(self._clock.monotonic_ms())

    def _send(self) -> None:
        """Send a slice of the notices, and the others after everything else was served."""
        outbox = self._consumers.notifications.outbox
        self._notify(outbox.take(NOTIFIED_PER_STEP))
        if outbox:
            self._sending.at(self._clock.monotonic_ms())
