"""The claims: how a granted queue is opened at its fence (OPEN_QUEUE), how long refusals are tolerated, and
when the queue is released.

        granted ─► opened ─► READING ─► granted under a later epoch: opened again meanwhile
           ▲          ├► not granted yet: retried in a moment
           └──────────┴► fenced: lost
                      └► refused for 2 s: released, and granted again

A claim that stays refused would leave its queue unread: the coordinator considers the queue ours, its broker
does not. In that case we release the queue, and get another claim.

Pulls and commits use the claim opened last. A fence's refusal of an older claim is ignored: our own opening
has overtaken it.

The protocol is LibraMQ's own.
"""

from typing import Final

from libramq.client.consuming.ownership import event as ev
from libramq.client.consuming.ownership.offset_actions import begin_at_committed, load, load_later
from libramq.client.consuming.ownership.ownership import Ownership, Released
from libramq.client.consuming.ownership.release_actions import lose
from libramq.client.consuming.queues.owned_queue import (
    LockStatus,
    OwnedQueue,
    QueueClaim,
    QueueLock,
    QueueState,
)
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError, Fenced, LibraError, NotYetGranted
from libramq.fencing import Attempts, Claim, OpenedQueue
from libramq.logs import get_logger
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import QueueGrant
from libramq.transport.outages import log_failed_request

log = get_logger(__name__)

#: Ours: how long refusals are tolerated. A grant reaches the queue's broker within milliseconds, or within a
#: second after a lost connection.
REFUSED_MS_MAX: Final = 2_000


def take(own: Ownership, owned: OwnedQueue, event: ev.Taken, now_ms: MonotonicMs) -> None:
    """Begin with a queue: lock it, wait for its last owner, or load its offset at once."""
    if event.claim is not None:
        owned.claim = QueueClaim(event.claim)
        if event.opened is not None:
            owned.state = QueueState.OPENING
            own.announce(owned)
            _begin_opened(own, owned, event.claim, event.opened, now_ms)
            return
    if own.uses_locks:
        _lock(own, owned)
        return
    own.announce(owned)
    if event.delay_ms:
        owned.state = QueueState.WAITING
        own.load_at(owned, now_ms + event.delay_ms)
    else:
        load(own, owned, event, now_ms)


def grant(own: Ownership, owned: OwnedQueue, event: ev.Granted, now_ms: MonotonicMs) -> None:
    """Open a queue that the coordinator has granted us, even if it is open under an earlier grant."""
    if owned.claim.granted == event.claim or owned.claim.is_newer_than(event.claim):
        return
    owned.claim.regrant(event.claim)
    own.announce(owned)
    load(own, owned, event, now_ms)


def want_again(own: Ownership, owned: OwnedQueue, event: ev.Granted, now_ms: MonotonicMs) -> None:
    """Take a queue again after its release."""
    owned.claim.regrant(event.claim)
    owned.is_wanted_again = True


def begin_opened(own: Ownership, owned: OwnedQueue, event: ev.Opened, now_ms: MonotonicMs) -> None:
    """Begin a queue at the offset that its fence returned."""
    _begin_opened(own, owned, event.claim, event.answer, now_ms)


def continue_opened(own: Ownership, owned: OwnedQueue, event: ev.Opened, now_ms: MonotonicMs) -> None:
    """Continue at our position, unless another member has read the queue meanwhile."""
    may_continue = _fits(own, owned, event.answer)
    owned.claim.accept(event.claim, event.answer.topic_start)
    if may_continue:
        own.read(owned)
        own.pulling.go_on(owned, now_ms)
    else:
        lose(own, owned, event, now_ms)
        own.take(owned.queue, now_ms, delay_ms=0, claim=event.claim)


def not_opened(own: Ownership, owned: OwnedQueue, event: ev.OpenFailed, now_ms: MonotonicMs) -> None:
    """Try again; drop a queue that its fence has refused for too long."""
    if event.is_refused_for_long and owned.claim.opened is None:
        lose(own, owned, event, now_ms)
    else:
        load_later(own, owned, now_ms)


def refuse_pull(own: Ownership, owned: OwnedQueue, event: ev.PullRefused, now_ms: MonotonicMs) -> None:
    """Handle the refusal of a pull, which ends the pull."""
    owned.cursor.is_under_way = False
    refuse(own, owned, event, now_ms)


def refuse(
    own: Ownership, owned: OwnedQueue, event: ev.ClaimRefused | ev.PullRefused, now_ms: MonotonicMs
) -> None:
    """Lose a queue that was fenced, or open it again if its fence has forgotten us."""
    if event.claim != owned.claim.granted:
        if owned.claim.is_current:
            own.pulling.pull(owned, now_ms)
    elif isinstance(event.error, Fenced):
        lose(own, owned, event, now_ms)
    else:
        owned.claim.opened = None
        owned.state = QueueState.FORGOTTEN
        load(own, owned, event, now_ms)


def refuse_last(own: Ownership, owned: OwnedQueue, event: ev.ClaimRefused, now_ms: MonotonicMs) -> None:
    """Handle the refusal of a commit during the release of a queue."""
    if event.claim != owned.claim.granted:
        return
    if isinstance(event.error, Fenced):
        lose(own, owned, event, now_ms)
    else:
        owned.claim.opened = None


def drop_claim(own: Ownership, owned: OwnedQueue, event: ev.ClaimsDropped, now_ms: MonotonicMs) -> None:
    """Begin a queue anew under our own allocation; a former owner may still commit."""
    owned.claim = QueueClaim()
    if own.uses_locks:
        _lock(own, owned)
    else:
        owned.state = QueueState.WAITING
        own.load_at(owned, now_ms + own.settings.takeover_delay_ms)


