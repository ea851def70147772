"""The HA client of a slave: connects to its master, compares the logs, cuts its own and copies (even parts of
large records); retries with increasing pauses, and reports its end to a master that has deleted the data it
lacks.

    IDLE ─► CONNECTING ─► COMPARING ─► COPYING
      ▲          │             │           │
      └──────────┴─────────────┴───────────┘   retry after a second

Where the logs diverge, the slave's is cut to the shared part. The connection is made before the comparison,
so that the process whose log was compared is the one that sends. If the logs share nothing, an operator must
act. The client retries with growing pauses and logs each attempt; the master logs it as well if the slave's
log ends before its own begins.
Upstream: store/ha/DefaultHAClient.java, which compares nothing.
"""

import enum
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from libramq.clock import MonotonicMs
from libramq.errors import ProtocolError, StoreError
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Dial
from libramq.kernel.parts import Kernel
from libramq.logs import get_logger
from libramq.replication.blocks import CHALLENGE_OFFSET, BlockReader, encode_report
from libramq.replication.slave_proof import slave_proof
from libramq.store.config import FlushDiskType
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: Ours: DefaultHAClient waits 5 s.
RETRY_MS: Final = 1_000
#: Ours: the first pause while the logs share nothing; a comparison may read the slave's whole log.
NOTHING_SHARED_MS: Final = 10_000
#: Ours: the longest pause while the logs share nothing.
NOTHING_SHARED_MS_MAX: Final = 60_000
#: Ours: the pause after a master's data was refused twice for the same reason.
REFUSED_AGAIN_MS: Final = 10_000
#: MessageStoreConfig.haSendHeartbeatInterval.
HEARTBEAT_MS: Final = 5_000
#: MessageStoreConfig.haHousekeepingInterval.
SILENT_MS_MAX: Final = 20_000
#: Ours: the pause before a postponed cut is retried.
CUT_AGAIN_MS: Final = 10


class NothingShared(NamedTuple):
    """The logs share nothing. reason: includes the remedy.

    report: the end of the slave's log if it lies before the start of the master's, which refuses and logs it.
    """

    reason: str
    report: int | None = None


#: The result of a comparison: the end of the shared log, or why it is unknown.
Shared = int | str | NothingShared
#: Compares the logs and calls back with the result.
Compare = Callable[[Callable[[Shared], None]], None]


class State(enum.Enum):
    """The states of the client."""

    IDLE = "idle"
    CONNECTING = "connecting"
    COMPARING = "comparing"
    COPYING = "copying"


