"""The locks of an orderly consumer: when a queue is locked, how often a lock is renewed or retried, and the
consequences of a refusal or doubt.

        LOCKING ─► granted ─► renewed every 20 s ─► released: unlocked
           ▲          └► refused, or held by another after our connection ended: lost
           └── refused: retried after 100 ms, later 500 ms

After a lost connection a lock is in doubt: no handler begins until the broker has confirmed it, and the
committed offset shows that no other member has read the queue.
Upstream: RebalanceImpl.lock, lockAll; ConsumeMessageOrderlyService.java.
"""

from collections.abc import Sequence
from functools import partial
from typing import Final

from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.offset_actions import load
from libramq.client.consuming.ownership.ownership import Ownership
from libramq.client.consuming.ownership.release_actions import lose
from libramq.client.consuming.queues.owned_queue import (
    POSITIONED,
    LockStatus,
    OwnedQueue,
    QueueLock,
    QueueState,
)
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import lock_batch, query_consumer_offset, unlock_batch
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: the delay after a refusal; upstream waits for its next round. The last owner unlocks after its batch.
LOCK_RETRY_MS: Final = 100
#: Ours: the delay after LOCK_RETRIES_SOON refusals.
LOCK_RETRY_LATER_MS: Final = 500
#: Ours: how many refusals are followed by the shorter delay.
LOCK_RETRIES_SOON: Final = 30
#: Ours: the delay after a request that the broker did not answer.
LOCK_FAILED_MS: Final = 1_000
#: RebalanceImpl.lock.
LOCK_TIMEOUT_MS: Final = 1_000
#: ProcessQueue.REBALANCE_LOCK_INTERVAL.
LOCK_RENEW_MS: Final = 20_000


def begin_locked(own: Ownership, owned: OwnedQueue, event: ev.LockGranted, now_ms: MonotonicMs) -> None:
    """Load the offset, after the last owner has had time to commit."""
    owned.lock.trust(event.requested_ms)
    own.announce(owned)
    if own.settings.orderly_takeover_ms:
        owned.state = QueueState.WAITING
        own.load_at(owned, now_ms + own.settings.orderly_takeover_ms)
    else:
        load(own, owned, event, now_ms)


def keep_lock(own: Ownership, owned: OwnedQueue, event: ev.LockGranted, now_ms: MonotonicMs) -> None:
    """Trust the lock for longer."""
    owned.lock.trust(event.requested_ms)


def query_doubt(own: Ownership, owned: OwnedQueue, event: ev.LockGranted, now_ms: MonotonicMs) -> None:
    """Query the offset: another member may have held the lock meanwhile, and read the queue."""
    owned.lock.trust(event.requested_ms)
    call = query_consumer_offset(own.settings.group, owned.queue, zero_if_not_found=True)
    own.ask(owned, event.address, call, ev.OffsetAnswered)


def resolve_doubt(own: Ownership, owned: OwnedQueue, event: ev.OffsetAnswered, now_ms: MonotonicMs) -> None:
    """Continue after our lock was confirmed, unless another member has read further."""
    outcome = event.outcome
    if isinstance(outcome, LibraError):
        own.want_lock_at(owned, now_ms + LOCK_FAILED_MS)
        return
    ours = own.offsets.read(owned.queue)
    if outcome is not None and outcome > (owned.cursor.start_offset if ours is None else ours):
        lose(own, owned, event, now_ms)
    else:
        owned.lock.status = LockStatus.HELD
        own.read(owned)
        own.pulling.go_on(owned, now_ms)


def retry_lock(own: Ownership, owned: OwnedQueue, event: ev.LockRefused, now_ms: MonotonicMs) -> None:
    """Request the lock again, which its last owner still holds."""
    is_soon = owned.lock.refusals < LOCK_RETRIES_SOON
    owned.lock.refusals += 1
    own.want_lock_at(owned, now_ms + (LOCK_RETRY_MS if is_soon else LOCK_RETRY_LATER_MS))


def lock_failed(own: Ownership, owned: OwnedQueue, event: ev.LockFailed, now_ms: MonotonicMs) -> None:
    """Request a lock again, and doubt it once it is about to expire."""
    log_failed_request(log, "queue not locked", event.error, queue=str(owned.queue))
    own.want_lock_at(owned, now_ms + LOCK_FAILED_MS)
    if owned.lock.status is LockStatus.HELD and now_ms >= owned.lock.until_ms - LOCK_FAILED_MS:
        doubt_lock(own, owned, event, now_ms)


def doubt_lock(own: Ownership, owned: OwnedQueue, event: ev.Event, now_ms: MonotonicMs) -> None:
    """Start nothing more under a lock that the broker may give away."""
    if owned.state in (QueueState.LOCKING, QueueState.WAITING, QueueState.OPENING):
        # Nothing was read yet: the queue is locked again as soon as its broker answers a heartbeat.
        owned.state = QueueState.LOCKING
        owned.lock.status = LockStatus.WANTED
        return
    owned.lock.status = LockStatus.IN_DOUBT
    if owned.state in (*POSITIONED, QueueState.SEARCHING):
        owned.state = QueueState.DOUBTED


