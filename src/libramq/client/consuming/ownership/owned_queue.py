"""The owned queue: what a consumer knows of one of its queues, and the messages at work.

        pulled ─► held ─► Delivery to a handler ─► removed ─► commit offset: the smallest remaining one

Its state changes by the table in `transitions`; lock and claim are values that are replaced.
Upstream: impl/consumer/ProcessQueue.java.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.ownership.held_messages import HeldMessages
from libramq.client.consuming.ownership.queue_claim import NO_CLAIM
from libramq.client.consuming.ownership.queue_lock import QueueLock
from libramq.client.consuming.ownership.state import OURS, QueueState
from libramq.client.consuming.pulling.pull_cursor import PullCursor
from libramq.clock import MonotonicMs
from libramq.fencing import NO_ATTEMPTS, Attempts
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue


class Delivery:
    """Messages passed to one call of a handler. The handler's thread calls `begin`; the core all else."""

    __slots__ = ("began_ms", "messages", "owned", "started")

    def __init__(self, owned: "OwnedQueue", messages: Sequence[MessageExt]) -> None:
        self.owned = owned
        self.messages = messages
        self.started = False
        self.began_ms = MonotonicMs(0)

    def begin(self) -> bool:
        """Return whether the handler may run: only while its queue is being read, and the lease holds.

        `started` is set before the state is read, and the core does it in the opposite order: whichever
        thread comes second sees the other's write.
        """
        owned = self.owned
        self.began_ms = owned.lease.monotonic_ms()
        self.started = True
        return owned.state is QueueState.READING and owned.lease.holds_at(self.began_ms)

    @property
    def is_under_way(self) -> bool:
        """Return whether the user's code is at work on its messages."""
        return self.started

    @property
    def finished_offset(self) -> int | None:
        """Return the offset up to which a program that fetches messages has finished them; None if none."""
        return None

    def drop(self) -> None:
        """Have its messages ignored from now on."""

    def raised(self, error: BaseException) -> None:
        """Note what the handler raised; the log has it, and the message is redelivered."""


@dataclass(slots=True, eq=False)
class QueueWork:
    """The deliveries of a queue, and the messages that wait to be delivered. Written by `handling`.

    sending_back: messages on their way back to a broker. kept: deliveries held by a pause. waiting: orderly
    only: messages that no handler has seen yet; is_suspended: they wait after a failure. finished: if the
    program fetches messages: the offset up to which it has finished them.
    """

    deliveries: set[Delivery] = field(default_factory=set)
    sending_back: int = 0
    kept: list[Delivery] = field(default_factory=list)
    waiting: deque[MessageExt] = field(default_factory=deque)
    is_suspended: bool = False
    finished: int | None = None

    @property
    def is_under_way(self) -> bool:
        """Return whether a handler runs, or a message is being sent back."""
        return self.sending_back > 0 or any(delivery.is_under_way for delivery in self.deliveries)

    def drop_unstarted(self, *, in_order: bool) -> None:
        """Remove deliveries whose handlers have not begun; in order their messages wait again."""
        unstarted = {delivery for delivery in self.deliveries if not delivery.started}
        self.deliveries -= unstarted
        if in_order:
            for delivery in unstarted:  # One at most.
                self.waiting.extendleft(reversed(delivery.messages))

    def finished_offset(self) -> int | None:
        """Return the offset up to which the program has finished the messages it fetched."""
        for delivery in self.deliveries:
            offset = delivery.finished_offset
            if offset is not None:
                self.finished = offset if self.finished is None else max(offset, self.finished)
        return self.finished


class OwnedQueue:
    """One owned queue: `generation` tells it from an earlier ownership of the same queue."""

    def __init__(
        self,
        queue: MessageQueue,
        generation: int,
        lease: Lease,
        *,
        now_ms: MonotonicMs,
        new_held: Callable[[], HeldMessages] = HeldMessages,
    ) -> None:
        self.queue = queue
        self.generation = generation
        self.lease = lease
        #: Set by `enter` only; read by handlers' threads.
        self.state = QueueState.NEW
        self.lock = QueueLock()
        self.claim = NO_CLAIM
        self.cursor = PullCursor(last_ms=now_ms, due_ms=now_ms)
        self._new_held = new_held
        self.held = new_held()
        self.work = QueueWork()
        #: In order: what its former owner has counted of the message at which we begin.
        self.former_attempts = NO_ATTEMPTS
        #: Whether the listener has been notified of it.
        self.is_announced = False
        #: When its offset is to be queried, or queried again.
        self.load_due_ms = now_ms
        #: While SEARCHING: the broker's correction of an offset beyond the queue's end.
        self.corrected_offset = 0
        # While it is given up: since when, whether the coordinator asked for it, and whether we get it again.
        self.revoked_ms = now_ms
        self.is_revoked_by_coordinator = False
        self.is_wanted_again = False
        # Written by `Commits`.
        self.commit_awaited = False
        self.last_commits = 0

    def drop_pulled(self) -> None:
        """Drop what was pulled: it is to be read from another offset."""
        for delivery in self.work.deliveries:
            delivery.drop()
        self.work.deliveries.clear()
        self.held = self._new_held()

    def attempts_behind(self) -> Attempts:
        """Return what its next owner has to know of the message that comes next, if it is read in order."""
        if not self.work.waiting:
            return self.former_attempts
        first = self.work.waiting[0]
        return Attempts(first.queue_offset, first.reconsume_times) if first.reconsume_times else NO_ATTEMPTS

    @property
    def is_ours(self) -> bool:
        """Return whether it is ours, and not being given up."""
        return self.state in OURS

    @property
    def may_commit(self) -> bool:
        """Return whether a commit may be sent: none is under way, and the queue is surely the one we read."""
        is_same = not self.cursor.was_missing and not self.lock.is_in_doubt
        return self.claim.is_open and is_same and not self.commit_awaited
