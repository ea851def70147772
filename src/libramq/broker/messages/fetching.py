"""Fetching: reads of several queues without a group, as by Kafka's Fetch: how long one is held, how many
bytes it waits for, and how many queues are read at once.

    Fetch ─► read all ─┬─► answered            enough bytes, a queue is refused, or it does not wait
                       ├─► held ─► arrived | expired ─► read all again
                       └─► a thread reads cold messages, then all again

A held pull (`reading`) waits for one queue on behalf of a group; a fetch waits for any of its queues, and its
readers commit by other requests.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

import msgspec

from libramq.catalog.requirements import Requirements
from libramq.clock import MonotonicMs
from libramq.errors import BrokerError
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Parked, Waiter
from libramq.kernel.work import Each, InThread, Work
from libramq.store.log.segments import Cold
from libramq.store.message_store import WARMINGS_MAX, MessageStore
from libramq.store.reading.read import ReadResult, ReadStatus
from libramq.waits.held_pulls import SUSPEND_MS_MAX

#: Ours: messages of one queue per answer; a thread converts them at some microseconds each.
COUNT_MAX: Final = 4096
#: Ours: unreadable stretches that a read skips before it answers with nothing.
GAPS_MAX: Final = 64
#: Ours: how long a fetch that has too few bytes waits before it reads again: reading them at every arrival
#: would cost time quadratic in their number.
PACE_MS: Final = 20
#: Ours: queues read at once, at some microseconds each if empty, otherwise 35; more are read as long work.
READS_AT_ONCE_MAX: Final = 256
#: Ours: queues of a fetch per millisecond of waiting before they are read again: reading empty ones takes
#: less than a tenth of that time.
READS_PER_MS: Final = 10


class QueueRead(msgspec.Struct, frozen=True):
    """A queue to read from an offset on."""

    topic: str
    queue_id: int
    offset: int
    bytes_max: int


class Fetch(msgspec.Struct, eq=False, kw_only=True):
    """A read of several queues. bytes_min: bytes that end the wait before `hold_ms` is over.

    as_stored: inner batches are read whole, possibly from before the offset. warmings: how many times a
    thread has read for it. users_version: of the users table that permitted it.
    """

    waiter: Waiter[Sequence[ReadResult | BrokerError]]
    reads: Sequence[QueueRead]
    bytes_min: int
    bytes_max: int
    hold_ms: int
    as_stored: bool = False
    warmings: int = 0
    users_version: int = 0


@dataclass(eq=False, slots=True)
class _Held(Parked):
    """A held fetch. queues: those whose arrivals wake it; none if it only waits for a time."""

    fetch: Fetch
    until_ms: MonotonicMs
    queues: set[tuple[str, int]]


class Fetching:
    """Serves fetches, held ones included."""

    def __init__(self, store: MessageStore, requirements: Requirements, kernel: Kernel) -> None:
        self._store = store
        self._requirements = requirements
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._purgatory = kernel.purgatory
        self._held: dict[tuple[str, int], dict[_Held, None]] = {}
        #: All held fetches.
        self._parked: dict[_Held, None] = {}
        self._waking = Each(kernel.work, self._wake)
        #: Counts changes of users: a fetch permitted under an earlier version gets no messages.
        self._users_version = 0

    def fetch(self, fetch: Fetch, now_ms: MonotonicMs) -> None:
        """Answer a fetch through its waiter, now or later."""
        fetch.users_version = self._users_version
        self._read(fetch, now_ms + min(max(fetch.hold_ms, 0), SUSPEND_MS_MAX), now_ms)

    def arrived(self, topic: str, queue_id: int, end: int) -> None:
        """Run the fetches held for a queue again, because it has new messages."""
        held = self._held.get((topic, queue_id))
        if held:
            self._waking.add(list(held))

    def end_held(self) -> None:
        """Answer all held fetches without messages: permissions have changed, and are checked again."""
        self._users_version += 1
        self._waking.add(list(self._parked))

    def _wake(self, held: _Held) -> None:
        """Run a held fetch, unless it was answered or has ended before its turn."""
        if self._purgatory.release(held):
            self._run_again(held)

    def _run_again(self, held: _Held) -> None:
        """Read the queues of a released fetch again."""
        self._try(held.fetch, held.until_ms)

    def _forget(self, held: _Held) -> None:
        del self._parked[held]
        for key in held.queues:
            waiting = self._held[key]
            del waiting[held]
            if not waiting:
                del self._held[key]

    def _try(self, fetch: Fetch, until_ms: MonotonicMs) -> None:
        try:
            self._read(fetch, until_ms, self._clock.monotonic_ms())
        except Exception as error:  # A failing fetch gets the error; the others and the sender continue.
            fetch.waiter.refuse(error)

    def _read(self, fetch: Fetch, until_ms: MonotonicMs, now_ms: MonotonicMs) -> None:
        if len(fetch.reads) > READS_AT_ONCE_MAX:
            self._effects.proceed(fetch.waiter.connection, self._steps(fetch, until_ms))
            return
        results: list[ReadResult | BrokerError] = []
        for _ in self._read_each(fetch, results):
            continue
        self._finish(fetch, results, until_ms, now_ms)

    def _steps(self, fetch: Fetch, until_ms: MonotonicMs) -> Work[None]:
        results: list[ReadResult | BrokerError] = []
        try:
            yield from self._read_each(fetch, results)
            self._finish(fetch, results, until_ms, self._clock.monotonic_ms())
        except Exception as error:
            fetch.waiter.refuse(error)

    def _finish(
        self,
        fetch: Fetch,
        results: Sequence[ReadResult | BrokerError],
        until_ms: MonotonicMs,
        now_ms: MonotonicMs,
    ) -> None:
        """Answer with the results, hold the fetch, or let a thread read cold messages."""
        if fetch.users_version != self._users_version:
            fetch.waiter.answer(list(map(self._ends, fetch.reads)))
            return
        cold = tuple(each for result in results if isinstance(result, ReadResult) for each in result.cold)
        if cold:
            self._effects.proceed(fetch.waiter.connection, self._read_warmed(cold, fetch, until_ms))
            return
        size = sum(result.size for result in results if isinstance(result, ReadResult))
        is_done = size >= fetch.bytes_min or now_ms >= until_ms
        is_done = is_done or any(map(_must_answer, fetch.reads, results))
        if is_done or not self._hold(fetch, until_ms, now_ms, has_some=size > 0):
            fetch.waiter.answer(results)

    def _read_warmed(self, cold: tuple[Cold, ...], fetch: Fetch, until_ms: MonotonicMs) -> Work[None]:
        yield InThread(Thread.READ, partial(self._store.warm, cold))
        fetch.warmings += 1
        self._try(fetch, until_ms)

    def _read_each(self, fetch: Fetch, results: list[ReadResult | BrokerError]) -> Work[None]:
        """Read the queues of a fetch."""
        left, may_wait = fetch.bytes_max, fetch.warmings >= WARMINGS_MAX
        for read in fetch.reads:
            result = self._read_one(fetch, read, left, may_wait=may_wait)
            if isinstance(result, ReadResult):
                left -= result.size
            results.append(result)
            yield None

    def _read_one(
        self, fetch: Fetch, read: QueueRead, left: int, *, may_wait: bool
    ) -> ReadResult | BrokerError:
        """Read a queue: at least one message of the first non-empty queue, regardless of limits (KIP-74)."""
        is_first = left == fetch.bytes_max
        try:
            self._requirements.queue_to_read(read.topic, read.queue_id, "")
        except BrokerError as refused:
            return refused
        bytes_max = min(read.bytes_max, left)
        if bytes_max <= 0 and not is_first:
            return self._ends(read)
        offset = read.offset
        for _ in range(1 + GAPS_MAX):  # The reader cannot be sent beyond a gap.
            result = self._store.read(
                read.topic, read.queue_id, offset, COUNT_MAX, max(bytes_max, 1),
                may_wait=may_wait, as_stored=fetch.as_stored,
            )  # fmt: skip
            offset = result.next_offset
            if result.status not in _GAP or not read.offset < offset < result.max_offset:
                break
        if result.size > bytes_max and not is_first:
            return self._ends(read)  # The message exceeds the remaining bytes.
        return result

    def _ends(self, read: QueueRead) -> ReadResult:
        """Return an empty result with the queue's first offset and end."""
        store = self._store
        ends = store.min_offset(read.topic, read.queue_id), store.max_offset(read.topic, read.queue_id)
        return ReadResult(ReadStatus.NO_MATCHED_MESSAGE, read.offset, *ends)

    def _hold(self, fetch: Fetch, until_ms: MonotonicMs, now_ms: MonotonicMs, *, has_some: bool) -> bool:
        """Park a fetch; return whether there was room.

        A fetch that was read in steps waits for no queue, because arrivals between the steps would not wake
        it.
        """
        connection = fetch.waiter.connection
        if not connection.is_open or not self._purgatory.has_room(connection):
            return False
        fetch.warmings, count = 0, len(fetch.reads)
        if has_some or count > READS_AT_ONCE_MAX:
            held = _Held(connection, fetch, until_ms, set())
            again_ms = min(until_ms, now_ms + max(PACE_MS, count // READS_PER_MS))
            self._parked[held] = None
            self._purgatory.park(held, again_ms, self._run_again, self._forget)
            return True
        held = _Held(connection, fetch, until_ms, {(read.topic, read.queue_id) for read in fetch.reads})
        for key in held.queues:
            self._held.setdefault(key, {})[held] = None
        self._parked[held] = None
        self._purgatory.park(held, until_ms, self._run_again, self._forget)
        return True


#: Nothing can be read at the offset, but messages may follow.
_GAP: Final = frozenset({
    ReadStatus.NO_MATCHED_MESSAGE, ReadStatus.MESSAGE_WAS_REMOVING, ReadStatus.OFFSET_FOUND_NULL,
})  # fmt: skip
_OUT_OF_RANGE: Final = frozenset({ReadStatus.OFFSET_OVERFLOW_BADLY, ReadStatus.OFFSET_TOO_SMALL})
#: The queue is empty, so that offset 0 is its end.
_EMPTY: Final = frozenset({ReadStatus.NO_MATCHED_LOGIC_QUEUE, ReadStatus.NO_MESSAGE_IN_QUEUE})


def is_out_of_range(offset: int, result: ReadResult) -> bool:
    """Return whether an offset is outside its queue."""
    return result.status in _OUT_OF_RANGE or (offset != 0 and result.status in _EMPTY)


def _must_answer(read: QueueRead, result: ReadResult | BrokerError) -> bool:
    return isinstance(result, BrokerError) or is_out_of_range(read.offset, result)
