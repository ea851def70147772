"""The process queue: the pulled messages of one queue that are not done.

        pulled ─► put ─► Delivery to a handler ─► remove ─► commit offset: the smallest remaining one

Upstream: impl/consumer/ProcessQueue.java.
"""

from collections import deque
from collections.abc import Iterable, Sequence
from enum import Enum

from libramq.client.consuming.membership.lease import Lease
from libramq.client.consuming.pulling.catch_up import CatchUpPace
from libramq.clock import MonotonicMs
from libramq.fencing import Claim
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue


class QueueState(Enum):
    """The states of an owned queue.

    WAITING for its last owner to commit, or LOCKING · LOADING its offset, in a coordinated group by opening
    it · PULLING · DRAINING running handlers · REVOKING: waiting for the listener · LEAVING: waiting for the
    last commit · GONE
    """

    WAITING = "waiting"
    LOCKING = "locking"
    LOADING = "loading"
    PULLING = "pulling"
    DRAINING = "draining"
    REVOKING = "revoking"
    LEAVING = "leaving"
    GONE = "gone"


class Delivery:
    """Messages passed to one call of a handler. The handler's thread calls `begin`; the core all else."""

    __slots__ = ("began_ms", "messages", "process_queue", "started")

    def __init__(self, process_queue: "ProcessQueue", messages: Sequence[MessageExt]) -> None:
        self.process_queue = process_queue
        self.messages = messages
        self.started = False
        self.began_ms = MonotonicMs(0)

    def begin(self) -> bool:
        """Return whether the handler may run: not if the queue was taken from us or is paused.

        Nor if the lease has expired. `started` is set before `dropped` is read, and the core does it in the
        opposite order: whichever thread comes second sees the other's write.
        """
        owned = self.process_queue
        self.began_ms = owned.lease.monotonic_ms()
        self.started = True
        return not (owned.dropped or owned.paused) and owned.lease.holds_at(self.began_ms)

    def raised(self, error: BaseException) -> None:
        """Note what the handler raised; the log has it, and the message is redelivered."""


class ProcessQueue:
    """One owned queue."""

    def __init__(self, queue: MessageQueue, generation: int, lease: Lease, *, now_ms: MonotonicMs) -> None:
        self.queue = queue
        self.generation = generation
        self.lease = lease
        self.state = QueueState.WAITING
        self.dropped = False
        self.paused = False
        #: Whether the listener has been notified of it.
        self.is_announced = False
        self.start_offset = 0
        self.next_offset = 0
        #: The highest offset that we handled in an earlier ownership.
        self.handled_before = -1
        self.broker_id = 0
        self.last_pull_ms = now_ms
        self.pull_due_ms = now_ms
        self.is_pulling = False
        self.is_throttled = False
        self.has_failed = False
        #: When the last message that we have pulled was stored, also in an ownership just before; 0 for none.
        self.last_stored_ms = 0
        #: While we ask what was stored since: the broker's correction of an offset beyond the queue's end.
        self.corrected_offset: int | None = None
        #: Its topic was missing for a while: its offsets may mean other messages now.
        self.was_missing = False
        self.wanted_again = False
        self.deliveries: set[Delivery] = set()
        self.sending_back = 0
        #: Deliveries held by a pause.
        self.kept: list[Delivery] = []
        self.catch_up: CatchUpPace | None = None
        self.commit_awaited = False
        self.last_commits = 0
        # In coordinated groups only: the claim to open it under, and the claim of pulls and commits.
        self.granted: Claim | None = None
        self.opened: Claim | None = None
        #: The epoch of the last opening, even if the fence has forgotten it since; 0 for none.
        self.opened_epoch = 0
        self.open_tries = 0
        self.is_revocation_requested = False
        self.revocation_requested_at_ms = now_ms
        # Orderly only: messages that no handler has seen yet, whether they wait after a failure, and the
        # lock.
        self.waiting: deque[MessageExt] = deque()
        self.suspended = False
        self.is_locked = True
        self.is_in_doubt = False
        self.lock_requested_at = ""  # The address, which may no longer be in the routes at the unlocking.
        self.lock_tries = 0
        self.locked_until_ms = MonotonicMs(0)
        self._messages: dict[int, MessageExt] = {}
        self._bytes = 0
        self._highest = -1
        self._is_ascending = True

    @property
    def count(self) -> int:
        """Return how many messages are here."""
        return len(self._messages)

    @property
    def size(self) -> int:
        """Return the total size of the messages' bodies."""
        return self._bytes

    @property
    def kept_range(self) -> tuple[int, int]:
        """Return the first and the last message's offset; zeros if there is none."""
        return (min(self._messages), max(self._messages)) if self._messages else (0, 0)

    @property
    def span(self) -> int:
        """Return the distance from the first message's offset to the last one's."""
        return next(reversed(self._messages)) - next(iter(self._messages)) if self._messages else 0

    @property
    def is_busy(self) -> bool:
        """Return whether a handler runs, or a message is being sent back."""
        return self.sending_back > 0 or any(delivery.started for delivery in self.deliveries)

    @property
    def may_commit(self) -> bool:
        """Return whether a commit may be sent: none is under way, and the queue is surely the one we read."""
        is_ours = self.granted is None or self.opened is not None
        return is_ours and not self.was_missing and not self.commit_awaited and not self.is_in_doubt

    def put(self, messages: Iterable[MessageExt]) -> None:
        """Add pulled messages; one that is here already is replaced."""
        for message in messages:
            offset = message.queue_offset
            replaced = self._messages.get(offset)
            if replaced is not None:
                self._bytes -= len(replaced.body)
            elif offset < self._highest:
                self._is_ascending = False
            self._messages[offset] = message
            self._bytes += len(message.body)
            self._highest = max(self._highest, offset)

    def remove(self, messages: Iterable[MessageExt]) -> int | None:
        """Remove messages that are done; return the offset to commit, None if nothing was here."""
        if not self._messages:
            return None
        for message in messages:
            removed = self._messages.pop(message.queue_offset, None)
            if removed is not None:
                self._bytes -= len(removed.body)
        return self.commit_offset

    @property
    def commit_offset(self) -> int | None:
        """Return the smallest offset not done; one past the highest if all are; None before the first."""
        if self._messages:
            # A dict keeps the order of arrival, which is ascending unless a broker went back.
            return next(iter(self._messages)) if self._is_ascending else min(self._messages)
        return self._highest + 1 if self._highest >= 0 else None