def keep_reading(own: Ownership, owned: OwnedQueue, event: ev.ClaimsDropped, now_ms: MonotonicMs) -> None:
    """Keep reading. Brokers reserve our open queues until we have locked them (groups.queue_lock)."""
    owned.claim = QueueClaim()
    own.read(owned)
    if own.uses_locks:
        owned.lock = QueueLock(LockStatus.HELD, own.master(owned) or "")
        own.want_lock(owned)


def forget_claim(own: Ownership, owned: OwnedQueue, event: ev.ClaimsDropped, now_ms: MonotonicMs) -> None:
    """Continue to release a queue, without a coordinator."""
    owned.claim = QueueClaim()


def _begin_opened(
    own: Ownership, owned: OwnedQueue, claim: Claim, opened: OpenedQueue, now_ms: MonotonicMs
) -> None:
    owned.claim.accept(claim, opened.topic_start)
    if opened.attempts and opened.offset is not None:
        owned.former_attempts = Attempts(opened.offset, opened.attempts)
    # The initial 0 of a young queue counts only if it is unknown when the group began to read its topic.
    is_sought = opened.is_initial and own.since_ms.get(owned.queue.topic)
    begin_at_committed(own, owned, None if is_sought else opened.offset, now_ms)


def _lock(own: Ownership, owned: OwnedQueue) -> None:
    owned.state = QueueState.LOCKING
    owned.lock.status = LockStatus.WANTED
    own.want_lock(owned)


def _fits(own: Ownership, owned: OwnedQueue, answer: OpenedQueue) -> bool:
    """Return whether our position is still valid: no member has read further or reset the offset.

    A fence that does not know our last opening has opened the queue for another member meanwhile, or its
    topic was deleted and recreated: the offsets alone may fit by chance.
    """
    is_unbroken = answer.former_epoch is None or answer.former_epoch == owned.claim.opened_epoch
    if owned.cursor.was_missing or not (is_unbroken or not owned.claim.opened_epoch):
        return False
    if owned.claim.opened_epoch and answer.topic_start > owned.claim.topic_start:
        return False
    if answer.recovered_end is not None and owned.cursor.next_offset > answer.recovered_end:
        return False  # Messages that we have read are gone, and others may have their offsets.
    known, committed = own.offsets.acknowledged(owned.queue), answer.offset
    if committed is None:
        return known is None
    ours = own.offsets.read(owned.queue)
    # The program may have sought an earlier offset, which is not committed yet.
    return (known or 0) <= committed <= max(known or 0, owned.cursor.start_offset if ours is None else ours)


class Claims:
    """The refused claims, which outlast the ownership of their queues."""

    def __init__(self, own: Ownership) -> None:
        self._own = own
        own.on_opened = self._opened
        self._fenced: dict[MessageQueue, Claim] = {}
        #: Refused claims, with the time of the first refusal, until one for the queue is accepted. Two may
        #: alternate: the coordinator's, and one of another coordinator that was cut off.
        self._refused: dict[MessageQueue, dict[Claim, MonotonicMs]] = {}

    def granted(
        self, queue: MessageQueue, claim: Claim, opened: OpenedQueue | None, now_ms: MonotonicMs
    ) -> None:
        """Handle the coordinator's grant of a queue. opened: its fence's answer, if it is open already."""
        if self._own.closing:
            return
        if self._fenced.get(queue) == claim:  # The fence decides: another request would not help.
            self._release_refused(queue, claim, now_ms)
            return
        owned = self._own.table.get(queue)
        if owned is None:
            if opened is not None:
                self._fenced.pop(queue, None)
                self._refused.pop(queue, None)
            self._own.take(queue, now_ms, delay_ms=0, claim=claim, opened=opened)
        else:
            self._own.handle(owned, ev.Granted(claim), now_ms)

    def _opened(
        self, owned: OwnedQueue, claim: Claim, outcome: OpenedQueue | LibraError, now_ms: MonotonicMs
    ) -> None:
        """Handle a fence's answer to an opening."""
        is_current = self._own.table.is_current(owned)
        if not is_current or not owned.is_ours or claim != owned.claim.granted:
            return
        if isinstance(outcome, Fenced):
            self._fenced[owned.queue] = claim
            self._release_refused(owned.queue, claim, now_ms)
            self._own.handle(owned, ev.OpenFenced(), now_ms)
        elif isinstance(outcome, LibraError):
            self._not_opened(owned, claim, outcome, now_ms)
        else:
            self._fenced.pop(owned.queue, None)
            self._refused.pop(owned.queue, None)
            self._own.handle(owned, ev.Opened(claim, outcome), now_ms)

    def _not_opened(self, owned: OwnedQueue, claim: Claim, error: LibraError, now_ms: MonotonicMs) -> None:
        if not isinstance(error, NotYetGranted):
            log_failed_request(log, "queue not opened yet", error, queue=str(owned.queue))
        is_released = False
        if isinstance(error, BrokerError):
            is_released = self._release_refused(owned.queue, claim, now_ms)
        else:
            self._refused.get(owned.queue, {}).pop(claim, None)  # No refusal: the broker was not reached.
        self._own.handle(owned, ev.OpenFailed(error, is_refused_for_long=is_released), now_ms)

    def _release_refused(self, queue: MessageQueue, claim: Claim, now_ms: MonotonicMs) -> bool:
        """Release a queue if its claim has been refused for too long; return whether it was released."""
        refused = self._refused.setdefault(queue, {})
        if now_ms - refused.setdefault(claim, now_ms) < REFUSED_MS_MAX:
            return False
        refused[claim] = now_ms
        log.warning("opening refused for too long, queue released", queue=str(queue), epoch=claim.epoch)
        self._own.released.append(Released(QueueGrant.of(queue, claim.epoch), is_committed=False))
        return True
