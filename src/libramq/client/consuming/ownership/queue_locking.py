"""The queue locking: which queues to lock at which broker, and what its answers mean.

        LOCKING ─► granted ─► renewed every 20 s ─► given up: unlocked
           ▲          └► refused, or held by another after our connection ended: lost
           └── refused: retried after 100 ms, later 500 ms

A lock holds 60 s at the broker and is trusted 30 s here, counted from its request. After the end of a
connection it is in doubt: no handler begins until the broker has confirmed it.
Upstream: RebalanceImpl.lock, lockAll; ConsumeMessageOrderlyService.java.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due, LockDue, LocksDue
from libramq.client.consuming.ownership.process_queue import ProcessQueue, QueueState
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.timers import DueItems
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: ProcessQueue.REBALANCE_LOCK_INTERVAL and REBALANCE_LOCK_MAX_LIVE_TIME.
LOCK_RENEW_MS: Final = 20_000
LOCK_TRUSTED_MS: Final = 30_000
#: Ours; upstream waits for its next round. The last owner unlocks when its batch is done.
LOCK_RETRY_MS: Final = 100
LOCK_RETRY_LATER_MS: Final = 500
LOCK_RETRIES_SOON: Final = 30
#: Ours: a silent broker is not asked more often.
LOCK_FAILED_MS: Final = 1_000


@dataclass(slots=True)
class LockResult:
    """The effect of a broker's answer on queues."""

    granted: list[ProcessQueue] = field(default_factory=list)
    confirmed: list[ProcessQueue] = field(default_factory=list)
    lost: list[ProcessQueue] = field(default_factory=list)
    unwanted: list[MessageQueue] = field(default_factory=list)


class QueueLocking:
    """The queue locks to request, and those that are held."""

    def __init__(
        self, settings: ConsumerSettings, routes: RouteTable, timers: DueItems[Due], table: QueueTable
    ) -> None:
        self._is_orderly = settings.orderly and not settings.broadcasting
        #: Not in coordinated groups: there, fences keep the order.
        self.is_needed = self._is_orderly
        self._routes = routes
        self._timers = timers
        self._table = table
        self._wanted: dict[MessageQueue, int] = {}
        self._returned: dict[MessageQueue, str] = {}
        self._to_give_back: dict[str, list[MessageQueue]] = {}

    def need(self) -> None:
        """Begin locking: we allocate for ourselves."""
        self.is_needed = self._is_orderly

    def want(self, owned: ProcessQueue) -> None:
        """Lock a queue with the next requests."""
        self._wanted[owned.queue] = owned.generation
        self._returned.pop(owned.queue, None)

    def gave_back(self, queue: MessageQueue, address: str) -> None:
        """Note that an unlock request is being sent to a broker."""
        self._returned[queue] = address

    def due(self, queue: MessageQueue, generation: int) -> None:
        """Retry after a pause."""
        owned = self._table.current(queue, generation)
        if owned is not None:
            self.want(owned)

    def retry(self, owned: ProcessQueue, now_ms: MonotonicMs, delay_ms: int) -> None:
        """Schedule another request for a queue."""
        self._timers.at(now_ms + delay_ms, LockDue(owned.queue, owned.generation))

    def renew(self, now_ms: MonotonicMs) -> None:
        """Request every lock again."""
        if self._is_orderly:
            self._timers.at(now_ms + LOCK_RENEW_MS, LocksDue())
        if self.is_needed:
            self._want_all(self._table.all())

    def doubt(self, address: str) -> None:
        """Doubt the locks at a broker whose connection ended; it may give them away."""
        for owned in self._at(address):
            owned.is_locked = False
            owned.is_in_doubt = owned.state is not QueueState.LOCKING

    def confirm(self, address: str) -> None:
        """Request the locks again at a reconnected broker; lost unlock requests are repeated."""
        self._want_all(owned.queue for owned in self._at(address))
        unconfirmed = [queue for queue, at in self._returned.items() if at == address]
        for queue in unconfirmed:
            del self._returned[queue]
            self._to_give_back.setdefault(address, []).append(queue)

    def requests(self, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Return one request for each broker with queues to lock, and one for each with queues to unlock."""
        if not self._to_give_back and not self._wanted:  # As after most events.
            return []
        found: list[fx.Effect] = [
            fx.UnlockQueues(address, tuple(queues)) for address, queues in self._to_give_back.items()
        ]
        self._to_give_back.clear()
        by_address: dict[str, list[tuple[MessageQueue, int]]] = {}
        for queue, generation in self._wanted.items():
            owned = self._table.current(queue, generation)
            if owned is None:
                continue
            address = self._routes.master(queue.broker_name)
            if address is None:
                self.retry(owned, now_ms, LOCK_FAILED_MS)
            else:
                owned.lock_requested_at = address
                by_address.setdefault(address, []).append((queue, generation))
        self._wanted.clear()
        found += [fx.LockQueues(address, tuple(queues), now_ms) for address, queues in by_address.items()]
        return found

    def answered(
        self, request: fx.LockQueues, granted: Collection[MessageQueue] | LibraError, now_ms: MonotonicMs
    ) -> LockResult:
        """Handle a broker's answer about our locks."""
        result = LockResult()
        for queue, generation in request.queues:
            owned = self._table.current(queue, generation)
            if owned is None:
                if (
                    self._table.get(queue) is None
                    and not isinstance(granted, LibraError)
                    and queue in granted
                ):
                    result.unwanted.append(queue)  # Given up during the request.
            elif isinstance(granted, LibraError):
                self._failed(owned, granted, now_ms)
            elif queue in granted:
                self._granted(owned, request.requested_ms, result)
            elif owned.state is QueueState.LOCKING:
                soon = owned.lock_tries < LOCK_RETRIES_SOON
                owned.lock_tries += 1
                self.retry(owned, now_ms, LOCK_RETRY_MS if soon else LOCK_RETRY_LATER_MS)
            else:
                result.lost.append(owned)
        return result

    def give_back(
        self, request: fx.LockQueues, granted: Collection[MessageQueue] | LibraError
    ) -> list[fx.Effect]:
        """Unlock locks that are no longer needed."""
        if isinstance(granted, LibraError) or not granted:
            return []
        return [
            fx.UnlockQueues(request.address, tuple(queue for queue, _ in request.queues if queue in granted))
        ]

    def _granted(self, owned: ProcessQueue, requested_ms: MonotonicMs, result: LockResult) -> None:
        owned.locked_until_ms = requested_ms + LOCK_TRUSTED_MS
        if owned.state is QueueState.LOCKING:
            owned.is_locked = True
            result.granted.append(owned)
        elif owned.is_in_doubt:
            result.confirmed.append(owned)
        else:
            owned.is_locked = True

    def _failed(self, owned: ProcessQueue, error: LibraError, now_ms: MonotonicMs) -> None:
        log_failed_request(log, "queue not locked", error, queue=str(owned.queue))
        if owned.is_locked and now_ms >= owned.locked_until_ms - LOCK_FAILED_MS:
            owned.is_locked, owned.is_in_doubt = False, True
        self.retry(owned, now_ms, LOCK_FAILED_MS)

    def _want_all(self, queues: Iterable[MessageQueue]) -> None:
        for queue in queues:
            owned = self._table.get(queue)
            if owned is not None and not owned.dropped:
                self.want(owned)

    def _at(self, address: str) -> list[ProcessQueue]:
        if not self.is_needed:
            return []
        found = (self._table.get(queue) for queue in self._table.all())
        return [each for each in found if each and self._routes.master(each.queue.broker_name) == address]
