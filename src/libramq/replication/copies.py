"""The copies: tracks the part of the log that enough slaves have (inSyncReplicas; one connection per machine
counts), parks replies that wait for it, and handles too few slaves in sync.

        slaves' reports ─► the part with inSyncReplicas copies ─► visible to readers, sends are answered

If fewer slaves are in sync than required, readers see everything the master has, and sends are answered with
SLAVE_NOT_AVAILABLE at once: stored, but with fewer copies than required. With acting slaves (`refuses`) all
appends are refused in that case; the broker's own services retry. `needed` may require fewer copies if few
brokers are in sync (enableAutoInSyncReplicas).
Upstream: GroupTransferService.java, CommitLog.handleHA, calcNeedAckNums.
"""

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from libramq.kernel.parts import Kernel
from libramq.kernel.purgatory import Gate, Gated, Missing
from libramq.logs import get_logger
from libramq.replication.ha_connection import HAConnection
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Copies:
    """Answers replies that wait for slaves; a `kernel.purgatory.Gate`.

    needed: returns the required number of copies, including the master's, for a number of brokers in sync.
    refuses: whether to refuse appends with fewer. timeout_ms: how long a send waits.
    """

    def __init__(
        self,
        store: MessageStore,
        kernel: Kernel,
        *,
        needed: Callable[[int], int],
        refuses: bool,
        timeout_ms: int,
    ) -> None:
        self._store = store
        self._clock = kernel.clock
        self._purgatory = kernel.purgatory
        self._needed, self._refuses = needed, refuses
        self._slaves_needed = needed(1) - 1
        self._timeout_ms = timeout_ms
        self._replicated: int | None = None
        self._is_enough: bool | None = None
        self._waiting: deque[tuple[int, Gated]] = deque()

    def update(self, slaves: Sequence[HAConnection]) -> None:
        """Record the slaves' progress, and release the replies that waited for it."""
        end, now_ms = self._store.end, self._clock.monotonic_ms()
        in_sync = _one_a_machine([slave for slave in slaves if slave.is_in_sync(end, now_ms)])
        had = sorted((slave.acknowledged for slave in in_sync), reverse=True)
        needed = self._slaves_needed = self._needed(1 + len(had)) - 1
        is_enough = len(had) >= needed
        self._replicated = had[needed - 1] if is_enough and needed else None
        self._log_change(is_enough=is_enough)
        self._store.set_replicated(self._replicated)
        self._store.lacks_replicas = self._refuses and not is_enough
        if self._replicated is not None:
            self._answer(self._replicated, in_sync)

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until enough slaves have the log up to an offset."""
        if not self._slaves_needed:
            parked.succeed()
        elif self._replicated is None:
            self._log_change(is_enough=False)
            parked.fail(Missing.NO_SLAVE)
        elif physical_offset <= self._replicated:
            parked.succeed()
        elif not self._purgatory.has_room(parked.connection, parked.cost_bytes):
            parked.fail(Missing.SLAVE)
        else:
            while self._waiting and not self._waiting[0][1].is_parked:  # It timed out.
                self._waiting.popleft()
            self._purgatory.park(
                parked, self._clock.monotonic_ms() + self._timeout_ms, lambda each: each.fail(Missing.SLAVE)
            )
            self._waiting.append((physical_offset, parked))

    def _answer(self, replicated: int, in_sync: Sequence[HAConnection]) -> None:
        """Release replies that waited for this part of the log or for data that new slaves never get."""
        all_have_from = max(slave.first for slave in in_sync)
        while self._waiting and self._waiting[0][0] <= replicated:
            offset, parked = self._waiting.popleft()
            if not self._purgatory.release(parked):
                continue
            copied = sum(slave.first < offset <= slave.acknowledged for slave in in_sync)
            if offset > all_have_from or copied >= self._slaves_needed:
                parked.succeed()
            else:
                parked.fail(Missing.SLAVE)

    def _log_change(self, *, is_enough: bool) -> None:
        if is_enough == self._is_enough:
            return
        self._is_enough = is_enough
        if is_enough:
            log.info("enough slaves are in sync", needed=self._slaves_needed)
        elif self._refuses:
            log.warning("too few slaves are in sync: nothing is stored", needed=self._slaves_needed)
        else:
            log.warning(
                "too few slaves are in sync: messages are on fewer brokers than inSyncReplicas requires",
                needed=self._slaves_needed,
            )


def _one_a_machine(slaves: Sequence[HAConnection]) -> list[HAConnection]:
    """Return the slaves, but of several connections from one machine only the most advanced one.

    A slave that returns before its master has noticed its absence does not count as two copies.
    """
    furthest: dict[str, HAConnection] = {}
    for slave in slaves:
        known = furthest.setdefault(slave.machine, slave)
        if slave.acknowledged > known.acknowledged:
            furthest[slave.machine] = slave
    return list(furthest.values())


class OneAfterTheOther:
    """Two gates in sequence; a `kernel.purgatory.Gate`. Replies that pass the first wait at the second."""

    def __init__(self, first: Gate, second: Gate) -> None:
        self._first = first
        self._second = second

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until both gates have opened."""
        then = partial(self._second.wait, parked, physical_offset)
        at_first = Gated(parked.connection, then, parked.fail, cost_bytes=parked.cost_bytes)
        self._first.wait(at_first, physical_offset)
