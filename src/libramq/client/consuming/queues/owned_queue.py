"""The owned queue: the state of a queue that a consumer owns, its lock and claim, its messages in progress,
its offset to commit, and how fast it catches up.

        pulled ─► held ─► Delivery to a handler ─► removed ─► commit offset: the smallest remaining one

The table in `transitions` decides its state changes; the actions also write lock and claim.
Upstream: impl/consumer/ProcessQueue.java.

The lease, LibraMQ's own, limits how long a member of a coordinated group may start handlers and commit
without an answer from its coordinator. It lasts one session, counted from the sending of the last answered
request, so it expires before the coordinator gives our queues to others, even if the process was suspended
meanwhile. Handlers check it on their own threads against the current time: a process that wakes up starts
nothing before the coordinator has answered. Outside coordinated groups the lease never ends.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from operator import lt
from typing import ClassVar, Final, NamedTuple, Self

from libramq.clock import MonotonicMs
from libramq.fencing import NO_ATTEMPTS, Attempts, Claim
from libramq.kernel.deadlines import Deadline
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue

#: The end of a lease that never expires.
FOREVER: Final = MonotonicMs(2**63)


class Lease:
    """The lease: written by the core, read by any thread."""

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs]) -> None:
        self.monotonic_ms = monotonic_ms
        #: When the lease ends; FOREVER unless a coordinator assigns our queues.
        self.until_ms = FOREVER

    def holds(self) -> bool:
        """Return whether handlers may begin and offsets be committed."""
        return self.monotonic_ms() < self.until_ms


class QueueState(Enum):
    """The states, with their meanings."""

    NEW = "has just been assigned to us"
    LOCKING = "waits for its lock at the broker (orderly consumption)"
    WAITING = "waits until its last owner has had time to commit"
    OPENING = "its start offset is queried; in a coordinated group it is opened"
    READING = "is pulled, and its messages are handled"
    PAUSED = "was paused by the user"
    DOUBTED = "its lock may be lost: the connection to its broker ended"
    FORGOTTEN = "its fence has forgotten our opening; it is opened again"
    SEARCHING = "its offset was refused; the first message stored since our last one is looked up"
    MOVING = "its offset was set elsewhere; it is taken again when that is committed"
    DRAINING = "is being released: handlers are running"
    REVOKING = "is being released: the listener is running"
    LEAVING = "is being released: the last commit is awaited"
    GONE = "is released or lost"


#: The letters of the states, in their order, for drawing.
LETTERS: Final = "NLWORPDFSMGVEZ"
#: The states of a queue that we own and do not release. Tuples, because Enum.__hash__ is slow Python code.
OURS: Final = (
    QueueState.READING,
    QueueState.PAUSED,
    QueueState.OPENING,
    QueueState.WAITING,
    QueueState.LOCKING,
    QueueState.DOUBTED,
    QueueState.FORGOTTEN,
    QueueState.SEARCHING,
    QueueState.NEW,
)
#: The states after the first pull, in which the position is known.
POSITIONED: Final = (QueueState.READING, QueueState.PAUSED, QueueState.DOUBTED, QueueState.FORGOTTEN)


#: Ours: each pull of a queue that catches up requests a tenth of a second's messages, for an even pace.
PULLS_A_SECOND: Final = 10
#: ProcessQueue.REBALANCE_LOCK_MAX_LIVE_TIME.
LOCK_TRUSTED_MS: Final = 30_000


class CatchUpPace:
    """Limits how fast a queue that was taken over delivers its backlog, in messages a second.

    A queue whose last owner is gone has a backlog, and its next owner would get all of it at once. The limit
    applies until the queue has been read to its end once.
    """

    def __init__(self, rate: int, now_ms: MonotonicMs) -> None:
        self.rate = rate
        self._due_us = int(now_ms) * 1000

    @property
    def portion(self) -> int:
        """Return how many messages one pull may request."""
        return max(1, self.rate // PULLS_A_SECOND)

    def brought(self, count: int, now_ms: MonotonicMs) -> int:
        """Count pulled messages; return how long to wait before the next pull."""
        now_us = int(now_ms) * 1000
        self._due_us = max(self._due_us, now_us) + count * 1_000_000 // self.rate
        return max(0, (self._due_us - now_us) // 1000)


class LockStatus(Enum):
    """The status of a queue's lock at its broker (orderly consumption), as the member knows it."""

    NOT_NEEDED = "not needed"
    WANTED = "wanted"
    HELD = "held"
    IN_DOUBT = "in doubt"


