"""The owned queues: each from the moment it is given to us to the moment it is given up.

    LOCKING ⟲ ─► WAITING ─► LOADING ─► PULLING ⟲ ─► DRAINING ─► REVOKING ─► LEAVING ─► GONE
     in order    last owner  its offset             handlers    listener    commit, unlock

Upstream: RebalancePushImpl.java, RebalanceImpl.updateProcessQueueTableInRebalance.
"""

from collections.abc import Collection, Iterable, Sequence
from typing import Final

from libramq.client.core import effects as fx
from libramq.client.core.consumer_settings import ConsumerSettings
from libramq.client.core.due import DrainOver, Due, LoadDue, RevokeOver
from libramq.client.core.offset_store import OffsetStore
from libramq.client.core.process_queue import ProcessQueue, QueueState
from libramq.client.core.pull_from_where import Ask, StartAt, where_to_pull_from
from libramq.client.core.pulling import Pulling
from libramq.client.core.queue_locking import LOCK_FAILED_MS, QueueLocking
from libramq.client.core.queue_table import QueueTable
from libramq.client.core.route_table import RouteTable
from libramq.client.core.timers import Timers
from libramq.codes import ResponseCode
from libramq.errors import LibraError
from libramq.logs import get_logger
from libramq.message.message import MessageExt
from libramq.message.names import retry_topic
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import PullReply

log = get_logger(__name__)

#: Ours: a queue whose offset was refused again so soon is not asked for in a circle.
ILLEGAL_OFFSET_PAUSE_MS: Final = 1_000
#: Ours: how often the last commit of a queue is tried.
LAST_COMMITS_MAX: Final = 2


