"""The ownership: handles the events of owned queues by a table, and holds what its actions use.

handle(queue, event)  ─►  TABLE[event][state of the queue]  ─►  action  ─►  effects and signals
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from libramq.client.consuming import effects as fx
from libramq.client.consuming import signals as sg
from libramq.client.consuming.committing.commits import Commits
from libramq.client.consuming.committing.offset_store import OffsetStore
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.ownership.event import ClaimRefused, Event, MayCommit, OffsetDue, Taken
from libramq.client.consuming.ownership.owned_queue import OwnedQueue
from libramq.client.consuming.ownership.queue_table import QueueTable
from libramq.client.consuming.ownership.state import QueueState
from libramq.client.consuming.pulling.pulling import Pulling
from libramq.client.consuming.signals import Steps
from libramq.client.consuming.timers import Timers
from libramq.client.routing.routes import RouteTable
from libramq.clock import MonotonicMs
from libramq.errors import Fenced, LibraError, LocalProtocolError, NotYetGranted
from libramq.fencing import Claim, Opened
from libramq.message.queue import MessageQueue

Action = Callable[["Ownership", OwnedQueue, Any, MonotonicMs], Steps]


class Cell(NamedTuple):
    """A rule: the action, and the states that may follow."""

    action: Action
    then: frozenset[QueueState]


Transitions = Mapping[type[Event], Mapping[QueueState, Cell]]


@dataclass(slots=True, kw_only=True)
class Ownership:
    """The owned queues.

    uses_locks: we allocate for ourselves, and consume in order. closing: no queue is taken. failed: called
    with bugs of ours.
    """

    transitions: Transitions
    settings: ConsumerSettings
    routes: RouteTable
    offsets: OffsetStore
    timers: Timers
    table: QueueTable
    pulling: Pulling
    commits: Commits
    uses_locks: bool
    failed: Callable[[str, Exception], None]
    closing: bool = False
    #: By topic: from when queues without an offset are read; 0, or without one: by Apache's rule.
    since_ms: Mapping[str, int] = field(default_factory=dict)
    #: When the offset of a queue was refused last.
    refused_at_ms: dict[MessageQueue, MonotonicMs] = field(default_factory=dict)

    def handle(self, owned: OwnedQueue, event: Event, now_ms: MonotonicMs) -> Steps:
        """Handle what happened to a queue."""
        before = owned.state
        cell = self.transitions[type(event)].get(before)
        if cell is None:
            self._failed(owned, f"{type(event).__name__} cannot happen to a queue that is {before.name}")
            return []
        steps = cell.action(self, owned, event, now_ms)
        if owned.state not in cell.then:
            after = f"{type(event).__name__} makes a queue {owned.state.name} that was {before.name}"
            self._failed(owned, after)
        return steps

    def _failed(self, owned: OwnedQueue, what: str) -> None:
        """Report what the table lacks, a bug of ours; the consumer continues."""
        self.failed("the table of owned queues", LocalProtocolError(f"{owned.queue}: {what}"))

    def handle_each(self, event: Event, now_ms: MonotonicMs) -> Steps:
        """Handle what happened to all queues."""
        steps: Steps = []
        for owned in self.table.each():
            try:
                steps += self.handle(owned, event, now_ms)
            except Exception as error:  # It happens to the others all the same.
                self.failed(f"{type(event).__name__} of {owned.queue} could not be handled", error)
        return steps

    def handle_same(self, queue: MessageQueue, generation: int, event: Event, now_ms: MonotonicMs) -> Steps:
        """Handle the answer to a request about a queue, unless it was lost since."""
        owned = self.table.same(queue, generation)
        return [] if owned is None else self.handle(owned, event, now_ms)

    def committed(self, commit: fx.CommitOffset, outcome: LibraError | None, now_ms: MonotonicMs) -> Steps:
        """Handle the result of a commit."""
        owned, others_may_go = self.commits.answered(commit, ok=outcome is None)
        steps: Steps = []
        if owned is not None:
            if isinstance(outcome, Fenced | NotYetGranted) and commit.claim is not None:
                steps += self.handle(owned, ClaimRefused(commit.claim, outcome), now_ms)
            if self.table.is_current(owned):
                steps += self.handle(owned, MayCommit(), now_ms)
        return steps + self.let_commit(now_ms) if others_may_go else steps

    def let_commit(self, now_ms: MonotonicMs) -> Steps:
        """Send the last commits that were held."""
        steps: Steps = []
        for owned in self.table.each():
            if not owned.commit_awaited:
                steps += self.handle(owned, MayCommit(), now_ms)
        return steps

    def handle_queue(self, queue: MessageQueue, event: Event, now_ms: MonotonicMs) -> Steps:
        """Handle what happened to a queue, if it is in the table."""
        owned = self.table.get(queue)
        return [] if owned is None else self.handle(owned, event, now_ms)

    def take(
        self,
        queue: MessageQueue,
        now_ms: MonotonicMs,
        *,
        delay_ms: int,
        is_announced: bool = False,
        claim: Claim | None = None,
        opened: Opened | None = None,
    ) -> Steps:
        """Take a queue that was assigned to us; its former owner gets `delay_ms` to commit, or unlocks it.

        claim: from the coordinator, which has made sure that nobody else has it. opened: under that claim.
        """
        if self.closing:
            return []
        going = self.table.get(queue)
        if going is not None:  # Still being given up; it is taken again afterwards.
            going.is_wanted_again = True
            return []
        owned = self.table.add(queue, now_ms)
        owned.is_announced = is_announced
        self.pulling.shares_changed()
        return self.handle(owned, Taken(delay_ms, claim, opened), now_ms)

    def remove(self, owned: OwnedQueue) -> None:
        """Remove a queue: our state of it is void."""
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
            owned.load_timer = self.timers.new(partial(self._handle_later, owned, OffsetDue()))
        owned.load_timer.at(due_ms)

    def handle_at(self, due_ms: MonotonicMs, owned: OwnedQueue, event: Event) -> None:
        """Handle an event of a queue at a time, unless the queue is gone by then."""
        self.timers.at(due_ms, partial(self._handle_later, owned, event))

    def _handle_later(self, owned: OwnedQueue, event: Event, now_ms: MonotonicMs) -> Steps:
        return self.handle(owned, event, now_ms) if self.table.is_current(owned) else []

    def want_lock(self, owned: OwnedQueue, now_ms: MonotonicMs) -> Steps:
        """Request the lock of a queue, or request it again."""
        return [sg.LockWanted(owned.queue, owned.generation)] if owned.is_ours else []

    def announce(self, owned: OwnedQueue) -> Steps:
        """Notify the listener of a queue, once."""
        if owned.is_announced:
            return []
        owned.is_announced = True
        if self.settings.has_assigned_hook:
            self.table.hook_begins(owned.queue)
        return [fx.Assigned((owned.queue,))]

    def unlock(self, owned: OwnedQueue) -> Steps:
        """Return the lock of a queue, if it was requested."""
        address = owned.lock.address
        if not address:
            return []
        return [fx.UnlockQueues(address, (owned.queue,)), sg.Unlocked(owned.queue, address)]