@dataclass(slots=True)
class QueueLock:
    """A lock, which is valid for 60 s at the broker and trusted for 30 s here, counted from its request.

    address: the broker of the last request, which may be in no route any more when the lock is returned.
    """

    status: LockStatus = LockStatus.NOT_NEEDED
    address: str = ""
    refusals: int = 0
    until_ms: MonotonicMs = MonotonicMs(0)

    @property
    def is_in_doubt(self) -> bool:
        """Return whether the broker may have given the lock away."""
        return self.status is LockStatus.IN_DOUBT

    @property
    def is_held(self) -> bool:
        """Return whether no other member can read the queue, as far as locks are concerned."""
        return self.status in (LockStatus.HELD, LockStatus.NOT_NEEDED)

    def trust(self, requested_ms: MonotonicMs) -> None:
        """Trust a lock that the broker has granted or renewed; this alone does not resolve a doubt."""
        if not self.is_in_doubt:
            self.status = LockStatus.HELD
        self.until_ms = requested_ms + LOCK_TRUSTED_MS


@dataclass(slots=True)
class QueueClaim:
    """The claims on a queue; none outside coordinated groups.

    granted: the claim to open the queue with. opened: the claim that pulls and commits use. opened_epoch: the
    epoch of the last opening, even if the fence has forgotten it since; 0 for none. tries: the attempts to
    open the queue since the grant. topic_start: where in the log the topic begins, by the last opening
    (`fencing.OpenedQueue`).
    """

    granted: Claim | None = None
    opened: Claim | None = None
    opened_epoch: int = 0
    tries: int = 0
    topic_start: int = 0

    @property
    def is_open(self) -> bool:
        """Return whether the fence accepts our commits, or there is no fence."""
        return self.granted is None or self.opened is not None

    @property
    def is_current(self) -> bool:
        """Return whether the queue is open under the last grant, or there is no grant."""
        return self.granted == self.opened

    def is_newer_than(self, claim: Claim) -> bool:
        """Return whether the fence has opened the queue for us under a later epoch than the coordinator's."""
        opened = self.opened
        return (
            opened is not None
            and opened == self.granted
            and claim.member == opened.member
            and claim.epoch < opened.epoch
        )

    def regrant(self, claim: Claim) -> None:
        """Replace the grant."""
        self.granted, self.tries = claim, 0

    def accept(self, claim: Claim, topic_start: int) -> None:
        """Note that the fence has opened the queue."""
        self.opened, self.opened_epoch, self.tries, self.topic_start = claim, claim.epoch, 0, topic_start


class HeldMessages:
    """Pulled messages by queue offset. size: the bytes of their bodies."""

    __slots__ = ("_highest", "_is_ascending", "_sizes", "size")

    def __init__(self) -> None:
        #: Sizes by offset: a handler that replaces a body changes nothing here.
        self._sizes: dict[int, int] = {}
        self.size = 0
        self._highest = -1
        self._is_ascending = True

    def __len__(self) -> int:
        return len(self._sizes)

    @property
    def bounds(self) -> tuple[int, int]:
        """Return the first and the last message's offset; zeros if there is none."""
        return (min(self._sizes), max(self._sizes)) if self._sizes else (0, 0)

    @property
    def span(self) -> int:
        """Return the distance from the first message's offset to the last one's."""
        return next(reversed(self._sizes)) - next(iter(self._sizes)) if self._sizes else 0

    def put(self, messages: Sequence[MessageExt]) -> None:
        """Add pulled messages; they replace earlier ones with the same offsets."""
        offsets = [message.queue_offset for message in messages]
        sizes = [len(message.body) for message in messages]
        if offsets and offsets[0] > self._highest and all(map(lt, offsets, offsets[1:])):
            # True of nearly every pull: 0.1 µs a message instead of 0.25.
            self._sizes.update(zip(offsets, sizes, strict=True))
            self.size += sum(sizes)
            self._highest = offsets[-1]
            return
        for offset, size in zip(offsets, sizes, strict=True):
            replaced = self._sizes.get(offset)
            if replaced is not None:
                self.size -= replaced
            elif offset < self._highest:
                self._is_ascending = False
            self._sizes[offset] = size
            self.size += size
            self._highest = max(self._highest, offset)

    def remove(self, messages: Sequence[MessageExt]) -> int | None:
        """Remove messages that are done; return the offset to commit, None if nothing was held."""
        if not self._sizes:
            return None
        pop, freed_bytes = self._sizes.pop, 0
        for message in messages:
            freed_bytes += pop(message.queue_offset, 0)
        self.size -= freed_bytes
        return self.commit_offset

    @property
    def commit_offset(self) -> int | None:
        """Return the smallest offset not done; one past the highest if all are; None before the first."""
        if self._sizes:
            # A dict keeps the order of arrival, which is ascending unless a broker went back.
            return next(iter(self._sizes)) if self._is_ascending else min(self._sizes)
        return self._highest + 1 if self._highest >= 0 else None