class HAClient:
    """Follows one master; a `kernel.effect.Stream`.

    compare: finds the end of the shared log; 0 if the slave's is empty. may_cut: returns whether the slave's
    log may be cut at an offset now; called again until it may. was_cut: called after a cut. secret: the
    secret of the cluster's brokers, for a master that requires a proof.
    """

    def __init__(
        self,
        store: MessageStore,
        kernel: Kernel,
        *,
        compare: Compare,
        may_cut: Callable[[int], bool],
        was_cut: Callable[[], None],
        secret: bytes | None = None,
    ) -> None:
        self.state = State.IDLE
        self._store = store
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadlines = kernel.deadlines
        self._compare = compare
        self._may_cut = may_cut
        self._was_cut = was_cut
        self._secret = secret
        self._copyings = 0
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        #: The HA address of the master; None while it is unknown.
        self.address: str | None = None
        self._connection: Connection | None = None
        self._reader = BlockReader()
        self._reported = -1
        self._reported_ms = self._read_ms = kernel.clock.monotonic_ms()
        self._failure = ""
        self._nothing_shared_ms = NOTHING_SHARED_MS
        self._due = kernel.deadlines.new(self._look)

    @property
    def copying(self) -> int | None:
        """Return the number of the current copying, which ends with its connection; None if there is none."""
        return self._copyings if self.state is State.COPYING else None

    def follow(self, address: str) -> None:
        """Copy from the master at this address from now on."""
        if address == self.address:
            return
        log.info("following a master", ha_address=address)
        self.address, self._nothing_shared_ms = address, NOTHING_SHARED_MS
        if self.state is not State.IDLE:
            self._give_up("the master's address has changed")
        self._due.at(self._clock.monotonic_ms())

    # Events of the connection.

    def opened(self, connection: Connection) -> None:
        """Compare the logs."""
        if self.state is not State.CONNECTING or connection.address != self.address:
            self._effects.close(connection, "it is not needed any more")
            return
        self._connection = connection
        self._reader = BlockReader()
        self._read_ms = self._clock.monotonic_ms()
        self.state = State.COMPARING
        self._compare(partial(self._compared, connection))

    def received(self, connection: Connection, data: bytes) -> None:
        """Append the log's bytes."""
        if connection is not self._connection:
            return
        self._read_ms = self._clock.monotonic_ms()
        copy = self._store.copy
        try:
            blocks = self._reader.receive(data)
            if blocks and self.state is not State.COPYING:
                raise ProtocolError("the master sends before this slave has reported its end")
            for block in blocks:
                if block.offset == CHALLENGE_OFFSET:
                    self._prove(connection, block.data)
                elif block.data:
                    copy.append(block.offset, block.data)
        except (ProtocolError, StoreError) as error:
            reason = self._store.failure or str(error)
            self._give_up(reason, again_ms=REFUSED_AGAIN_MS if reason == self._failure else RETRY_MS)
        else:
            if blocks:
                self._failure = ""

    def _prove(self, connection: Connection, challenge: bytes) -> None:
        if self._secret is None:
            raise ProtocolError(
                "the master wants a proof: set the innerClientAuthenticationCredentials of its cluster"
            )
        self._effects.send(connection, encode_report(slave_proof(self._secret, challenge)))

    def ended(self, connection: Connection, reason: str) -> None:
        """Handle the end of the connection."""
        if connection is self._connection:
            self._give_up(f"the connection to the master has ended{f': {reason}' if reason else ''}")

    def refused(self, reason: str) -> None:
        """Handle a failed attempt."""
        if self.state is State.CONNECTING:
            self._give_up(reason)

    def stalled(self, stall_ms: int) -> None:
        """Extend the master's deadline by the time that this process was stalled."""
        self._read_ms = self._read_ms + stall_ms

    # The end of a turn, and time.

    def settle(self) -> None:
        """Report the end of the stored log; under SYNC_FLUSH the end of the flushed log."""
        if self.state is State.COPYING:
            position = self._position()
            if position > self._reported:
                self._report(position)

    def _position(self) -> int:
        store = self._store
        if self._is_sync and store.flushed_offset < store.copy.end:
            return store.flushed_offset
        # Includes a partial record, because a record may be larger than the master's window.
        return store.copy.position

    def _report(self, position: int) -> None:
        assert self._connection is not None
        self._reported, self._reported_ms = position, self._clock.monotonic_ms()
        self._effects.send(self._connection, encode_report(position))

    def _look(self, now_ms: MonotonicMs) -> None:
        """Connect, send a heartbeat, or give up a silent master."""
        match self.state:
            case State.IDLE:
                if self._store.copy.is_refused:
                    self._due.at(self._clock.monotonic_ms() + RETRY_MS)
                elif self.address is not None:
                    self.state = State.CONNECTING
                    self._effects.add(Dial(self.address, self))
            case State.COPYING:
                if now_ms - self._read_ms > SILENT_MS_MAX:
                    self._give_up(f"the master was silent for {SILENT_MS_MAX} ms")
                    return
                if now_ms - self._reported_ms >= HEARTBEAT_MS:
                    self._report(max(self._reported, 0))
                self._due.at(self._reported_ms + HEARTBEAT_MS)

    def _compared(self, connection: Connection, shared: Shared) -> None:
        """Take the result of a comparison, and cut the slave's log if it is longer."""
        if connection is not self._connection or self.state is not State.COMPARING:
            return
        if isinstance(shared, NothingShared):
            if shared.report is not None:
                self._effects.send(connection, encode_report(shared.report))
            again_ms, self._failure = self._nothing_shared_ms, ""
            self._nothing_shared_ms = min(2 * again_ms, NOTHING_SHARED_MS_MAX)
            self._give_up(shared.reason, again_ms=again_ms)
        elif isinstance(shared, str):
            self._give_up(shared)
        elif self._store.copy.is_empty or shared >= self._store.copy.end:
            self._begin_copying()
        elif not self._may_cut(shared):
            again = self._deadlines.new(lambda _: self._compared(connection, shared))
            again.at(self._clock.monotonic_ms() + CUT_AGAIN_MS)
        else:
            try:
                self._store.cut(shared)
            except StoreError as error:
                self._give_up(str(error))
            else:
                self._was_cut()
                self._begin_copying()

    def _begin_copying(self) -> None:
        """Report the end of the slave's log, from which the master sends."""
        copy = self._store.copy
        self.state, self._nothing_shared_ms = State.COPYING, NOTHING_SHARED_MS
        self._copyings += 1
        position = 0 if copy.is_empty else copy.end
        log.info("copying the master's log", master=self.address, begins_at=position)
        self._report(position)
        self._due.at(self._reported_ms + HEARTBEAT_MS)

    def _give_up(self, reason: str, *, again_ms: int = RETRY_MS) -> None:
        """End the connection, and try again a moment later."""
        if reason != self._failure:  # Log an absent master once, not every second.
            log.warning("the master's log cannot be copied; retrying", master=self.address, reason=reason)
        self._failure = reason
        connection, self._connection = self._connection, None
        self.state, self._reported = State.IDLE, -1
        self._store.copy.forget_partial()
        if connection is not None:
            self._effects.close(connection, reason)
        self._due.at(self._clock.monotonic_ms() + again_ms)