class OwnedQueues:
    """What each queue needs next."""

    def __init__(
        self,
        settings: ConsumerSettings,
        routes: RouteTable,
        offsets: OffsetStore,
        timers: Timers[Due],
        table: QueueTable,
        pulling: Pulling,
        locking: QueueLocking,
    ) -> None:
        self._settings = settings
        self._routes = routes
        self._offsets = offsets
        self._timers = timers
        self._table = table
        self._pulling = pulling
        self._locking = locking
        self._refused_at: dict[MessageQueue, int] = {}
        self._retry_topic = retry_topic(settings.group)
        #: Set when we leave: nothing is taken any more.
        self.closing = False

    # Taking a queue

    def take(
        self, queue: MessageQueue, now_ms: int, *, delay_ms: int, is_announced: bool = False
    ) -> list[fx.Effect]:
        """A queue was given to us; whoever had it gets `delay_ms` to commit, or gives its lock back."""
        if self.closing:
            return []
        going = self._table.get(queue)
        if going is not None:  # Still on its way out; it comes back when that is done.
            going.wanted_again = True
            return []
        owned = self._table.add(queue, now_ms)
        owned.is_announced = is_announced
        self._pulling.shares_changed()
        if self._locking.is_needed:
            owned.state, owned.is_locked = QueueState.LOCKING, False
            self._locking.want(owned)
            return []
        found: list[fx.Effect] = [] if is_announced else [fx.Assigned((queue,))]
        owned.is_announced = True
        if delay_ms:
            self._timers.at(now_ms + delay_ms, LoadDue(queue, owned.generation))
            return found
        return found + self.load(queue, owned.generation)

    def locks_answered(
        self, request: fx.LockQueues, granted: Collection[MessageQueue] | LibraError, now_ms: int
    ) -> list[fx.Effect]:
        """A broker said which queues we hold."""
        verdict = self._locking.answered(request, granted, now_ms)
        found: list[fx.Effect] = []
        for owned in verdict.granted:
            if not owned.is_announced:
                owned.is_announced = True
                found.append(fx.Assigned((owned.queue,)))
            if self._settings.orderly_takeover_ms:
                owned.state = QueueState.WAITING
                due_ms = now_ms + self._settings.orderly_takeover_ms
                self._timers.at(due_ms, LoadDue(owned.queue, owned.generation))
            else:
                found += self.load(owned.queue, owned.generation)
        for owned in verdict.confirmed:  # Somebody may have held it meanwhile: the offset tells.
            found.append(fx.QueryOffset(owned.queue, owned.generation, request.address))
        for owned in verdict.lost:
            found += self._lose(owned, now_ms)
        if verdict.unwanted:
            found.append(fx.UnlockQueues(request.address, tuple(verdict.unwanted)))
        return found

    def load(self, queue: MessageQueue, generation: int) -> list[fx.Effect]:
        """Ask for the committed offset."""
        owned = self._table.current(queue, generation)
        if owned is None:
            return []
        address = self._routes.master(queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now")
        owned.state = QueueState.LOADING
        if self._settings.broadcasting:
            return [fx.ReadOffset(queue, generation)]
        return [fx.QueryOffset(queue, generation, address)]

    def committed_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError | None, now_ms: int
    ) -> list[fx.Effect]:
        """The broker said what is committed (None: nothing), or nothing could be learnt."""
        owned = self._table.current(queue, generation)
        if owned is None:
            return []
        if owned.is_in_doubt and owned.state is QueueState.PULLING:
            return self._doubt_answered(owned, outcome, now_ms)
        if isinstance(outcome, LibraError):
            return self._cannot_load(owned, str(outcome))
        decision = where_to_pull_from(
            self._settings.consume_from, is_retry_topic=queue.topic == self._retry_topic, committed=outcome
        )
        if isinstance(decision, StartAt):
            if outcome is not None:
                self._offsets.loaded(queue, outcome)
            return self._pulling.start(owned, decision.offset, now_ms, was_committed=outcome is not None)
        address = self._routes.master(queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now")
        if decision is Ask.MAXIMUM:
            return [fx.MaxOffset(queue, generation, address)]
        return [fx.SearchOffset(queue, generation, address, self._settings.consume_timestamp_ms)]

    def start_offset_answered(
        self, queue: MessageQueue, generation: int, outcome: int | LibraError, now_ms: int
    ) -> list[fx.Effect]:
        """The broker said where the queue ends, or where a time is in it."""
        owned = self._table.current(queue, generation)
        if owned is None:
            return []
        if isinstance(outcome, LibraError):
            return self._cannot_load(owned, str(outcome))
        return self._pulling.start(owned, outcome, now_ms, was_committed=False)

    def _doubt_answered(
        self, owned: ProcessQueue, outcome: int | LibraError | None, now_ms: int
    ) -> list[fx.Effect]:
        """The lock is ours again after our connection ended: go on, unless somebody else has been further."""
        if isinstance(outcome, LibraError):
            self._locking.retry(owned, now_ms, LOCK_FAILED_MS)
            return []
        ours = self._offsets.read(owned.queue)
        if outcome is not None and outcome > (owned.start_offset if ours is None else ours):
            return self._lose(owned, now_ms)
        owned.is_in_doubt, owned.is_locked = False, True
        return self._pulling.go_on(owned, now_ms)

    def _lose(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        """Somebody else has it: what we know of it is worth nothing. We go on asking for its lock."""
        log.warning("queue lost", queue=str(owned.queue))
        self._remove(owned)
        return [fx.Lost((owned.queue,)), *self.take(owned.queue, now_ms, delay_ms=0)]

    def _cannot_load(self, owned: ProcessQueue, reason: str) -> list[fx.Effect]:
        log.warning("queue not taken yet", queue=str(owned.queue), reason=reason)
        self._remove(owned)
        self._table.needs_rebalance = True
        return [fx.Revoked((owned.queue,)), *self._unlock(owned)]

    # What pulls and commits bring

    def pulled(
        self,
        queue: MessageQueue,
        generation: int,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: int,
    ) -> list[fx.Effect]:
        """What a pull brought."""
        owned = self._table.current(queue, generation)
        if owned is None or owned.state is not QueueState.PULLING:
            return []
        if isinstance(outcome, PullReply) and outcome.code == ResponseCode.PULL_OFFSET_MOVED:
            return self._offset_refused(owned, outcome.next_offset, now_ms)
        return self._pulling.pulled(owned, outcome, messages, now_ms)

    def _offset_refused(self, owned: ProcessQueue, next_offset: int, now_ms: int) -> list[fx.Effect]:
        """The broker does not have that offset: begin anew where it says, once it has our word for it."""
        queue = owned.queue
        log.warning("offset refused", queue=str(queue), offset=owned.next_offset, next_offset=next_offset)
        owned.dropped = True
        owned.state = QueueState.DRAINING
        self._offsets.freeze(queue, next_offset)
        if self._settings.broadcasting:
            return [*self.commit([queue]), *self._begin_anew(owned, now_ms)]
        address = self._routes.master(queue.broker_name)
        if address is None:
            return self._cannot_load(owned, "its broker has no master now")
        owned.commits_awaited += 1
        return [fx.CommitOffset(queue, next_offset, address)]

    def committed(self, queue: MessageQueue, now_ms: int) -> list[fx.Effect]:
        """A commit was answered; a queue whose offset was refused begins anew after it."""
        owned = self._table.get(queue)
        if owned is None:
            return []
        owned.commits_awaited = max(0, owned.commits_awaited - 1)
        if self._offsets.is_frozen(queue):
            return self._begin_anew(owned, now_ms)
        return self._leave(owned, now_ms) if owned.state is QueueState.LEAVING else []

    def _begin_anew(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        queue = owned.queue
        self._remove(owned)
        self._table.needs_rebalance = True
        refused_ms = self._refused_at.get(queue)
        self._refused_at[queue] = now_ms
        again = refused_ms is not None and now_ms - refused_ms < 2 * ILLEGAL_OFFSET_PAUSE_MS
        delay_ms = ILLEGAL_OFFSET_PAUSE_MS if again else 0
        return self.take(queue, now_ms, delay_ms=delay_ms, is_announced=True)

    def commit(self, queues: Iterable[MessageQueue], *, all_of_them: bool = False) -> list[fx.Effect]:
        """Commit what the brokers, or the local store, do not know yet."""
        to_persist = self._offsets.to_persist(queues, all_of_them=all_of_them)
        if self._settings.broadcasting:
            for queue, offset in to_persist:
                self._offsets.persisted(queue, offset)
            return [fx.StoreOffsets(tuple(to_persist))] if to_persist else []
        found: list[fx.Effect] = []
        for queue, offset in to_persist:
            address = self._routes.master(queue.broker_name)
            owned = self._table.get(queue)
            if address is None or owned is None or owned.is_in_doubt:
                continue
            if owned.commits_awaited:
                continue  # A broker of many threads may work two requests off in any order.
            owned.commits_awaited += 1
            found.append(fx.CommitOffset(queue, offset, address))
        return found

    # Giving a queue up

    def give_up(self, queue: MessageQueue, now_ms: int, *, drain_ms: int) -> list[fx.Effect]:
        """A queue is no longer ours: start no more handlers, wait for those that run, commit, let go."""
        owned = self._table.get(queue)
        if owned is None:
            return []
        owned.wanted_again = False
        if owned.dropped:
            return [] if drain_ms else self._hurry(owned, now_ms)
        owned.dropped = True
        if owned.state is QueueState.LOCKING:
            self._remove(owned)
            return [fx.Revoked((queue,)) for _ in range(owned.is_announced)] + self._unlock(owned)
        owned.state = QueueState.DRAINING
        owned.deliveries = {delivery for delivery in owned.deliveries if delivery.started}
        if owned.is_busy and drain_ms:
            self._timers.at(now_ms + drain_ms, DrainOver(queue, owned.generation))
            return self.commit([queue])
        return self._revoke(owned, now_ms)

    def drained(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        """A handler of a queue that we give up is done; the last one lets it go."""
        if owned.state is not QueueState.DRAINING or owned.is_busy or self._offsets.is_frozen(owned.queue):
            return []
        return self._revoke(owned, now_ms)

    def drain_over(self, queue: MessageQueue, generation: int, now_ms: int) -> list[fx.Effect]:
        """Time is up: what still runs will run again elsewhere."""
        owned = self._going(queue, generation, QueueState.DRAINING)
        return [] if owned is None else self._revoke(owned, now_ms)

    def revoke_heard(self, queues: Iterable[MessageQueue], now_ms: int) -> list[fx.Effect]:
        """The listener has had its say about queues that it was told are revoked."""
        found: list[fx.Effect] = []
        for queue in queues:
            owned = self._table.get(queue)
            if owned is not None and owned.state is QueueState.REVOKING:
                found += self._leave(owned, now_ms)
        return found

    def revoke_over(self, queue: MessageQueue, generation: int, now_ms: int) -> list[fx.Effect]:
        """The listener takes too long."""
        owned = self._going(queue, generation, QueueState.REVOKING)
        if owned is None:
            return []
        log.warning("the listener takes too long over a revoked queue", queue=str(queue))
        return self._leave(owned, now_ms)

    def _hurry(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        """There is no time left: whatever a queue waits for, it is next."""
        if owned.state is QueueState.DRAINING:
            return self._revoke(owned, now_ms)
        return self._gone(owned, now_ms)

    def _revoke(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        queue = owned.queue
        has_no_master = not self._settings.broadcasting and self._routes.master(queue.broker_name) is None
        if owned.is_in_doubt or has_no_master:
            return [fx.Lost((queue,)), *self._gone(owned, now_ms)]
        found = [*self.commit([queue]), fx.Revoked((queue,))]
        if self._settings.revoke_is_heard:
            owned.state = QueueState.REVOKING
            self._timers.at(now_ms + self._settings.revoke_timeout_ms, RevokeOver(queue, owned.generation))
            return found
        return found + self._leave(owned, now_ms)

    def _leave(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        """The last commit follows those under way, and is acknowledged before the queue is let go."""
        owned.state = QueueState.LEAVING
        if owned.commits_awaited:
            return []
        last = self.commit([owned.queue]) if owned.last_commits < LAST_COMMITS_MAX else []
        if last:
            owned.last_commits += 1
            return last
        return self._gone(owned, now_ms)

    def _gone(self, owned: ProcessQueue, now_ms: int) -> list[fx.Effect]:
        self._remove(owned)
        found = self._unlock(owned)
        if owned.wanted_again:
            found += self.take(owned.queue, now_ms, delay_ms=0)
        return found

    def _unlock(self, owned: ProcessQueue) -> list[fx.Effect]:
        address = self._routes.master(owned.queue.broker_name)
        return [fx.UnlockQueues(address, (owned.queue,))] if owned.lock_asked and address else []

    def _remove(self, owned: ProcessQueue) -> None:
        self._table.remove(owned)
        self._offsets.forget(owned.queue)
        self._pulling.shares_changed()

    def _going(self, queue: MessageQueue, generation: int, state: QueueState) -> ProcessQueue | None:
        owned = self._table.get(queue)
        return (
            owned if owned is not None and owned.generation == generation and owned.state is state else None
        )
