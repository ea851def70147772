"""The owned queues: each from its assignment on, and what happens to it while it is ours.

    LOCKING ⟲ ─► WAITING ─► LOADING ⟲ ─► PULLING ⟲ ─► given up, or lost
     in order    last owner  its offset

In a coordinated group a queue is LOADING while it is opened (`opening`). Giving up a queue is described in
`giving_up`.
Upstream: RebalancePushImpl.java, RebalanceImpl.updateProcessQueueTableInRebalance.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Final

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.due import Due, LoadDue
from libramq.client.consuming.ownership.process_queue import ProcessQueue, QueueState
from libramq.client.consuming.ownership.pull_from_where import OffsetQuery, StartAt, where_to_pull_from
from libramq.client.consuming.ownership.queue_locking import LOCK_FAILED_MS, QueueLocking
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.client.consuming.timers import DueItems
from libramq.client.routing.route_table import RouteTable
from libramq.clock import MonotonicMs
from libramq.codes import ResponseCode
from libramq.errors import LibraError
from libramq.fencing import Claim
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import QueueGrant
from libramq.rpc.broker_calls import PullReply

log = get_logger(__name__)

#: Ours: a queue whose offset is refused again this soon is not retried in a loop.
ILLEGAL_OFFSET_PAUSE_MS: Final = 1_000
#: Ours: how soon a failed opening is retried; doubled each time. A grant takes about a millisecond from the
#: coordinator to the queue's broker.
OPEN_AGAIN_MS: Final = 10
OPEN_AGAIN_MS_MAX: Final = 200
_READ: Final = (QueueState.LOADING, QueueState.PULLING)
_ANNOUNCED: Final = (QueueState.REVOKING, QueueState.LEAVING)


class OwnedQueues:
    """The owned queues, and the next step of each."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        offsets: OffsetStore,
        timers: DueItems[Due],
        table: QueueTable,
        pulling: Pulling,
        locking: QueueLocking,
        commits: Commits,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._offsets = offsets
        self._timers = timers
        self._table = table
        self._pulling = pulling
        self._locking = locking
        self._commits = commits
        self._refused_at_ms: dict[MessageQueue, MonotonicMs] = {}
        self._retry_topic = retry_topic(settings.group)
        #: Set when we leave: no queue is taken any more.
        self.closing = False
        #: Revoked queues that were released; the coordinator is to be notified.
        self.released: list[QueueGrant] = []
        #: Those of them of which we handled more than the broker has acknowledged.
        self.uncommitted: list[QueueGrant] = []

    def take(
        self,
        queue: MessageQueue,
        now_ms: MonotonicMs,
        *,
        delay_ms: int,
        is_announced: bool = False,
        claim: Claim | None = None,
    ) -> list[fx.Effect]:
        """Take a queue that was assigned to us; its former owner gets `delay_ms` to commit, or unlocks it.

        claim: from the coordinator, which has made sure that nobody else has it.
        """
        if self.closing:
            return []
        going = self._table.get(queue)
        if going is not None:  # Still being given up; it is taken again afterwards.
            going.wanted_again = True
            return []
        owned = self._table.add(queue, now_ms)
        owned.is_announced, owned.granted = is_announced, claim
        self._pulling.shares_changed()
        if self._locking.is_needed:
            owned.state, owned.is_locked = QueueState.LOCKING, False
            self._locking.want(owned)
            return []
        found = self.announce(owned)
        if delay_ms:
            self._timers.at(now_ms + delay_ms, LoadDue(queue, owned.generation))
            return found
        return found + self.load(queue, owned.generation, now_ms)

    def announce(self, owned: ProcessQueue) -> list[fx.Effect]:
        """Notify the listener of a queue, once."""
        if owned.is_announced:
            return []
        owned.is_announced = True
        return [fx.Assigned((owned.queue,))]

    # Locks.

    def locks_answered(
        self, request: fx.LockQueues, granted: Collection[MessageQueue] | LibraError, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle a broker's answer about our locks."""
        if not self._locking.is_needed:  # A coordinator allocates in the meantime.
            return self._locking.give_back(request, granted)
        result = self._locking.answered(request, granted, now_ms)
        found: list[fx.Effect] = []
        for owned in result.granted:
            found += self.announce(owned)
            if self._settings.orderly_takeover_ms:
                owned.state = QueueState.WAITING
                due_ms = now_ms + self._settings.orderly_takeover_ms
                self._timers.at(due_ms, LoadDue(owned.queue, owned.generation))
            else:
                found += self.load(owned.queue, owned.generation, now_ms)
        for owned in result.confirmed:  # Another member may have held it meanwhile: the offset shows it.
            found.append(fx.QueryOffset(owned.queue, owned.generation, request.address))
        for owned in result.lost:
            found += self.lose(owned, now_ms)
        if result.unwanted:
            found.append(fx.UnlockQueues(request.address, tuple(result.unwanted)))
        return found

    def give_lock_up(self, owned: ProcessQueue) -> list[fx.Effect]:
        """Give up a queue whose lock was not ours yet."""
        self._remove(owned)
        return [fx.Revoked((owned.queue,)) for _ in range(owned.is_announced)] + self._unlock(owned)

    # Changes of the coordination mode.

    def need_no_locks(self) -> list[fx.Effect]:
        """Stop locking: the coordinator allocates from now on, and grants are stronger than locks."""
        self._locking.is_needed = False
        found: list[fx.Effect] = []
        for owned in self._table.each():
            found += self._unlock(owned)
            owned.is_locked, owned.is_in_doubt, owned.lock_requested_at = True, False, ""
        return found

    def forget_claims(self, now_ms: MonotonicMs) -> None:
        """Return to our own allocation; orderly queues are locked before they continue."""
        self._locking.need()
        for owned in self._table.each():
            owned.granted, owned.opened, owned.opened_epoch = None, None, 0
            if owned.dropped:
                continue
            is_pulling = owned.state is QueueState.PULLING
            if self._locking.is_needed:
                # Brokers reserve our open queues until we have locked them (groups.queue_lock).
                owned.is_locked = is_pulling
                owned.lock_requested_at = self._routes.master(owned.queue.broker_name) or ""
                owned.state = owned.state if is_pulling else QueueState.LOCKING
                self._locking.want(owned)
            elif not is_pulling:
                owned.state = QueueState.WAITING
                due_ms = now_ms + self._settings.takeover_delay_ms
                self._timers.at(due_ms, LoadDue(owned.queue, owned.generation))

    # The start offset.

    def load(self, queue: MessageQueue, generation: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Query the committed offset; a granted queue is opened instead."""
        owned = self._table.current(queue, generation)
        if owned is None or (owned.state is QueueState.PULLING and owned.opened == owned.granted):
            return []
        if owned.state is not QueueState.PULLING:
            owned.state = QueueState.LOADING
        address = self._routes.master(queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now", now_ms)
        if owned.granted is not None:
            return [fx.OpenQueue(queue, generation, address, owned.granted)]
        if self._settings.broadcasting:
            return [fx.ReadOffset(queue, generation)]
        return [fx.QueryOffset(queue, generation, address)]

    def load_later(self, owned: ProcessQueue, now_ms: MonotonicMs) -> None:
        """Open a queue again after a pause."""
        delay_ms = min(OPEN_AGAIN_MS << min(owned.open_tries, 8), OPEN_AGAIN_MS_MAX)
        owned.open_tries += 1
        self._timers.at(now_ms + delay_ms, LoadDue(owned.queue, owned.generation))

    def committed_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError | None, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle the committed offset (None: none), or the failure of its query."""
        owned = self._table.current(queue, generation)
        if owned is None:
            return []
        if owned.is_in_doubt and owned.state is QueueState.PULLING:
            return self._doubt_answered(owned, outcome, now_ms)
        if owned.state is not QueueState.LOADING or owned.granted != owned.opened:
            return []  # Asked before the coordination mode changed.
        if isinstance(outcome, LibraError):
            return self._cannot_load(owned, str(outcome), now_ms)
        decision = where_to_pull_from(
            self._settings.consume_from, is_retry_topic=queue.topic == self._retry_topic, committed=outcome
        )
        if isinstance(decision, StartAt):
            if outcome is not None:
                self._offsets.loaded(queue, outcome)
            if outcome:  # Brokers also answer 0 for a new queue without an offset.
                self._commits.known(queue)
            return self._pulling.start(owned, decision.offset, now_ms, was_committed=outcome is not None)
        address = self._routes.master(queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now", now_ms)
        if decision is OffsetQuery.MAXIMUM:
            return [fx.MaxOffset(queue, generation, address)]
        return [fx.SearchOffset(queue, generation, address, self._settings.consume_timestamp_ms)]

    def start_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle the offset of a queue's end, or of a time."""
        owned = self._table.current(queue, generation)
        if owned is None or owned.state is not QueueState.LOADING or owned.granted != owned.opened:
            return []
        if isinstance(outcome, LibraError):
            return self._cannot_load(owned, str(outcome), now_ms)
        if owned.corrected_offset is not None:
            return self._go_on_from(owned, min(outcome, owned.corrected_offset), now_ms)
        return self._pulling.start(owned, outcome, now_ms, was_committed=False)

    def _doubt_answered(
        self, owned: ProcessQueue, outcome: int | LibraError | None, now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Continue after our lock was confirmed, unless another member has read further."""
        if isinstance(outcome, LibraError):
            self._locking.retry(owned, now_ms, LOCK_FAILED_MS)
            return []
        ours = self._offsets.read(owned.queue)
        if outcome is not None and outcome > (owned.start_offset if ours is None else ours):
            return self.lose(owned, now_ms)
        owned.is_in_doubt, owned.is_locked = False, True
        return self._pulling.go_on(owned, now_ms)

    def _cannot_load(self, owned: ProcessQueue, reason: str, now_ms: MonotonicMs) -> list[fx.Effect]:
        if not owned.open_tries:  # Not each time for as long as a master is away.
            log.warning("queue not opened yet", queue=str(owned.queue), reason=reason)
        if owned.granted is not None:
            self.load_later(owned, now_ms)
            return []
        self._remove(owned)
        self._table.needs_rebalance = True
        return [fx.Revoked((owned.queue,)), *self._unlock(owned)]

    # Pull results.

    def pulled(
        self,
        queue: MessageQueue,
        generation: int,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
    ) -> list[fx.Effect]:
        """Handle the result of a pull."""
        owned = self._table.current(queue, generation)
        if owned is None or owned.state is not QueueState.PULLING:
            return []
        if isinstance(outcome, PullReply):
            if owned.was_missing:  # The topic was deleted and created again under the same name.
                return self._begin_where_committed(owned, now_ms)
            if outcome.code == ResponseCode.PULL_OFFSET_MOVED:
                return self._offset_refused(owned, outcome.next_offset, now_ms)
        return self._pulling.pulled(owned, outcome, messages, now_ms)

    def _offset_refused(self, owned: ProcessQueue, next_offset: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Handle an offset that the broker lacks: continue at its correction, or at the committed offset.

        The latter if we have read beyond the queue's end: the end was lost in a power cut, or the topic was
        created again. Continuing at the queue's present end would skip messages that we have not handled.
        """
        queue = owned.queue
        log.warning("offset refused", queue=str(queue), offset=owned.next_offset, next_offset=next_offset)
        if next_offset < owned.next_offset:
            if owned.next_offset > owned.start_offset:
                return self._begin_where_committed(owned, now_ms)
            if owned.last_stored_ms and owned.granted is None and not self._settings.broadcasting:
                return self._look_for_newer(owned, next_offset, now_ms)
        return self._go_on_from(owned, next_offset, now_ms)

    def _look_for_newer(self, owned: ProcessQueue, next_offset: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Find what was stored since our last message: the committed offset is beyond the queue's end, too.

        Apache's brokers leave it there when a topic is deleted, or the queue has lost its end.
        """
        address = self._routes.master(owned.queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now", now_ms)
        owned.state, owned.corrected_offset = QueueState.LOADING, next_offset
        return [fx.SearchOffset(owned.queue, owned.generation, address, owned.last_stored_ms + 1)]

    def _begin_where_committed(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        owned.dropped = True
        return self._take_anew(owned, now_ms)

    def _go_on_from(self, owned: ProcessQueue, next_offset: int, now_ms: MonotonicMs) -> list[fx.Effect]:
        owned.dropped = True
        owned.state = QueueState.DRAINING
        self._offsets.freeze(owned.queue, next_offset)
        if self._settings.broadcasting:
            return [*self._commits.commit([owned]), *self._take_anew(owned, now_ms)]
        return self.begin_anew(owned, now_ms)

    def offsets_set(
        self, topic: str, offsets: Mapping[MessageQueue, int], now_ms: MonotonicMs
    ) -> list[fx.Effect]:
        """Handle an operator's reset of the group's offsets: commit them, and continue there.

        For a granted queue the broker has set the offset itself, and lets us open the queue again.
        """
        found: list[fx.Effect] = []
        for queue, offset in offsets.items():
            owned = self._table.get(queue)
            is_ours = owned is not None and not owned.dropped and owned.granted is None
            if owned is None or not is_ours or queue.topic != topic or owned.state not in _READ:
                continue
            log.warning("offset set by an operator", queue=str(queue), offset=offset)
            found += self._go_on_from(owned, offset, now_ms)
        return found

    def begin_anew(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Take a queue whose offset was refused again, once the broker has acknowledged the new offset."""
        awaited = self._commits.last(owned)
        return self._take_anew(owned, now_ms) if awaited is None else awaited

    def _take_anew(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        queue = owned.queue
        self._remove(owned)
        self._table.needs_rebalance = True
        refused_ms = self._refused_at_ms.get(queue)
        self._refused_at_ms[queue] = now_ms
        again = refused_ms is not None and now_ms - refused_ms < 2 * ILLEGAL_OFFSET_PAUSE_MS
        delay_ms = ILLEGAL_OFFSET_PAUSE_MS if again else 0
        found = self.take(queue, now_ms, delay_ms=delay_ms, is_announced=True, claim=owned.granted)
        anew = self._table.get(queue)
        if anew is not None:
            anew.last_stored_ms = owned.last_stored_ms
        return found

    def go_on(self, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Resume the handlers that were held."""
        found: list[fx.Effect] = []
        for owned in self._table.each():
            if not owned.dropped:
                found += self._pulling.go_on(owned, now_ms)
        return found

    # The end.

    def lose(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Drop a queue that another member has: our state of it is void.

        A locked queue is requested again; in a coordinated group the coordinator decides.
        """
        log.warning("queue lost", queue=str(owned.queue))
        found: list[fx.Effect] = []
        if owned.is_announced and owned.state not in _ANNOUNCED:
            found.append(fx.Lost((owned.queue,)))
        self._remove(owned)
        if owned.granted is None:
            found += self.take(owned.queue, now_ms, delay_ms=0)
        return found

    def let_go(self, owned: ProcessQueue, now_ms: MonotonicMs) -> list[fx.Effect]:
        """Handle the end of giving up a queue."""
        is_committed = self._is_committed(owned)
        self._remove(owned)
        found = self._unlock(owned)
        if owned.wanted_again:
            found += self.take(owned.queue, now_ms, delay_ms=0, claim=owned.granted)
        elif owned.granted is not None and owned.is_revocation_requested:
            self.release(QueueGrant.of(owned.queue, owned.granted.epoch), is_committed=is_committed)
        return found

    def release(self, grant: QueueGrant, *, is_committed: bool) -> None:
        """Schedule the coordinator's notification of a released queue."""
        self.released.append(grant)
        if not is_committed:
            self.uncommitted.append(grant)

    def take_released(self) -> tuple[tuple[QueueGrant, ...], tuple[QueueGrant, ...]]:
        """Return the released queues to report to the coordinator, and those not committed."""
        taken = tuple(self.released), tuple(self.uncommitted)
        self.released.clear()
        self.uncommitted.clear()
        return taken

    def _is_committed(self, owned: ProcessQueue) -> bool:
        """Return whether the broker has acknowledged all that we handled of a queue."""
        handled = self._pulling.highest_handled(owned.queue)
        acknowledged = self._offsets.acknowledged(owned.queue)
        return not owned.is_busy and (handled < 0 or (acknowledged is not None and handled < acknowledged))

    def _unlock(self, owned: ProcessQueue) -> list[fx.Effect]:
        if not owned.lock_requested_at:
            return []
        self._locking.gave_back(owned.queue, owned.lock_requested_at)
        return [fx.UnlockQueues(owned.lock_requested_at, (owned.queue,))]

    def _remove(self, owned: ProcessQueue) -> None:
        self._table.remove(owned)
        self._offsets.forget(owned.queue)
        self._pulling.shares_changed()
