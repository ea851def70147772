"""The claims: what the coordinator grants us, and what the fences answer.

        granted ─► opened ─► READING ─► granted under a later epoch: opened again meanwhile
           ▲          ├► not granted yet: retried in a moment
           └──────────┴► fenced: lost
                      └► refused for 2 s: released, and granted again

A claim that stays refused would leave its queue unread: the coordinator considers it ours, its broker does
not. Whatever the cause, we release the queue, and get another claim.
Ours.
"""

from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.effects import Effects
from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.ownership import Ownership, Released
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, Fenced, LibraError, NotYetGranted
from libramq.fencing import Claim, Opened
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import QueueGrant
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: a grant reaches the queue's broker within milliseconds, or within a second if their link was lost.
REFUSED_MS_MAX: Final = 2_000


class Claims:
    """The refused claims, which outlast the ownership of their queues."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        self._fenced: dict[MessageQueue, Claim] = {}
        #: Claims that were refused, and since when, until one for the queue is accepted. There may be two in
        #: turn: the coordinator's, and one of another that was cut off.
        self._refused: dict[MessageQueue, dict[Claim, MonotonicMs]] = {}

    def granted(
        self, queue: MessageQueue, claim: Claim, opened: Opened | None, now_ms: MonotonicMs
    ) -> Effects:
        """Handle the coordinator's grant of a queue. opened: if its fence has opened it at once."""
        if self._own.closing:
            return []
        if self._fenced.get(queue) == claim:  # The fence decides: asking again is of no use.
            self._release_refused(queue, claim, now_ms)
            return []
        owned = self._own.table.get(queue)
        if owned is None:
            if opened is not None:
                self._accepted(queue)
            return self._own.take(queue, now_ms, delay_ms=0, claim=claim, opened=opened)
        return self._own.handle(owned, ev.Granted(claim), now_ms)

    def opened(self, request: fx.OpenQueue, outcome: Opened | LibraError, now_ms: MonotonicMs) -> Effects:
        """Handle a fence's answer to an opening."""
        owned = self._own.table.same(request.queue, request.generation)
        if owned is None or not owned.is_ours or request.claim != owned.claim.granted:
            return []
        if isinstance(outcome, Fenced):
            self._fenced[request.queue] = request.claim
            self._release_refused(request.queue, request.claim, now_ms)
            return self._own.handle(owned, ev.OpenFenced(), now_ms)
        if isinstance(outcome, LibraError):
            return self._not_opened(owned, request.claim, outcome, now_ms)
        self._accepted(request.queue)
        return self._own.handle(owned, ev.Opened(request.claim, outcome), now_ms)

    def _accepted(self, queue: MessageQueue) -> None:
        self._fenced.pop(queue, None)
        self._refused.pop(queue, None)

    def _not_opened(self, owned: OwnedQueue, claim: Claim, error: LibraError, now_ms: MonotonicMs) -> Effects:
        if not isinstance(error, NotYetGranted):
            log_failed_request(log, "queue not opened yet", error, queue=str(owned.queue))
        is_released = False
        if isinstance(error, BrokerError):
            is_released = self._release_refused(owned.queue, claim, now_ms)
        else:
            self._refused.get(owned.queue, {}).pop(claim, None)  # No refusal: the broker was not reached.
        return self._own.handle(owned, ev.OpenFailed(error, is_refused_for_long=is_released), now_ms)

    def _release_refused(self, queue: MessageQueue, claim: Claim, now_ms: MonotonicMs) -> bool:
        """Release a queue whose claim has been refused for too long; return whether it was."""
        refused = self._refused.setdefault(queue, {})
        if now_ms - refused.setdefault(claim, now_ms) < REFUSED_MS_MAX:
            return False
        refused[claim] = now_ms
        log.warning("opening refused for too long, queue released", queue=str(queue), epoch=claim.epoch)
        self._own.released.append(Released(QueueGrant.of(queue, claim.epoch), is_committed=False))
        return True
