"""The ownership handles the events of owned queues by a table, and holds the state that its actions use.

handle(queue, event)  ─►  TABLE[event][state of the queue]  ─►  action  ─►  effects
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from libramq.client.consuming import effects as fx
from libramq.client.consuming.committing.commits import Commits, OffsetStore, SentCommit
from libramq.client.consuming.consumer_kernel import ConsumerKernel
from libramq.client.consuming.consumer_settings import OFFSET_TIMEOUT_MS, ConsumerSettings
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.consuming.ownership.event import (
    ClaimRefused,
    Event,
    MayCommit,
    OffsetDue,
    Pulled,
    PullRefused,
    Taken,
)
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.client.consuming.queues.owned_queue import OwnedQueue, QueueState
from libramq.client.consuming.queues.queue_table import QueueTable
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import Fenced, LibraError, LocalProtocolError, NotYetGranted
from libramq.fencing import Claim, OpenedQueue
from libramq.kernel.deadlines import Deadline
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.remoting.body.coordination import QueueGrant
from libramq.rpc.broker_calls import PullReply
from libramq.rpc.call import Call

T = TypeVar("T")

#: RebalanceService.minInterval: how soon an incomplete round is repeated.
REBALANCE_SOON_MS: Final = 1_000

Action = Callable[["Ownership", OwnedQueue, Any, MonotonicMs], None]


class Released(NamedTuple):
    """A revoked queue that is no longer ours.

    is_committed: whether its broker has acknowledged all messages that we handled.
    """

    grant: QueueGrant
    is_committed: bool


class Cell(NamedTuple):
    """A rule: the action, and the states that may follow."""

    action: Action
    then: frozenset[QueueState]


Transitions = Mapping[type[Event], Mapping[QueueState, Cell]]


@dataclass(slots=True, kw_only=True)
class Ownership:
    """The owned queues.

    uses_locks: we allocate for ourselves, and consume in order. closing: no queue is taken. round_due: the
    deadline of the next rebalance.
    """

    transitions: Transitions
    settings: ConsumerSettings
    routes: RouteTable
    offsets: OffsetStore
    kernel: ConsumerKernel
    known_brokers: KnownBrokers
    round_due: Deadline
    table: QueueTable
    pulling: Pulling
    commits: Commits
    uses_locks: bool
    closing: bool = False
    #: Handles the answers of fences: `Claims`.
    on_opened: Callable[[OwnedQueue, Claim, OpenedQueue | LibraError, MonotonicMs], None] = field(init=False)
    #: By topic: the time from which queues without an offset are read; 0 or missing: Apache's rule.
    since_ms: Mapping[str, int] = field(default_factory=dict)
    #: Whether the last round has taken every queue allocated to us.
    is_balanced: bool = True
    #: The queues that the next requests lock.
    locks_wanted: dict[MessageQueue, OwnedQueue] = field(default_factory=dict)
    #: The queues that the next requests unlock, by the broker's address.
    to_unlock: dict[str, list[MessageQueue]] = field(default_factory=dict)
    #: The brokers at which queues were unlocked, perhaps in vain.
    unlocked: dict[MessageQueue, str] = field(default_factory=dict)
    #: Released queues, of which the coordinator is to be notified.
    released: list[Released] = field(default_factory=list)
    #: The time of the last refusal of a queue's offset.
    refused_at_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.pulling.on_pulled = self.pulled

    def handle(self, owned: OwnedQueue, event: Event, now_ms: MonotonicMs) -> None:
        """Handle an event of a queue."""
        before = owned.state
        cell = self.transitions[type(event)].get(before)
        if cell is None:
            self._failed(owned, f"{type(event).__name__} cannot happen to a queue that is {before.name}")
            return
        cell.action(self, owned, event, now_ms)
        if owned.state not in cell.then:
            after = f"{type(event).__name__} makes a queue {owned.state.name} that was {before.name}"
            self._failed(owned, after)

    def _failed(self, owned: OwnedQueue, what: str) -> None:
        """Report a transition that the table lacks, a bug of LibraMQ; the consumer continues."""
        self.kernel.failed("the table of owned queues", LocalProtocolError(f"{owned.queue}: {what}"))

    def handle_each(
        self, event: Event, now_ms: MonotonicMs, queues: Iterable[MessageQueue] | None = None
    ) -> None:
        """Handle an event for each of these queues that is in the table; None: for all."""
        for owned in self.table.each() if queues is None else filter(None, map(self.table.get, queues)):
            try:
                self.handle(owned, event, now_ms)
            except Exception as error:  # The other queues still get the event.
                self.kernel.failed(f"{type(event).__name__} of {owned.queue} could not be handled", error)

    def ask(
        self, owned: OwnedQueue, address: str, call: Call[T], event: Callable[[T | LibraError], Event]
    ) -> None:
        """Make a request about a queue; the answer becomes an event, unless the queue was lost since."""
        self.kernel.ask(address, call, partial(self.answered, owned, event), OFFSET_TIMEOUT_MS)

    def answered(
        self, owned: OwnedQueue, event: Callable[[T], Event], outcome: T, now_ms: MonotonicMs
    ) -> None:
        """Handle an answer about a queue, unless the queue was lost since."""
        if self.table.is_current(owned):
            self.handle(owned, event(outcome), now_ms)

    def pulled(
        self,
        owned: OwnedQueue,
        claim: Claim | None,
        outcome: PullReply | LibraError,
        messages: Sequence[MessageExt],
        now_ms: MonotonicMs,
    ) -> None:
        """Handle the answer to a pull under a claim, unless the queue was lost since."""
        if not self.table.is_current(owned):
            return
        if claim is not None and isinstance(outcome, Fenced | NotYetGranted):
            self.handle(owned, PullRefused(claim, outcome), now_ms)
        else:
            self.handle(owned, Pulled(outcome, messages), now_ms)

    def committed(self, commit: SentCommit, outcome: LibraError | None, now_ms: MonotonicMs) -> None:
        """Handle the result of a commit."""
        owned = commit.owned
        others_may_go = self.commits.answered(commit, ok=outcome is None)
        if self.table.is_current(owned):
            if isinstance(outcome, Fenced | NotYetGranted) and commit.claim is not None:
                self.handle(owned, ClaimRefused(commit.claim, outcome), now_ms)
            if self.table.is_current(owned):
                self.handle(owned, MayCommit(), now_ms)
        if others_may_go:
            self.let_commit(now_ms)

    def let_commit(self, now_ms: MonotonicMs) -> None:
        """Send last commits that were held back."""
        queues = (owned.queue for owned in self.table.each() if not owned.commit_awaited)
        self.handle_each(MayCommit(), now_ms, queues)

    def take(
        self,
        queue: MessageQueue,
        now_ms: MonotonicMs,
        *,
        delay_ms: int,
        is_announced: bool = False,
        claim: Claim | None = None,
        opened: OpenedQueue | None = None,
    ) -> None:
        """Take a queue that was assigned to us; its former owner gets `delay_ms` to commit, or unlocks it.

        claim: from the coordinator, which has made sure that no other member has the queue. opened: its
        fence's answer to that claim.
        """
        if self.closing:
            return
        going = self.table.get(queue)
        if going is not None:  # Still being released; it is taken again afterwards.
            going.is_wanted_again = True
            return
        owned = self.table.add(queue, now_ms)
        owned.is_announced = is_announced
        self.pulling.shares_changed()
        self.handle(owned, Taken(delay_ms, claim, opened), now_ms)

    def remove(self, owned: OwnedQueue) -> None:
        """Remove a queue, and drop its state."""
        self.table.remove(owned)
        self.offsets.forget(owned.queue)
        self.pulling.shares_changed()

    # For actions.

    def master(self, owned: OwnedQueue) -> str | None:
        """Return the address of the broker that stores a queue."""
        return self.routes.master(owned.queue.broker_name)

    def read(self, owned: OwnedQueue) -> None:
        """Let a queue be read, unless the user has paused it."""
        paused = self.table.is_paused(owned.queue)
        owned.state = QueueState.PAUSED if paused else QueueState.READING

    def load_at(self, owned: OwnedQueue, due_ms: MonotonicMs) -> None:
        """Query the offset of a queue at a time."""
        if owned.load_timer is None:
            owned.load_timer = self.kernel.deadlines.new(partial(self._handle_later, owned, OffsetDue()))
        owned.load_timer.at(due_ms)

    def handle_at(self, owned: OwnedQueue, event: Event, due_ms: MonotonicMs) -> None:
        """Handle an event of a queue at a time, unless the queue is gone by then."""
        self.kernel.deadlines.set(due_ms, partial(self._handle_later, owned, event))

    def _handle_later(self, owned: OwnedQueue, event: Event, now_ms: MonotonicMs) -> None:
        if self.table.is_current(owned):
            self.handle(owned, event, now_ms)

    def repeat_round(self, now_ms: MonotonicMs) -> None:
        """Repeat the round soon: a queue could not be taken, or may be taken again."""
        self.is_balanced = False
        if not self.closing:
            self.round_due.by(now_ms + REBALANCE_SOON_MS)

    def want_lock(self, owned: OwnedQueue) -> None:
        """Lock a queue with the next request to its broker, or renew its lock."""
        if owned.is_ours:
            self.locks_wanted[owned.queue] = owned
            self.unlocked.pop(owned.queue, None)

    def want_lock_at(self, owned: OwnedQueue, due_ms: MonotonicMs) -> None:
        """Request the lock of a queue again at a time."""
        self.kernel.deadlines.set(due_ms, lambda _: self.want_lock(owned))

    def announce(self, owned: OwnedQueue) -> None:
        """Notify the listener of a queue, once."""
        if owned.is_announced:
            return
        owned.is_announced = True
        if self.settings.has_assigned_hook:
            self.table.hook_begins(owned.queue)
        self.kernel.effects.add(fx.Assigned((owned.queue,)))

    def unlock(self, owned: OwnedQueue) -> None:
        """Return the lock of a queue, if it was requested."""
        address = owned.lock.address
        if address:
            self.unlocked[owned.queue] = address
            self.to_unlock.setdefault(address, []).append(owned.queue)
