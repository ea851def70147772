"""The store in SQLite: for the processes of one machine, across their restarts."""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

from libramq.client.idempotence.store import KEEP_MS, LEASE_MS, ClaimResult
from libramq.clock import Clock, SystemClock
from libramq.errors import ConfigError, InvalidState

#: Ours: how long to wait for another process's write.
BUSY_SECONDS: Final = 10.0
#: Ours: after this many claims, expired keys are removed.
PRUNE_EVERY: Final = 1_000
#: Ours: how many expired keys are removed at a time.
PRUNE_KEYS: Final = 2_000
#: Ours: how often the wall clock's time is noted. A clock set back by less prolongs leases by as much.
CLOCK_NOTED_MS: Final = 1_000

# A key without an owner is done.
_TABLE: Final = """
    CREATE TABLE IF NOT EXISTS handled (key TEXT PRIMARY KEY, owner TEXT, until_ms INTEGER NOT NULL);
    CREATE INDEX IF NOT EXISTS handled_until ON handled (until_ms);
    CREATE TABLE IF NOT EXISTS clock (id INTEGER PRIMARY KEY, wall_ms INTEGER NOT NULL);
"""
_CLAIM: Final = """
    INSERT INTO handled VALUES (?1, ?2, ?3) ON CONFLICT (key) DO UPDATE
    SET owner = ?2, until_ms = ?3 WHERE until_ms <= ?4
"""
_DONE: Final = """
    INSERT INTO handled VALUES (?1, NULL, ?2) ON CONFLICT (key) DO UPDATE SET owner = NULL, until_ms = ?2
"""
_MOVE: Final = "UPDATE handled SET until_ms = until_ms - ? WHERE owner IS NOT NULL"
_PRUNE: Final = """
    DELETE FROM handled WHERE key IN (SELECT key FROM handled WHERE until_ms <= ? LIMIT ?)
"""


class SqliteStore:
    """Keys in a file shared by processes. Close it after its consumers have stopped.

    Leases end by the wall clock, since processes share them and they outlive processes. If the clock is set
    back, they keep their remaining time; if it is set forward, messages being handled may be handled twice.

    lease_ms: how long the claim of a dead process blocks others; set it longer than a handler takes.
    keep_ms: how long done keys are remembered; set it as long as the brokers keep messages.
    """

    is_blocking = True

    def __init__(
        self,
        path: str | Path,
        *,
        lease_ms: int = LEASE_MS,
        keep_ms: int = KEEP_MS,
        clock: Clock | None = None,
    ) -> None:
        self.lease_ms = lease_ms
        self._keep_ms = keep_ms
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._claims = 0
        self._path = path
        self._process_id: int | None = None
        try:
            self._open()
            self.close()  # Each process opens it for itself: a forked child has no locks of its parent.
        except sqlite3.Error as error:
            raise ConfigError(f"{path} cannot be used as a store of handled messages: {error}") from error

    def _open(self) -> None:
        # Transactions are explicit: BEGIN IMMEDIATE, so that two processes cannot both read first.
        self._database = sqlite3.connect(
            self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
        )
        self._process_id = os.getpid()
        self._database.execute("PRAGMA journal_mode = WAL")
        self._database.execute("PRAGMA synchronous = NORMAL")
        self._database.executescript(_TABLE)

    def close(self) -> None:
        """Close the file. In a forked child, the parent's stays open."""
        if self._process_id == os.getpid():
            with self._lock:
                self._database.close()
                self._process_id = None

    def claim(self, keys: Sequence[str], owner: str) -> list[ClaimResult]:
        """Claim keys for an owner."""
        with self._transaction():
            wall_ms = self._present_ms()
            self._claims += len(keys)
            if self._claims >= PRUNE_EVERY:
                self._claims = 0
                self._database.execute(_PRUNE, (wall_ms, PRUNE_KEYS))
            return [self._claim(key, owner, wall_ms) for key in keys]

    def done(self, keys: Sequence[str], owner: str) -> None:
        """Mark keys as done: the handler has succeeded."""
        until_ms = int(self._clock.wall_ms()) + self._keep_ms
        self._write(_DONE, ((key, until_ms) for key in keys))

    def release(self, keys: Sequence[str], owner: str) -> None:
        """Release keys: the handler has failed."""
        self._write("DELETE FROM handled WHERE key = ? AND owner = ?", ((key, owner) for key in keys))

    def _present_ms(self) -> int:
        """Return the wall clock's time, and move the leases with the clock if that was set back.

        Called within a transaction: each process sees the time that the last one has noted.
        """
        wall_ms = int(self._clock.wall_ms())
        with closing(self._database.execute("SELECT wall_ms FROM clock")) as cursor:
            (noted_ms,) = cursor.fetchone() or (0,)
        if abs(wall_ms - noted_ms) >= CLOCK_NOTED_MS:
            if wall_ms < noted_ms:
                self._database.execute(_MOVE, (noted_ms - wall_ms,))
            self._database.execute("INSERT OR REPLACE INTO clock VALUES (1, ?)", (wall_ms,))
        return wall_ms

    def _claim(self, key: str, owner: str, wall_ms: int) -> ClaimResult:
        row = (key, owner, wall_ms + self.lease_ms, wall_ms)
        if self._database.execute(_CLAIM, row).rowcount == 1:
            return ClaimResult.NEW
        with closing(self._database.execute("SELECT owner FROM handled WHERE key = ?", (key,))) as cursor:
            (holder,) = cursor.fetchone()
        return ClaimResult.DONE if holder is None else ClaimResult.BUSY

    def _write(self, statement: str, rows: Iterable[tuple[str | int, ...]]) -> None:
        with self._transaction():
            self._database.executemany(statement, rows)

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        if self._process_id not in (None, os.getpid()):
            raise InvalidState("this store was used before the process forked; make one in the child")
        with self._lock:
            if self._process_id is None:
                self._open()
            self._database.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                self._database.execute("ROLLBACK")
                raise
            self._database.execute("COMMIT")
