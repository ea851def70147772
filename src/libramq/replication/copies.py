"""The copies: which part of the commit log enough slaves have, and the replies that wait for that.

        slaves' reports ─► the part with inSyncReplicas copies ─► visible to readers, sends are answered

If fewer slaves are in sync than required, readers see what the master itself has, and sends are answered with
SLAVE_NOT_AVAILABLE at once: stored, but not as safe as required. With acting slaves (`refuses`) nothing is
stored then, whoever sends it; services of the broker itself try again. `needed` may require fewer copies of a
few brokers (enableAutoInSyncReplicas).
Upstream: GroupTransferService.java, CommitLog.handleHA, calcNeedAckNums.
"""

from collections import deque
from collections.abc import Callable, Sequence

from libramq.clock import MonotonicMs
from libramq.kernel.gate import Gate, Gated, Missing
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.replication.ha_connection import HAConnection
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Copies:
    """Answers replies that wait for slaves; a `kernel.gate.Gate`.

    needed: returns the required number of copies, including the master's, with so many brokers in sync.
    refuses: whether nothing is stored with fewer. timeout_ms: how long a send waits.
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
        """Record the slaves' progress, and answer the replies that waited for it."""
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
            while self._waiting and not self._waiting[0][1].is_parked:  # Its time was up.
                self._waiting.popleft()
            waiting = _Waiting(parked)
            self._purgatory.park(waiting, self._clock.monotonic_ms() + self._timeout_ms)
            self._waiting.append((physical_offset, waiting))

    def _answer(self, replicated: int, in_sync: Sequence[HAConnection]) -> None:
        """Reply to those who waited for this part of the log, or for what new slaves will never get of it."""
        all_have_from = max(slave.first for slave in in_sync)
        while self._waiting and self._waiting[0][0] <= replicated:
            offset, parked = self._waiting.popleft()
            if not self._purgatory.release(parked):
                continue
            if offset > all_have_from or self._is_copied(offset, in_sync):
                parked.succeed()
            else:
                parked.fail(Missing.SLAVE)

    def _is_copied(self, offset: int, in_sync: Sequence[HAConnection]) -> bool:
        """Return whether enough slaves have the record that ends at an offset."""
        count = sum(slave.first < offset <= slave.acknowledged for slave in in_sync)
        return count >= self._slaves_needed

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
    """Return the slaves, and of several connections from one machine the one that is furthest.

    A slave that returns before its master has noticed that it was gone is not two copies.
    """
    furthest: dict[str, HAConnection] = {}
    for slave in slaves:
        known = furthest.setdefault(slave.machine, slave)
        if slave.acknowledged > known.acknowledged:
            furthest[slave.machine] = slave
    return list(furthest.values())


class _Waiting(Gated):
    """Replies that wait for slaves; at the deadline they report the failure."""

    __slots__ = ("_parked",)

    def __init__(self, parked: Gated) -> None:
        super().__init__(parked.connection, cost_bytes=parked.cost_bytes)
        self._parked = parked

    def succeed(self) -> None:
        """Reply: enough slaves have it."""
        self._parked.succeed()

    def fail(self, missing: Missing = Missing.SLAVE) -> None:
        """Reply: too few slaves have it."""
        self._parked.fail(missing)

    def expire(self, now_ms: MonotonicMs) -> None:
        """Reply: the time is up."""
        self.fail()


class OneAfterTheOther:
    """Two gates in a row; a `kernel.gate.Gate`. Replies that pass the first wait at the second."""

    def __init__(self, first: Gate, second: Gate) -> None:
        self._first = first
        self._second = second

    def wait(self, parked: Gated, physical_offset: int = 0) -> None:
        """Park replies until both gates have opened."""
        self._first.wait(_AtTheFirst(parked, self._second, physical_offset), physical_offset)


class _AtTheFirst(Gated):
    """Replies that wait at the first of two gates."""

    __slots__ = ("_offset", "_parked", "_second")

    def __init__(self, parked: Gated, second: Gate, physical_offset: int) -> None:
        super().__init__(parked.connection, cost_bytes=parked.cost_bytes)
        self._parked = parked
        self._second = second
        self._offset = physical_offset

    def succeed(self) -> None:
        """Continue at the second gate."""
        self._second.wait(self._parked, self._offset)

    def fail(self, missing: Missing = Missing.ANSWER) -> None:
        """Reply: the first gate has failed."""
        self._parked.fail(missing)
