"""The push consumer's core: its parts handle events and decide on effects; how often changed offsets are
committed, and how often all are.

    start ─► routes ─► heartbeats ─┬► rebalance ────┬► owned queues ─► pulls ─► deliveries ─► commits
                                   └► coordination ─┘

Its parts share a kernel, which collects their effects; `settle` follows each event. Time is an argument.
Upstream: DefaultMQPushConsumerImpl.java, MQClientInstance.java, RebalanceService.java.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from libramq.client.beginning import Begun, GroupBeginning
from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits, OffsetStore, SentCommit
from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import LEAVE_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.fetching.fetched_batch import HeldBatches
from libramq.client.consuming.fetching.fetching import FetchConsumption, FetchDelivering, Fetching
from libramq.client.consuming.handling.consumption import Consumption, OrderlyConsumption
from libramq.client.consuming.handling.handler_deadlines import HandlerDeadlines
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.life import Phase, Troubles
from libramq.client.consuming.membership.coordination import MemberCoordination
from libramq.client.consuming.membership.membership import Membership
from libramq.client.consuming.membership.rebalancing import Rebalancing
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.claims import Claims
from libramq.client.consuming.ownership.locks import Locks
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.transitions import TABLE
from libramq.client.consuming.pulling.pulling import Delivering, Duplicates, Pulling
from libramq.client.consuming.queues.owned_queue import HeldMessages, Lease, OwnedQueue
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.client.consuming.subscription import with_retry_topic
from libramq.client.routing.routes import RouteTable
from libramq.client.statistics import ConsumerStatistics
from libramq.clock import Clock, MonotonicMs, Now
from libramq.errors import LibraError
from libramq.filter.subscription import Selector
from libramq.kernel.deadlines import Deadline
from libramq.message.queue import MessageQueue


class PushConsumerCore:
    """Makes the decisions; its shell performs them."""

    def __init__(
        self,
        settings: ConsumerSettings,
        subscriptions: Mapping[str, Selector],
        clock: Clock,
        failed: Callable[[str, Exception], None],
    ) -> None:
        """Build the parts. clock: the source of event times; handler threads read it as well.

        failed: called with exceptions that are bugs of LibraMQ.
        """
        subscriptions = with_retry_topic(settings, subscriptions)
        self.kernel = kernel = ConsumerKernel(clock, failed)
        routes, duplicates = RouteTable(), Duplicates()
        offsets = OffsetStore(is_manual=not settings.auto_commit)
        lease, troubles = Lease(clock.monotonic_ms), Troubles(kernel.effects)
        table = QueueTable(lease, HeldBatches if settings.fetches else HeldMessages)
        known_brokers = KnownBrokers(settings, subscriptions, routes, kernel, troubles)
        delivering = (FetchDelivering if settings.fetches else Delivering)(settings, lease, kernel.effects)
        self.own = own = Ownership(
            transitions=TABLE,
            settings=settings,
            routes=routes,
            offsets=offsets,
            kernel=kernel,
            known_brokers=known_brokers,
            round_due=kernel.deadlines.new(lambda now_ms: self.rebalancing.begin(now_ms)),  # noqa: PLW0108 # It is made below.
            table=table,
            pulling=Pulling(settings, subscriptions, offsets, table, known_brokers, delivering, duplicates),
            commits=Commits(settings, offsets, table, known_brokers),
            uses_locks=settings.orderly and not settings.broadcasting,
        )
        self.locks, self.claims = Locks(own), Claims(own)
        membership = Membership(settings, subscriptions, kernel, known_brokers.addresses_to_query)
        if settings.fetches:
            consumption: type[Consumption] = FetchConsumption
        else:
            consumption = OrderlyConsumption if settings.orderly else Consumption
        self.consumption = consumption(own, delivering, duplicates)
        self.rebalancing = Rebalancing(subscriptions, own, allocates=lambda: self.coordination.allocates)
        commits_due = kernel.deadlines.new(lambda now_ms: self._persistence.due(now_ms))  # noqa: PLW0108 # It is made below.
        self.coordination = MemberCoordination(
            membership, self.rebalancing, duplicates, own, self.locks, self.claims, troubles, commits_due
        )
        self._persistence = Persistence(own, self.coordination, commits_due)
        self.deadlines = HandlerDeadlines(settings, kernel, table, self.consumption, self.coordination)
        self.coordination.overrun = self.deadlines.overrun
        self.fetching = Fetching(own, self.rebalancing)
        self._settings, self.troubles = settings, troubles
        self.offsets, self.routes, self.known_brokers, self.table = offsets, routes, known_brokers, table
        self.handled = self.deadlines.handled
        self.members_changed = self.rebalancing.begin  # A broker's notification (request code 40).
        known_brokers.routes_changed, known_brokers.met = self._routes_changed, self._met
        own.commits.on_committed = self._committed
        self.coordination.on_left = self._left
        self._stop_due = kernel.deadlines.new(self._stop_now)
        self._phase = Phase.NEW

    @property
    def begins_handlers(self) -> bool:
        """Return whether handlers may begin: the consumer is neither paused nor stopping."""
        return self._phase is Phase.RUNNING and not self.table.is_all_paused

    def owned(self) -> list[MessageQueue]:
        """Return our queues, sorted."""
        return self.table.ours()

    def process_queues(self) -> list[OwnedQueue]:
        """Return the queues that are owned or being released."""
        return self.table.each()

    def work(self) -> ConsumerStatistics:
        """Return the current work."""
        return self.table.work()

    # Start and time.

    def start(self, now: Now) -> None:
        """Start by fetching the routes."""
        self._phase = Phase.RUNNING
        self._persistence.start(now.monotonic_ms)
        self.locks.renew(now.monotonic_ms)
        if not self._settings.fetches:
            self.deadlines.watch(now.monotonic_ms)
        self.known_brokers.start(now)

    def began(self, begun: Begun, _: GroupBeginning | None) -> None:
        """Note the time from which queues without an offset are read."""
        self.own.since_ms = begun.since_ms

    # Routes and heartbeats.

    def _routes_changed(self, now_ms: MonotonicMs) -> None:
        # The last broker without coordination may be gone: no answer will show it.
        if self.known_brokers.all_named_offer:
            self.coordination.look(now_ms)
        if self.known_brokers.alive:
            self.rebalancing.begin(now_ms)

    def _met(self, address: str, now_ms: MonotonicMs) -> None:
        """Continue at a broker that answers for the first time, or again."""
        self.coordination.look(now_ms)
        self.own.pulling.reachable(address, now_ms)
        self.locks.confirm(address)
        self.rebalancing.begin(now_ms)

    def connection_lost(self, address: str, now_ms: MonotonicMs) -> None:
        """Handle the end of a connection: the broker has dropped us, or has died."""
        self.known_brokers.lost(address, now_ms)
        self.locks.doubt(address, now_ms)

    # Coordination.

    def _left(self, now_ms: MonotonicMs) -> None:
        if self._phase is Phase.LEAVING:
            self.known_brokers.unregister(now_ms)

    # Queues and messages.

    def offsets_set(self, topic: str, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs) -> None:
        """Handle an operator's reset of the group's offsets (request code 220)."""
        for queue, offset in offsets.items():
            if queue.topic == topic:
                self.own.handle_each(ev.OffsetSet(offset), now_ms, [queue])

    def hook_done(self, change: fx.QueueChange, now_ms: MonotonicMs) -> None:
        """Read assigned queues for which the listener has returned; release revoked ones."""
        if isinstance(change, fx.Assigned):
            for queue in change.queues:
                self.table.hook_ended(queue)
            self.own.handle_each(ev.Resumed(), now_ms, change.queues)
        elif isinstance(change, fx.Revoked):
            self.own.handle_each(ev.ListenerDone(), now_ms, change.queues)

    def pause(self, queues: Iterable[MessageQueue] | None, now_ms: MonotonicMs) -> None:
        """Start no more handlers and pulls for queues (None: for any); they stay ours."""
        self.table.pause(queues)
        self.own.handle_each(ev.Paused(), now_ms)

    def resume(self, queues: Iterable[MessageQueue] | None, now_ms: MonotonicMs) -> None:
        """Continue queues (None: all)."""
        self.table.resume(queues)
        self.own.handle_each(ev.Resumed(), now_ms)

    def _committed(self, commit: SentCommit, outcome: LibraError | None, now_ms: MonotonicMs) -> None:
        self.fetching.commits.answered(commit, outcome)  # First: the next call may remove the queue.
        self.own.committed(commit, outcome, now_ms)

    # Stop.

    def stop(self, now_ms: MonotonicMs, *, timeout_ms: int) -> None:
        """Let running handlers finish, commit, unregister; takes little longer than the timeout."""
        if self._phase is Phase.NEW:
            self._phase = Phase.STOPPED
            self.kernel.effects.add(fx.Stopped())
        if self._phase is not Phase.RUNNING:
            return
        self._phase = Phase.DRAINING
        self.own.closing = True
        self.known_brokers.close()
        self.kernel.deadlines.clear()
        self._stop_due.at(now_ms + timeout_ms)
        self.coordination.rearm(now_ms)
        self.coordination.begin_leaving()
        self.own.handle_each(ev.Unassigned(timeout_ms), now_ms)

    def _stop_now(self, now_ms: MonotonicMs) -> None:
        if self._phase is not Phase.DRAINING:
            return
        self.own.handle_each(ev.Unassigned(drain_ms=0), now_ms)
        if len(self.table):
            self._stop_due.at(now_ms + LEAVE_TIMEOUT_MS)

    def settle(self) -> None:
        """Make the follow-up decisions of an event. Each part sees the changes of earlier ones."""
        now_ms = self.kernel.clock.monotonic_ms()
        if self.own.locks_wanted or self.own.to_unlock:
            self.locks.send_requests(now_ms)
        if self.fetching.commits.waiting:
            self.fetching.commits.settle()
        if self._phase is Phase.DRAINING and not len(self.table):
            self._phase = Phase.LEAVING
            if not self.coordination.leave():
                self.known_brokers.unregister(now_ms)
        elif self._phase in (Phase.RUNNING, Phase.DRAINING):
            self.coordination.send_requests(now_ms)
        if self._persistence.rests and self._phase is Phase.RUNNING:
            self._persistence.settle(now_ms)
        if len(self.kernel.effects.pending) > 1:  # Most events have one effect at most.
            _merge_changes(self.kernel.effects.pending)


def _merge_changes(effects: list[msgspec.Struct]) -> None:
    """Merge changes of queues: the listener gets one call of each kind, not one per queue."""
    merged: dict[object, msgspec.Struct] = {}
    for position, effect in enumerate(effects):
        if isinstance(effect, fx.QueueChange):
            first = merged.get(type(effect))
            queues = first.queues if isinstance(first, fx.QueueChange) else ()
            merged[type(effect)] = type(effect)((*queues, *effect.queues))
        else:
            merged[position] = effect
    effects[:] = merged.values()


#: ClientConfig.persistConsumerOffsetInterval: how often even unchanged offsets are committed, in case the
#: last owner's commit came after our first.
PERSIST_ALL_MS: Final = 5_000


class Persistence:
    """Commits changed offsets periodically, and all of them from time to time.

    Under a coordinator only changed offsets are committed, so the timer rests while all are acknowledged:
    otherwise a thousand idle consumers would wake their process ten thousand times a second.
    """

    def __init__(self, own: Ownership, coordination: MemberCoordination, timer: Deadline) -> None:
        """Set up the timer of the next commits; the coordination may set it to an earlier time."""
        self._own = own
        self._coordination = coordination
        self._timer = timer
        self._persisted_ms = self._persist_all_due_ms = MonotonicMs(0)
        #: Whether the timer is off because there is nothing to commit.
        self.rests = False

    def start(self, now_ms: MonotonicMs) -> None:
        """Set the first commits."""
        self._persisted_ms = now_ms
        self._timer.at(now_ms + self._coordination.persist_ms)
        self._persist_all_due_ms = now_ms + PERSIST_ALL_MS

    def due(self, now_ms: MonotonicMs) -> None:
        """Commit changed offsets; all of them if a former owner may have committed after us."""
        period_ms = self._coordination.persist_ms
        if now_ms - self._persisted_ms < period_ms:  # The period has become longer.
            self._timer.at(self._persisted_ms + period_ms)
            return
        self._persisted_ms = now_ms
        # A program that fetches finishes messages without an event.
        may_rest = not (self._coordination.allocates or self._own.settings.fetches)
        if may_rest and self._own.offsets.is_acknowledged:
            self.rests, self._own.offsets.is_changed = True, False
        else:
            self._timer.at(now_ms + period_ms)
        # If a coordinator allocates, no former owner commits after us.
        is_shared = self._coordination.allocates and not self._own.settings.assigns
        all_of_them = is_shared and self._own.settings.auto_commit and now_ms >= self._persist_all_due_ms
        if all_of_them:
            self._persist_all_due_ms = now_ms + PERSIST_ALL_MS
        self._own.commits.commit(self._own.table.each(), all_of_them=all_of_them)

    def settle(self, now_ms: MonotonicMs) -> None:
        """Restart a resting timer if an offset has changed, at its regular time."""
        if self._own.offsets.is_changed or self._coordination.allocates:
            self.rests = False
            period_ms = self._coordination.persist_ms
            periods = (now_ms - self._persisted_ms) // period_ms + 1
            self._timer.at(self._persisted_ms + periods * period_ms)
