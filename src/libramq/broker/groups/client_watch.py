"""The client watch: how often a broker looks for silent consumers and producers, to probe and remove them,
and repeats notifications of changes.

    members that have not fetched since a change   notified again, once a second each
    silent members, silent producers               probed, then removed
    rebalances                                     recorded once they have settled
    groups                                         diagnosed every few seconds

When a user is disabled or deleted, its clients are removed: brokers also send clients unrequested messages.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from libramq.broker.groups.consumer_clients import ConsumerClients
from libramq.broker.groups.group_health import GroupHealth
from libramq.broker.groups.group_retries import GroupRetries
from libramq.clock import MonotonicMs, read_clock
from libramq.groups.producer_group import ProducerGroups
from libramq.kernel.connection import Connection, Principal
from libramq.kernel.parts import Kernel, Phase

#: Ours: precision of repeated notifications.
REPEAT_CHECK_MS: Final = 50
#: Ours: precision of the sessions of members that only send heartbeats; a session lasts 75 s.
TICK_MS: Final = 1_000


class ClientWatch:
    """Watches consumers and producers."""

    def __init__(
        self,
        consumers: ConsumerClients,
        producers: ProducerGroups[Connection],
        health: GroupHealth,
        retries: GroupRetries,
        kernel: Kernel,
    ) -> None:
        self._consumers = consumers
        self._producers = producers
        self._health = health
        self._retries = retries
        self._clock = kernel.clock
        self._work = kernel.work
        self._is_checking = self._is_sending = False
        self._tick = kernel.deadlines.new(self._check)
        self._repeat = kernel.deadlines.new(lambda _: consumers.repeat_notifications())
        self._soon = partial(kernel.soon, Phase.TIMERS, self._look)
        consumers.notifications.wake = consumers.rebalances.changed = producers.changed = self._soon
        consumers.observe_members(lambda _: self._soon())
        self._soon()

    def _look(self) -> None:
        """Send notices, the first ones at once, and set the deadlines."""
        consumers = self._consumers
        notifications = consumers.notifications
        if notifications.outbox and not self._is_sending:
            self._is_sending = True
            self._work(self._send())
        if self._repeat.due_ms is None and notifications.unfinished and not notifications.are_repeated:
            self._repeat.at(self._clock.monotonic_ms() + REPEAT_CHECK_MS)
        is_idle = self._tick.due_ms is None and not self._is_checking
        has_clients = consumers.is_busy or len(self._producers)
        if is_idle and (has_clients or self._retries.may_wait or self._health.is_failing):
            self._tick.at(self._clock.monotonic_ms() + TICK_MS)

    def users_changed(self, is_known: Callable[[Principal], bool]) -> None:
        """Remove the clients of users that are no longer valid; their next requests are refused."""
        self._work(self._consumers.remove_disabled(is_known))
        self._work(self._producers.remove_disabled(is_known))

    def connection_ended(self, connection: Connection) -> None:
        """Handle a client's disconnection: it leaves its first group at once, the others in steps."""
        steps = self._leave(connection)
        if next(steps, self) is not self:
            self._work(steps)

    def _leave(self, connection: Connection) -> Iterator[None]:
        """Remove an ended connection from its groups."""
        self._consumers.closed(connection, groups_max=1, now=read_clock(self._clock))
        while self._consumers.is_member(connection):
            yield
            self._consumers.closed(connection, groups_max=1, now=read_clock(self._clock))
        yield from self._producers.remove_peer(connection)

    def _check(self, now_ms: MonotonicMs) -> None:
        self._is_checking = True
        # First, so that the check counts retries delivered before the next check. It may wait for the disk.
        self._work(self._retries.look())
        self._work(self._check_all(now_ms))

    def _check_all(self, now_ms: MonotonicMs) -> Iterator[None]:
        """Check all members, producers, rebalances and groups."""
        try:
            for steps in (
                self._consumers.expire(),
                self._producers.remove_silent(now_ms),
                self._consumers.rebalances.settle(),
                self._health.look(self._retries.waiting() or {}) if self._health.is_due else (),
            ):
                for _ in steps:
                    self._soon()
                    yield
        finally:
            self._is_checking = False
            self._soon()

    def _send(self) -> Iterator[None]:
        try:
            while self._consumers.notifications.outbox:
                self._consumers.send_notices()
                yield
        finally:
            self._is_sending = False