def lift_lock(own: Ownership, owned: OwnedQueue, event: ev.LocksLifted, now_ms: MonotonicMs) -> None:
    """Return the lock: the coordinator's grant replaces it."""
    own.unlock(owned)
    owned.lock = QueueLock()
    if owned.state is QueueState.DOUBTED:
        own.read(owned)
        own.pulling.go_on(owned, now_ms)


class Locks:
    """Requests and returns locks, with one request for each broker."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        #: In coordinated groups fences keep the order, and `uses_locks` is False.
        self._is_orderly = own.uses_locks
        self._renewal = own.kernel.deadlines.new(self.renew)

    def resume(self) -> None:
        """Begin locking: we allocate for ourselves."""
        self._own.uses_locks = self._is_orderly

    def lift(self, now_ms: MonotonicMs) -> None:
        """Stop locking: a coordinator allocates."""
        self._own.uses_locks = False
        self._own.handle_each(ev.LocksLifted(), now_ms)

    def renew(self, now_ms: MonotonicMs) -> None:
        """Request every lock again."""
        if self._is_orderly:
            self._renewal.at(now_ms + LOCK_RENEW_MS)
        if self._own.uses_locks:
            for owned in self._own.table.each():
                self._own.want_lock(owned)

    def doubt(self, address: str, now_ms: MonotonicMs) -> None:
        """Doubt the locks at a broker whose connection ended; it may give them away."""
        self._own.handle_each(ev.LockDoubted(), now_ms, [owned.queue for owned in self._at(address)])

    def confirm(self, address: str) -> None:
        """Request the locks again at a reconnected broker; lost unlock requests are repeated."""
        unconfirmed = [queue for queue, at in self._own.unlocked.items() if at == address]
        for queue in unconfirmed:
            del self._own.unlocked[queue]
            self._own.to_unlock.setdefault(address, []).append(queue)
        for owned in self._at(address):
            self._own.want_lock(owned)

    def send_requests(self, now_ms: MonotonicMs) -> None:
        """Send one request to each broker with queues to lock, and one to each with queues to unlock."""
        group, client_id = self._own.settings.group, self._own.settings.client_id
        for address, to_unlock in self._own.to_unlock.items():
            done = partial(self._unlocked, len(to_unlock))
            call = unlock_batch(group, client_id, to_unlock)
            self._own.kernel.ask(address, call, done, LOCK_TIMEOUT_MS)
        self._own.to_unlock = {}
        by_address: dict[str, list[OwnedQueue]] = {}
        for owned in self._own.locks_wanted.values():
            if not self._own.table.is_current(owned) or not owned.is_ours:
                continue
            master = self._own.master(owned)
            if master is None:
                self._own.known_brokers.look_soon(now_ms)
                self._own.want_lock_at(owned, now_ms + LOCK_FAILED_MS)
            else:
                owned.lock.address = master
                by_address.setdefault(master, []).append(owned)
        self._own.locks_wanted.clear()
        for address, wanted in by_address.items():
            lock = lock_batch(group, client_id, [owned.queue for owned in wanted])
            locked = partial(self._answered, address, wanted, now_ms)
            self._own.kernel.ask(address, lock, locked, LOCK_TIMEOUT_MS)

    def _answered(
        self,
        address: str,
        wanted: Sequence[OwnedQueue],
        requested_ms: MonotonicMs,
        outcome: Sequence[MessageQueue] | LibraError,
        now_ms: MonotonicMs,
    ) -> None:
        """Handle a broker's answer about our locks."""
        granted = frozenset() if isinstance(outcome, LibraError) else frozenset(outcome)
        for owned in wanted:
            queue = owned.queue
            # Released during the request, or a coordinator allocates now.
            is_unwanted = not self._own.uses_locks or queue not in self._own.table
            if is_unwanted and queue in granted:
                self._own.to_unlock.setdefault(address, []).append(queue)
            elif self._own.uses_locks and self._own.table.is_current(owned):
                event: ev.Event = ev.LockRefused()
                if isinstance(outcome, LibraError):
                    event = ev.LockFailed(outcome)
                elif queue in granted:
                    event = ev.LockGranted(address, requested_ms)
                self._own.handle(owned, event, now_ms)

    def _unlocked(self, count: int, outcome: LibraError | None, _: MonotonicMs) -> None:
        if outcome is not None:  # The broker frees them when our session ends.
            log_failed_request(log, "queues not unlocked", outcome, queues=count)

    def _at(self, address: str) -> list[OwnedQueue]:
        if not self._own.uses_locks:
            return []
        return [owned for owned in self._own.table.each() if self._own.master(owned) == address]