@dataclass(slots=True, eq=False)
class PullCursor:
    """Marks where a queue is pulled next. `Pulling` moves it.

    timer: for the next pull, if it is delayed. number: counts the cursor's jumps; answers to pulls sent
    before the last jump are ignored. sought_offset: where the program wants to begin, regardless of the
    committed offset. last_stored_ms: the store time of the last pulled message, in this ownership or the
    previous one; 0 for none. handled_before: the highest offset handled in an earlier ownership. was_missing:
    the topic was missing for a while, so its offsets may mean other messages now. accepts_damaged: the last
    pull returned a body that does not match its checksum, and the next result is accepted as it is.
    end_offset: the end of the queue, by the last answer.
    """

    last_ms: MonotonicMs
    timer: Deadline | None = None
    start_offset: int = 0
    next_offset: int = 0
    number: int = 0
    sought_offset: int | None = None
    broker_id: int = 0
    is_under_way: bool = False
    is_throttled: bool = False
    has_failed: bool = False
    last_stored_ms: int = 0
    handled_before: int = -1
    was_missing: bool = False
    catch_up: CatchUpPace | None = None
    accepts_damaged: bool = False
    end_offset: int | None = None

    @property
    def has_advanced(self) -> bool:
        """Return whether anything was read since the start offset."""
        return self.next_offset > self.start_offset

    def start(self, offset: int, handled_before: int) -> None:
        """Begin at an offset."""
        self.start_offset = self.next_offset = offset
        self.accepts_damaged = False
        self.handled_before = handled_before


#: Ours: longer than the name of a type, and enough of a text to show what it is about.
ERROR_CHARACTERS_MAX: Final = 512


class HandlerError(NamedTuple):
    """An exception of a handler: the name of its type, and the beginning of its text."""

    kind: str
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Self:
        """Return the description of an exception, without its text if formatting that fails in any way.

        Lone surrogates, as in half an emoji or an undecodable file name, could not be sent and are replaced.
        """
        kind = type(error)
        module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
        try:
            text = str(error)
        except BaseException:  # Even SystemExit: it would end the handler's thread.
            text = ""
        return cls(*map(_sendable, (f"{module}{kind.__qualname__}", text)))


def _sendable(text: str) -> str:
    return text[:ERROR_CHARACTERS_MAX].encode(errors="replace").decode()


class Delivery:
    """Messages for one call of a handler. Its thread calls `begin` and `raised`; the core calls the rest."""

    __slots__ = ("began_ms", "error", "messages", "owned", "started")

    def __init__(self, owned: "OwnedQueue", messages: Sequence[MessageExt]) -> None:
        self.owned = owned
        self.messages = messages
        self.started = False
        self.began_ms = MonotonicMs(0)
        self.error: HandlerError | None = None

    def begin(self) -> bool:
        """Return whether the handler may run: only while its queue is being read, and the lease holds.

        `started` is set before the state is read, and the core does it in the opposite order: whichever
        thread comes second sees the other's write.
        """
        owned = self.owned
        self.began_ms = owned.lease.monotonic_ms()
        self.started = True
        return owned.state is QueueState.READING and self.began_ms < owned.lease.until_ms

    @property
    def is_under_way(self) -> bool:
        """Return whether user code is processing the messages."""
        return self.started

    #: Whether it is a call of a handler, whose duration counts.
    is_call: ClassVar[bool] = True

    @property
    def in_hand_count(self) -> int:
        """Return how many messages user code is processing."""
        return len(self.messages) if self.started else 0

    @property
    def done_count(self) -> int:
        """Return how many messages of an unfinished delivery are done."""
        return 0

    @property
    def handled_count(self) -> int:
        """Return how many messages of a finished delivery user code has received."""
        return len(self.messages)

    @property
    def finished_offset(self) -> int | None:
        """Return the offset after the last message that a fetching program has finished; None if none."""
        return None

    def drop(self) -> None:
        """Ignore the messages from now on."""

    def raised(self, error: BaseException) -> None:
        """Keep the handler's exception, for the log and for dead letters."""
        self.error = HandlerError.of(error)


