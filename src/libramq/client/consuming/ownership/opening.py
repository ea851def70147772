"""The opening: how queues that the coordinator grants are opened at their brokers, and lost again.

        granted ─► opened ─► PULLING ─► granted under a later epoch: opened again meanwhile
           ▲          ├► not granted yet: retried in a moment
           └──────────┴► fenced: lost
                      └► refused for 2 s: released, and granted anew

Pulls and commits use the claim that was opened last. One that is fenced under a claim older than our current
one means nothing: our own opening has overtaken it.

A claim that stays refused would leave its queue unread: the coordinator considers it ours, its broker does
not. Whatever the cause, we release the queue, and get another claim.
Ours.
"""

from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.ownership.owned_queues import OwnedQueues
from libramq.client.consuming.ownership.process_queue import ProcessQueue, QueueState
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.pulling.pulling import Pulling
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


class Opening:
    """Handles the answers of fences to our claims."""

    def __init__(
        self, offsets: OffsetStore, table: QueueTable, pulling: Pulling, owned_queues: OwnedQueues
    ) -> None:
        self._offsets = offsets
        self._table = table
        self._pulling = pulling
        self._owned_queues = owned_queues
        self._fenced: dict[MessageQueue, Claim] = {}
        #: Claims that were refused, and since when, until one for the queue is accepted.
        self._refused: dict[MessageQueue, tuple[Claim, MonotonicMs]] = {}

    def grant(self, queue: MessageQueue, claim: Claim, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Open a queue that the coordinator has granted us."""
        if self._owned_queues.closing:
            return []
        if self._fenced.get(queue) == claim:  # The fence decides: asking again is of no use.
            self._release_refused(queue, claim, now_ms)
            return []
        owned = self._table.get(queue)
        if owned is None:
            return self._owned_queues.take(queue, now_ms, delay_ms=0, claim=claim)
        if owned.dropped:
            owned.granted, owned.wanted_again = claim, True
            return []
        if owned.granted == claim or _is_behind(claim, owned):
            return []
        owned.granted, owned.open_tries = claim, 0
        found = self._owned_queues.announce(owned)
        return found + self._owned_queues.load(queue, owned.generation, now_ms)

    def opened(
        self, request: fx.OpenQueue, outcome: Opened | LibraError, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle the answer to an opening."""
        owned = self._table.current(request.queue, request.generation)
        if owned is None or request.claim != owned.granted:
            return []
        if isinstance(outcome, Fenced):
            self._fenced[request.queue] = request.claim
            self._release_refused(request.queue, request.claim, now_ms)
            return self._owned_queues.lose(owned, now_ms)
        if isinstance(outcome, LibraError):
            return self._not_opened(owned, request.claim, outcome, now_ms)
        self._fenced.pop(request.queue, None)
        self._refused.pop(request.queue, None)
        may_go_on = self._fits(owned, outcome)
        owned.opened, owned.open_tries = request.claim, 0
        owned.opened_epoch = request.claim.epoch
        if owned.state is not QueueState.PULLING:
            return self._owned_queues.committed_offset_answered(
                owned.queue, owned.generation, outcome.offset, now_ms
            )
        if may_go_on:
            return self._pulling.go_on(owned, now_ms)
        return [
            *self._owned_queues.lose(owned, now_ms),
            *self._owned_queues.take(request.queue, now_ms, delay_ms=0, claim=request.claim),
        ]

    def _not_opened(
        self, owned: ProcessQueue, claim: Claim, error: LibraError, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        if not isinstance(error, NotYetGranted):
            log_failed_request(log, "queue not opened yet", error, queue=str(owned.queue))
        if not isinstance(error, BrokerError):
            self._refused.pop(owned.queue, None)  # No refusal: the broker was not reached.
        elif self._release_refused(owned.queue, claim, now_ms) and owned.opened is None:
            return self._owned_queues.lose(owned, now_ms)
        self._owned_queues.load_later(owned, now_ms)
        return []

    def _release_refused(self, queue: MessageQueue, claim: Claim, now_ms: MonotonicMs) -> bool:
        """Release a queue whose claim has been refused for too long; return whether it was."""
        known, since_ms = self._refused.get(queue, (None, now_ms))
        is_overdue = known == claim and now_ms - since_ms >= REFUSED_MS_MAX
        if known != claim or is_overdue:
            self._refused[queue] = (claim, now_ms)
        if is_overdue:
            log.warning("opening refused for too long, queue released", queue=str(queue), epoch=claim.epoch)
            self._owned_queues.release(QueueGrant.of(queue, claim.epoch), is_committed=False)
        return is_overdue

    def pull_refused(
        self,
        queue: MessageQueue,
        generation: int,
        claim: Claim,
        error: Fenced | NotYetGranted,
        now_ms: MonotonicMs,
    ) -> list[fx.Effect]:
        """Handle a fence's refusal of a pull."""
        owned = self._table.current(queue, generation)
        if owned is None or owned.state is not QueueState.PULLING:
            return []
        owned.is_pulling = False
        return self.refused(owned, claim, error, now_ms)

    def refused(
        self, owned: ProcessQueue, claim: Claim, error: Fenced | NotYetGranted, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle a fence's refusal of a pull or commit under a claim."""
        if claim != owned.granted:
            return self._pulling.pull(owned, now_ms) if owned.opened == owned.granted else []
        if isinstance(error, Fenced):
            return self._owned_queues.lose(owned, now_ms)
        owned.opened = None  # The fence has forgotten our opening.
        return self._owned_queues.load(owned.queue, owned.generation, now_ms)

    def _fits(self, owned: ProcessQueue, answer: Opened) -> bool:
        """Return whether our position is still valid: no member has read further or reset the offset.

        A fence that does not know our last opening has given the queue to somebody else meanwhile, or its
        topic was deleted and made again: the offsets alone may fit by chance.
        """
        is_unbroken = answer.former_epoch is None or answer.former_epoch == owned.opened_epoch
        if owned.was_missing or not (is_unbroken or not owned.opened_epoch):
            return False
        known, committed = self._offsets.acknowledged(owned.queue), answer.offset
        if committed is None:
            return known is None
        ours = self._offsets.read(owned.queue)
        return (known or 0) <= committed <= (owned.start_offset if ours is None else ours)


def _is_behind(claim: Claim, owned: ProcessQueue) -> bool:
    """Return whether the coordinator's epoch is older than the one the fence opened for us."""
    opened = owned.opened
    return (
        opened is not None
        and opened == owned.granted
        and claim.member == opened.member
        and claim.epoch < opened.epoch
    )
