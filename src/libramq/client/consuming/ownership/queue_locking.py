"""The queue locking: which queues to lock at which broker, with one request for each broker.

Its answers become events of the queues (`lock_actions`).
Upstream: RebalanceImpl.lock, lockAll; ConsumeMessageOrderlyService.java.
"""

from collections.abc import Collection, Iterable
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.lock_actions import LOCK_FAILED_MS
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.message.queue import MessageQueue

#: ProcessQueue.REBALANCE_LOCK_INTERVAL.
LOCK_RENEW_MS: Final = 20_000


class QueueLocking:
    """The locks to request, and those to return."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        #: In coordinated groups fences keep the order, and `uses_locks` is False.
        self._is_orderly = own.uses_locks
        self._renewal = own.timers.new(self.renew)
        self.to_give_back: dict[str, list[MessageQueue]] = {}

    def resume(self) -> None:
        """Begin locking: we allocate for ourselves."""
        self._own.uses_locks = self._is_orderly

    def lift(self, now_ms: MonotonicMs) -> Effects:
        """Stop locking: a coordinator allocates."""
        self._own.uses_locks = False
        return self._own.handle_each(ev.LocksLifted(), now_ms)

    def renew(self, now_ms: MonotonicMs) -> Effects:
        """Request every lock again."""
        if self._is_orderly:
            self._renewal.at(now_ms + LOCK_RENEW_MS)
        if self._own.uses_locks:
            self._want(self._own.table.each())
        return []

    def doubt(self, address: str, now_ms: MonotonicMs) -> Effects:
        """Doubt the locks at a broker whose connection ended; it may give them away."""
        steps: Effects = []
        for owned in self._at(address):
            steps += self._own.handle(owned, ev.LockDoubted(), now_ms)
        return steps

    def confirm(self, address: str) -> None:
        """Request the locks again at a reconnected broker; lost unlock requests are repeated."""
        unconfirmed = [queue for queue, at in self._own.unlocked.items() if at == address]
        for queue in unconfirmed:
            del self._own.unlocked[queue]
            self.to_give_back.setdefault(address, []).append(queue)
        self._want(self._at(address))

    def requests(self, now_ms: MonotonicMs) -> Effects:
        """Return one request for each broker with queues to lock, and one for each with queues to unlock."""
        steps: Effects = [
            fx.UnlockQueues(address, tuple(queues)) for address, queues in self.to_give_back.items()
        ]
        self.to_give_back.clear()
        by_address: dict[str, list[tuple[MessageQueue, int]]] = {}
        for queue, generation in self._own.locks_wanted.items():
            owned = self._own.table.same(queue, generation)
            if owned is None or not owned.is_ours:
                continue
            address = self._own.master(owned)
            if address is None:
                steps += self._own.presence.look_soon(now_ms)
                self._own.want_lock_at(now_ms + LOCK_FAILED_MS, owned)
            else:
                owned.lock = owned.lock.requested(address)
                by_address.setdefault(address, []).append((queue, generation))
        self._own.locks_wanted.clear()
        steps += [fx.LockQueues(address, tuple(queues), now_ms) for address, queues in by_address.items()]
        return steps

    def answered(
        self, request: fx.LockQueues, granted: Collection[MessageQueue] | LibraError, now_ms: MonotonicMs
    ) -> Effects:
        """Handle a broker's answer about our locks."""
        if not self._own.uses_locks:  # A coordinator allocates in the meantime.
            kept = () if isinstance(granted, LibraError) else granted
            return self._give_back(request, [queue for queue, _ in request.queues if queue in kept])
        steps: Effects = []
        unwanted: list[MessageQueue] = []
        for queue, generation in request.queues:
            owned = self._own.table.same(queue, generation)
            if owned is not None:
                steps += self._own.handle(owned, _outcome(request, queue, granted), now_ms)
            elif not isinstance(granted, LibraError) and queue in granted and queue not in self._own.table:
                unwanted.append(queue)  # Given up during the request.
        return steps + self._give_back(request, unwanted)

    def _give_back(self, request: fx.LockQueues, queues: list[MessageQueue]) -> Effects:
        return [fx.UnlockQueues(request.address, tuple(queues))] if queues else []

    def _want(self, queues: Iterable[OwnedQueue]) -> None:
        for owned in queues:
            self._own.want_lock(owned)

    def _at(self, address: str) -> list[OwnedQueue]:
        if not self._own.uses_locks:
            return []
        return [owned for owned in self._own.table.each() if self._own.master(owned) == address]


def _outcome(
    request: fx.LockQueues, queue: MessageQueue, granted: Collection[MessageQueue] | LibraError
) -> ev.LockGranted | ev.LockRefused | ev.LockFailed:
    if isinstance(granted, LibraError):
        return ev.LockFailed(granted)
    return ev.LockGranted(request.address, request.requested_ms) if queue in granted else ev.LockRefused()