@dataclass(slots=True, eq=False)
class QueueWork:
    """The deliveries of a queue, and the messages that wait to be delivered. Written by `handling`.

    sending_back: how many messages are on their way back to a broker. kept: deliveries held by a pause.
    waiting (orderly only): messages that no handler has received yet; is_suspended: they wait after failure.
    finished (fetching programs only): the offset after the last finished message.
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
        """Remove deliveries whose handlers have not begun; if in_order, their messages wait again."""
        unstarted = {delivery for delivery in self.deliveries if not delivery.started}
        self.deliveries -= unstarted
        if in_order:
            for delivery in unstarted:  # One at most.
                self.waiting.extendleft(reversed(delivery.messages))

    def finished_offset(self) -> int | None:
        """Return the offset after the last fetched message that the program has finished."""
        for delivery in self.deliveries:
            offset = delivery.finished_offset
            if offset is not None:
                self.finished = offset if self.finished is None else max(offset, self.finished)
        return self.finished


class OwnedQueue:
    """One ownership of a queue; taking the queue again creates another one."""

    def __init__(
        self,
        queue: MessageQueue,
        lease: Lease,
        *,
        now_ms: MonotonicMs,
        new_held: Callable[[], HeldMessages] = HeldMessages,
    ) -> None:
        self.queue = queue
        self.lease = lease
        #: Set on the network thread only; read by handlers' threads.
        self.state = QueueState.NEW
        self.lock = QueueLock()
        self.claim = QueueClaim()
        self.cursor = PullCursor(last_ms=now_ms)
        self._new_held = new_held
        self.held = new_held()
        self.work = QueueWork()
        #: In orderly mode: the attempts of the former owner at the first message.
        self.former_attempts = NO_ATTEMPTS
        #: Whether the listener has been notified of the assignment.
        self.is_announced = False
        #: The deadline of the next offset query.
        self.load_timer: Deadline | None = None
        #: While SEARCHING: the broker's correction of an offset beyond the queue's end.
        self.corrected_offset = 0
        # During a release: when it began.
        self.revoked_ms = now_ms
        # During a release: whether the coordinator requested it.
        self.is_revoked_by_coordinator = False
        # During a release: whether to take the queue again afterwards.
        self.is_wanted_again = False
        # Written by `Commits`.
        self.commit_awaited = False
        self.last_commits = 0

    @property
    def continues_at(self) -> int:
        """Return the offset at which a consumer continues."""
        offset = self.held.commit_offset
        return self.cursor.start_offset if offset is None else offset

    def drop_pulled(self) -> None:
        """Drop pulled messages: the queue is to be read from another offset."""
        for delivery in self.work.deliveries:
            delivery.drop()
        self.work.deliveries.clear()
        self.held = self._new_held()

    def attempts_behind(self) -> Attempts:
        """Return the attempts at the next message, for the next owner of an orderly queue."""
        if not self.work.waiting:
            return self.former_attempts
        first = self.work.waiting[0]
        return Attempts(first.queue_offset, first.reconsume_times) if first.reconsume_times else NO_ATTEMPTS

    @property
    def is_ours(self) -> bool:
        """Return whether we own the queue and are not releasing it."""
        return self.state in OURS

    @property
    def may_commit(self) -> bool:
        """Return whether a commit may be sent: none is in flight, and the queue is surely the one we read."""
        is_same = not self.cursor.was_missing and not self.lock.is_in_doubt
        return self.claim.is_open and is_same and not self.commit_awaited
