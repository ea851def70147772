"""The HA service of a master: accepts slaves, chooses where each begins in the log, sends them the log (under
SYNC_FLUSH only the flushed part), and drops silent ones.

    report ─► [proof] ─► accepted? ─► where to begin ─► blocks, while the log has more and the slave has room

Under SYNC_FLUSH slaves get only data on the master's disk. Otherwise a power cut at the master could lose
messages that members have read at its slave; they would continue after these and skip the messages stored in
their place.

An empty slave begins at the log's newest file, as with Apache's master; it gets no older files. A thread
reads ahead bytes that are not in the page cache, so that a slave far behind delays nothing.
Upstream: store/ha/DefaultHAService.java, DefaultHAConnection.java.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from libramq.clock import MonotonicMs
from libramq.kernel.connection import Connection
from libramq.kernel.effect import Thread
from libramq.kernel.parts import Kernel, Phase
from libramq.logs import get_logger
from libramq.replication.blocks import BLOCK_BYTES, encode_block
from libramq.replication.ha_connection import HAConnection
from libramq.replication.slave_proof import SlaveProofs
from libramq.secret_bits import SYSTEM_SECRETS
from libramq.store.config import FlushDiskType
from libramq.store.log.segments import FileRange
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: MessageStoreConfig.haSendHeartbeatInterval.
HEARTBEAT_MS: Final = 5_000
#: MessageStoreConfig.haHousekeepingInterval. Ours: a slave that reports but makes no progress for this long
#: (its disk may be full) is dropped as well, because readers would wait for it.
SILENT_MS_MAX: Final = 20_000
#: Ours: slaves of one master; each additional one costs another copy of every byte.
SLAVES_MAX: Final = 16
#: Ours: one turn sends at most this much to a slave, then others have their turn.
TURN_BYTES_MAX: Final = 1024 * 1024


class HAService:
    """Sends the commit log to slaves; a `kernel.engine.Translator` whose requests are their reports.

    is_allowed: returns whether a slave may connect from an address. secrets: those of the cluster's brokers,
    if slaves must prove that they know one. acknowledged: called with all slaves when one has progressed,
    connected or left.
    """

    def __init__(
        self,
        store: MessageStore,
        kernel: Kernel,
        *,
        is_allowed: Callable[[str], bool],
        secrets: tuple[bytes, ...] = (),
        acknowledged: Callable[[Sequence[HAConnection]], None],
    ) -> None:
        self._store = store
        self._clock = kernel.clock
        self._effects = kernel.effects
        self._deadlines = kernel.deadlines
        self._is_allowed = is_allowed
        self._acknowledged = acknowledged
        self._slaves: dict[Connection, HAConnection] = {}
        self._proofs: SlaveProofs | None = None
        if secrets:
            self._proofs = SlaveProofs(secrets, SYSTEM_SECRETS, kernel, refuse=self._refuse)
        self._soon = partial(kernel.soon, Phase.ARRIVALS, self._send_all)

    def receive(self, connection: Connection, requests: Sequence[int], start: int) -> int:
        """Handle the reports of one read; the last one counts."""
        self._soon()
        now_ms = self._clock.monotonic_ms()
        reported = requests[-1]
        slave = self._slaves.get(connection)
        if slave is None:
            begin: int | None = reported
            if self._proofs is not None:
                begin = self._proofs.report_of(connection, reported, now_ms)
            if begin is not None:
                self._accept(connection, begin, now_ms)
        elif slave.report(reported, now_ms, self._store.end):
            self._acknowledged(self.slaves())
        else:
            sent = f"was sent the log from {slave.acknowledged} to {slave.sent}"
            self._refuse(connection, f"it reports {reported}, and {sent}")
        return len(requests)

    def connection_ended(self, connection: Connection) -> None:
        """Forget a slave whose connection ended."""
        slave = self._forget(connection)
        if slave is not None:
            log.warning("a slave is gone", slave=connection.address, has=slave.acknowledged)

    def _send_all(self) -> None:
        """Send new bytes of the log, now and after each change."""
        if self._slaves:
            self._store.when_changed(self._send_all)
            end = self._end
            for slave in list(self._slaves.values()):
                if slave.sent < end and not slave.is_warming:
                    self._send(slave, end)

    def stalled(self, stall_ms: int) -> None:
        """Extend the slaves' deadlines by the time that this process was stalled."""
        for slave in self._slaves.values():
            slave.stalled(stall_ms)

    def slaves(self) -> list[HAConnection]:
        """Return the connected slaves."""
        return list(self._slaves.values())

    @property
    def _end(self) -> int:
        """Return the end of the log that slaves may get."""
        is_sync = self._store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        return self._store.flushed_offset if is_sync else self._store.end

    def _accept(self, connection: Connection, reported: int, now_ms: MonotonicMs) -> None:
        store = self._store
        if not self._is_allowed(connection.address):
            self._refuse(connection, "its address is not among haAllowedAddresses")
            return
        if len(self._slaves) >= SLAVES_MAX:
            self._refuse(connection, f"{SLAVES_MAX} slaves are connected; a master has no more")
            return
        first, end = store.log_start, store.end
        if reported and not first <= reported <= end:
            reason = f"it has the log up to {reported}, and this master has it from {first} to {end}"
            self._refuse(connection, f"{reason}: remove its files, and it starts again")
            return
        begin = reported or store.log_file_start(end)
        look = self._deadlines.new(partial(self._look, connection))
        # An empty slave never gets the older files.
        slave = HAConnection(connection, begin, now_ms, look, first=0 if reported else begin, log_end=end)
        slave.look.at(now_ms + HEARTBEAT_MS)
        connection.is_authenticated = True
        self._slaves[connection] = slave
        self._acknowledged(self.slaves())
        log.info("a slave is connected", slave=connection.address, begins_at=begin, log_end=end)

    def _refuse(self, connection: Connection, reason: str) -> None:
        log.warning("a slave is refused", slave=connection.address, reason=reason)
        self._effects.close(connection, reason)
        self._forget(connection)

    def _forget(self, connection: Connection) -> HAConnection | None:
        if self._proofs is not None:
            self._proofs.forget(connection)
        slave = self._slaves.pop(connection, None)
        if slave is not None:
            slave.look.cancel()
            self._acknowledged(self.slaves())
        return slave

    def _send(self, slave: HAConnection, end: int) -> None:
        store, effects = self._store, self._effects
        budget = min(slave.room, TURN_BYTES_MAX)
        while slave.sent < end and budget > 0:
            offset = slave.sent
            size = min(BLOCK_BYTES, end - offset, store.log_file_end(offset) - offset)
            try:
                data = store.read_log(offset, size, may_wait=slave.is_warm)
            except OSError as error:
                self._refuse(slave.connection, f"the log cannot be read at {offset}: {error}")
                return
            if isinstance(data, FileRange):
                self._warm(slave, data)
                return
            slave.is_warm = False
            if data is None:
                self._refuse(slave.connection, f"the log does not reach back to {offset} any more")
                return
            effects.send(slave.connection, encode_block(offset, data))
            slave.note_sent(size, self._clock.monotonic_ms())
            budget -= size

    def _warm(self, slave: HAConnection, stretch: FileRange) -> None:
        """Read the next bytes in a thread, a megabyte at once; `_send_all` continues afterwards."""
        room = self._store.log_file_end(slave.sent) - slave.sent
        ahead = stretch._replace(size=min(TURN_BYTES_MAX, room))
        slave.is_warming = True

        def warmed(_: object) -> None:
            slave.is_warming, slave.is_warm = False, True
            self._soon()

        self._effects.run(Thread.READ, partial(self._store.warm, (ahead,)), warmed)

    def _look(self, connection: Connection, now_ms: MonotonicMs) -> None:
        """Send a heartbeat if nothing was sent recently, and drop a slave that makes no progress."""
        slave = self._slaves.get(connection)
        if slave is None:
            return
        if now_ms - slave.progressed_ms > SILENT_MS_MAX:
            self._refuse(connection, f"it was silent, or got no further, for {SILENT_MS_MAX} ms")
            return
        self._acknowledged(self.slaves())  # It may be out of sync by the passage of time.
        if now_ms - slave.sent_ms >= HEARTBEAT_MS:
            self._effects.send(connection, encode_block(slave.sent, b""))
            slave.sent_ms = now_ms
        slave.look.at(slave.sent_ms + HEARTBEAT_MS)
