"""The giving up: from the moment a queue is revoked to the moment another member may have it.

    DRAINING ─► REVOKING ─► LEAVING ─► GONE
    handlers    listener    commit

Upstream: RebalancePushImpl.removeUnnecessaryMessageQueue.
"""

from collections.abc import Iterable

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import DrainOver, Due, RevokeOver
from libramq.client.consuming.ownership.opening import Opening
from libramq.client.consuming.ownership.owned_queues import OwnedQueues
from libramq.client.consuming.ownership.process_queue import ProcessQueue, QueueState
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.timers import DueItems
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import Fenced, LibraError, NotYetGranted
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue

log = get_logger(__name__)


class GivingUp:
    """The queues being released, each with what it waits for."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        offsets: OffsetStore,
        timers: DueItems[Due],
        table: QueueTable,
        commits: Commits,
        owned_queues: OwnedQueues,
        opening: Opening,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._offsets = offsets
        self._timers = timers
        self._table = table
        self._commits = commits
        self._owned_queues = owned_queues
        self._opening = opening

    def give_up(self, queue: MessageQueue, now_ms: MonotonicMs, *, drain_ms: int) -> list[fx.Effect]:
        """Start no more handlers, wait for running ones, commit, release."""
        owned = self._table.get(queue)
        if owned is None:
            return []
        owned.wanted_again = False
        if owned.dropped:
            return [] if drain_ms else self._hurry(owned, now_ms)
        owned.dropped = True
        owned.revocation_requested_at_ms = now_ms
        if owned.state is QueueState.LOCKING:
            return self._owned_queues.give_lock_up(owned)
        owned.state = QueueState.DRAINING
        owned.deliveries = {delivery for delivery in owned.deliveries if delivery.started}
        if owned.is_busy and drain_ms:
            self._timers.at(now_ms + drain_ms, DrainOver(queue, owned.generation))
            return self._commits.commit([owned])
        return self._revoke(owned, now_ms)

    def drained(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Note that a handler of a queue being given up has returned; after the last, continue."""
        if owned.state is not QueueState.DRAINING or owned.is_busy or self._offsets.is_frozen(owned.queue):
            return []
        return self._revoke(owned, now_ms)

    def drain_over(self, queue: MessageQueue, generation: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Stop waiting for running handlers: their messages will be redelivered elsewhere."""
        owned = self._going(queue, generation, QueueState.DRAINING)
        return [] if owned is None else self._revoke(owned, now_ms)

    def revoke_hook_done(self, queues: Iterable[MessageQueue], now_ms: MonotonicMs) -> list[fx.Effect]:
        """Note that the listener has finished with revoked queues."""
        found: list[fx.Effect] = []
        for queue in queues:
            owned = self._table.get(queue)
            if owned is not None and owned.state is QueueState.REVOKING:
                found += self.leave(owned, now_ms)
        return found

    def revoke_over(self, queue: MessageQueue, generation: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Stop waiting for the listener."""
        owned = self._going(queue, generation, QueueState.REVOKING)
        if owned is None:
            return []
        log.warning("the listener has not released a revoked queue in time", queue=str(queue))
        return self.leave(owned, now_ms)

    def leave(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Release a queue when its last commit is acknowledged."""
        owned.state = QueueState.LEAVING
        if self._settings.broadcasting:
            return [*self._commits.commit([owned]), *self._owned_queues.let_go(owned, now_ms)]
        awaited = self._commits.last(owned)
        return self._owned_queues.let_go(owned, now_ms) if awaited is None else awaited

    def go_on(self, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Send the last commits that were held."""
        found: list[fx.Effect] = []
        for owned in self._table.each():
            if not owned.commit_awaited:
                found += self._after_commit(owned, now_ms)
        return found

    def committed(
        self, commit: fx.CommitOffset, outcome: LibraError | None, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle the result of a commit."""
        owned, others_may_go = self._commits.answered(commit, ok=outcome is None)
        found: list[fx.Effect] = []
        if owned is not None:
            if isinstance(outcome, Fenced | NotYetGranted) and commit.claim is not None:
                found += self._opening.refused(owned, commit.claim, outcome, now_ms)
            if self._table.is_current(owned):
                found += self._after_commit(owned, now_ms)
        return found + self.go_on(now_ms) if others_may_go else found

    def _after_commit(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        if self._offsets.is_frozen(owned.queue):
            return self._owned_queues.begin_anew(owned, now_ms)
        return self.leave(owned, now_ms) if owned.state is QueueState.LEAVING else []

    def _hurry(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Skip to the next step: the time for the current one is over."""
        if owned.state is QueueState.DRAINING:
            return self._revoke(owned, now_ms)
        return self._owned_queues.let_go(owned, now_ms)

    def _revoke(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        queue = owned.queue
        has_no_master = not self._settings.broadcasting and self._routes.master(queue.broker_name) is None
        if owned.is_in_doubt or has_no_master:
            return [fx.Lost((queue,)), *self._owned_queues.let_go(owned, now_ms)]
        found = [*self._commits.commit([owned]), fx.Revoked((queue,))]
        if self._settings.has_revoke_hook:
            owned.state = QueueState.REVOKING
            # The coordinator's revoke timeout covers handlers and listener together.
            since_ms = owned.revocation_requested_at_ms if owned.granted is not None else now_ms
            self._timers.at(since_ms + self._settings.revoke_timeout_ms, RevokeOver(queue, owned.generation))
            return found
        return found + self.leave(owned, now_ms)

    def _going(self, queue: MessageQueue, generation: int, state: QueueState) -> ProcessQueue | None:
        owned = self._table.get(queue)
        is_same = owned is not None and owned.generation == generation and owned.state is state
        return owned if is_same else None
