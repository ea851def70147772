"""Handshakes: how many TLS handshakes may be unfinished, for how long, and which is next.

    first byte ─► waits for its turn, a few a round ─► begun ─► established, or given up

A handshake's signature takes the loop's time from all other connections, so a thousand clients that reconnect
at once take turns, newest first: behind 3,000 handshakes that never finish, a new client waited 5 s, and
clients give up after 3 s. A begun handshake takes memory, so one over the limit ends the oldest. An honest
handshake takes a few round trips and is among the newest, so stalled ones do not delay it.
Upstream: Netty's SslHandler limits only the time.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final, Protocol

from libramq.clock import MonotonicMs

#: Netty's SslHandler.handshakeTimeoutMillis.
HANDSHAKE_MS_MAX: Final = 10_000
#: Ours: 45 MiB of OpenSSL's memory, and more than arrive while a client's packets cross a continent.
HANDSHAKES_MAX: Final = 1_000
#: Ours: four with a 2,048-bit RSA key take 1.7 ms; a connection's turn has 2 ms (`TURN_US_MAX`).
BEGUN_PER_ROUND: Final = 4


class HandshakingConnection(Protocol):
    """A connection whose handshake is not finished."""

    def abort(self, reason: str) -> None:
        """End the connection at once."""
        ...


class Handshakes:
    """A server's unfinished handshakes, oldest first."""

    def __init__(self, monotonic_ms: Callable[[], MonotonicMs]) -> None:
        self._monotonic_ms = monotonic_ms
        self._waiting: deque[tuple[MonotonicMs, Callable[[], None], Callable[[], None]]] = deque()
        self._is_scheduled = False
        self._begun: dict[HandshakingConnection, MonotonicMs] = {}
        self._check: asyncio.TimerHandle | None = None

    def __len__(self) -> int:
        """Return the number of begun handshakes."""
        return len(self._begun)

    def wait(self, begin: Callable[[], None], give_up: Callable[[], None]) -> None:
        """Call `begin` when it is the connection's turn, or `give_up` when it has waited too long."""
        self._waiting.append((self._monotonic_ms(), begin, give_up))
        self._next_soon()

    def begin(self, connection: HandshakingConnection) -> None:
        """Record a handshake that begins; the oldest ends if there are too many."""
        if len(self._begun) >= HANDSHAKES_MAX:
            oldest = next(iter(self._begun))
            self.ended(oldest)
            oldest.abort(f"the oldest of {HANDSHAKES_MAX} unfinished handshakes")
        self._begun[connection] = self._monotonic_ms()
        if self._check is None:
            self._check_later(HANDSHAKE_MS_MAX)

    def ended(self, connection: HandshakingConnection) -> None:
        """Forget a handshake that is finished, or whose connection has ended."""
        self._begun.pop(connection, None)

    def give_up_all(self) -> None:
        """End all connections whose handshake has begun; the listener ends the waiting ones."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        for connection in list(self._begun):
            self.ended(connection)
            connection.abort("the server stops")

    def _next_soon(self) -> None:
        if self._waiting and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._next_round)

    def _next_round(self) -> None:
        self._is_scheduled = False
        late_ms = self._monotonic_ms() - HANDSHAKE_MS_MAX
        while self._waiting and self._waiting[0][0] <= late_ms:
            _, _, give_up = self._waiting.popleft()
            give_up()
        for _ in range(min(BEGUN_PER_ROUND, len(self._waiting))):
            _, begin, _ = self._waiting.pop()
            begin()
        self._next_soon()

    def _check_later(self, delay_ms: int) -> None:
        self._check = asyncio.get_running_loop().call_later(delay_ms / 1000, self._end_late)

    def _end_late(self) -> None:
        self._check = None
        now_ms = self._monotonic_ms()
        for connection, since_ms in list(self._begun.items()):
            late_ms = now_ms - since_ms
            if late_ms < HANDSHAKE_MS_MAX:
                self._check_later(HANDSHAKE_MS_MAX - late_ms)
                return
            self.ended(connection)
            connection.abort(f"its handshake takes longer than {HANDSHAKE_MS_MAX} ms")
