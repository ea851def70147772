"""Outgoing connections over an event loop's sockets, with TLS if configured. A connection established after
its attempt was abandoned is closed; use from another loop or after a fork is refused.
"""

import asyncio
import contextlib
import os
import weakref
from collections.abc import AsyncIterator, Callable
from typing import Any, Final, cast

from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, InvalidState, RemoteError
from libramq.remoting.command import Command
from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.seams import Dialed, Filled
from libramq.transport.access import CONNECT_TIMEOUT_MS, OPEN, REQUEST_TIMEOUT_MS, Access
from libramq.transport.address import split_address
from libramq.transport.remotes import OnConnectionLost, OnRequest, Remotes
from libramq.transport.tls import SHUTDOWN_TIMEOUT_S, Tls, handshake_failure

#: The error raised by a client in a forked child.
FORKED: Final = (
    "this client was started before the process forked: its threads and connections are the parent's; make a "
    "new one in the child"
)
#: Ours: the extra time in which a late loop polls its sockets once.
LATE_MS: Final = 100


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def other_loop(client: str) -> str:
    """Return the error message for a client used on an event loop other than its own."""
    return f"this {client} was started on another event loop; make one for each loop, or use libramq.sync"


def _ignore(_: bytes) -> None:
    """Send nothing: the connection has ended."""


class _Link(asyncio.BaseProtocol):
    """One outgoing connection."""

    def __init__(self, dialer: "SocketDialer", dialed: Dialed) -> None:
        self._dialer = dialer
        self._dialed = dialed
        self._transport: asyncio.Transport | None = None
        #: Sends bytes: the transport's own method, which saves a call.
        self.write: Callable[[bytes], None] = _ignore
        #: The time limit of the attempt, while one is under way.
        self._limit: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Limit the time until the connection is made; raises TimeoutError.

        The timer extends the limit by LATE_MS: a loop that was late itself polls its sockets once more first.
        """
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(None) as self._limit:
            over = loop.call_later(CONNECT_TIMEOUT_MS / 1000, self._time_is_over, loop)
            try:
                yield
            finally:
                over.cancel()
                self._limit = None

    def _time_is_over(self, loop: asyncio.AbstractEventLoop) -> None:
        if self._limit is not None and self._transport is None:
            self._limit.reschedule(loop.time() + LATE_MS / 1000)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if self._limit is not None and not self._limit.expired():
            self._limit.reschedule(None)
        # uvloop's transport is not a subclass, but behaves like one.
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._dialer.links[self] = asyncio.Event()
        self._dialed.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:  # The attempt was given up.
            return
        self._transport, self.write = None, _ignore
        self._dialer.links.pop(self).set()
        self._dialed.ended("" if exc is None else str(exc))

    def give_up(self) -> None:
        """End a connection that was established just as its attempt was given up.

        uvloop closes such a connection without calling `connection_lost`, and `is_closing` stays False:
        requests would be written to it for ever, and each write would raise RuntimeError.
        """
        self.abort()
        self.connection_lost(None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class _SocketLink(_Link, asyncio.Protocol):
    """A connection whose observer gets the bytes of each read."""

    def data_received(self, data: bytes) -> None:
        self._dialed.received(data)


class _FilledLink(_Link, asyncio.BufferedProtocol):
    """A connection that receives into its observer's buffer."""

    def __init__(self, dialer: "SocketDialer", dialed: Dialed, filled: Filled) -> None:
        super().__init__(dialer, dialed)
        self._filled = filled
        self.buffer_updated = filled.filled  # type: ignore[method-assign]  # Called for each read.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._filled.room


class SocketDialer:
    """Connects on the running event loop. Raises ConfigError for unusable TLS files."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls.renewed() if tls is not None else None
        self._dialing: set[asyncio.Task[None]] = set()
        #: Open connections, each with an event that is set when it has ended.
        self.links: dict[_Link, asyncio.Event] = {}

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect; `dialed` is notified of the result."""
        task = asyncio.get_running_loop().create_task(self._dial(address, dialed))
        self._dialing.add(task)
        task.add_done_callback(self._dialing.discard)

    async def abort_all(self) -> None:
        """End every connection and connection attempt now."""
        for link in list(self.links):
            link.abort()
        await self.wait_closed()

    async def wait_closed(self) -> None:
        """Cancel connection attempts, and wait until closed connections have ended."""
        for task in self._dialing:
            task.cancel()
        await asyncio.sleep(0)
        if self._tls is not None:  # The closing handshake needs an answer.
            await asyncio.gather(*(ended.wait() for ended in self.links.values()))

    async def _dial(self, address: str, dialed: Dialed) -> None:
        link: _Link = _SocketLink(self, dialed)
        if isinstance(dialed, Filled):  # The remotes; other streams are rare.
            link = _FilledLink(self, dialed, dialed)
        was_made = False
        try:
            async with link.time_limit():
                await self._connect(address, link)
            was_made = True
        except TimeoutError:
            dialed.refused(
                ConnectFailed(
                    f"{address} did not accept a connection within {CONNECT_TIMEOUT_MS} ms (does it hang?)"
                )
            )
        except OSError as error:
            reason = None if self._tls is None else handshake_failure(address, error)
            reason = reason or f"cannot connect to {address} (is it running?): {error.strerror or error}"
            dialed.refused(ConnectFailed(reason))
        except Exception as error:  # Resolvers and TLS may raise anything; the caller must get it.
            dialed.refused(ConnectFailed(f"cannot connect to {address}: {error}"))
        finally:
            if not was_made:
                link.give_up()

    async def _connect(self, address: str, link: _Link) -> None:
        host, port = split_address(address)
        secured: dict[str, Any] = {}
        if self._tls is not None:
            secured = {
                "ssl": self._tls.current(),
                "server_hostname": host,
                "ssl_shutdown_timeout": SHUTDOWN_TIMEOUT_S,
            }
        await asyncio.get_running_loop().create_connection(lambda: link, host, port, **secured)


class AsyncioRemotes(Remotes):
    """Connections to other processes, over sockets, on one event loop.

    access: credentials and TLS; raises ConfigError for unusable files.
    """

    def __init__(
        self,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        on_request: OnRequest | None = None,
        lost: OnConnectionLost | None = None,
        access: Access = OPEN,
    ) -> None:
        self._sockets = SocketDialer(access.tls)
        #: Whether this object was made in the parent process, before a fork.
        self.is_parents = False
        self._loop = running_loop()
        _made.add(self)
        super().__init__(
            self._sockets,
            LoopTimers(),
            monotonic_ms,
            on_request=on_request,
            lost=lost,
            access=access,
        )

    def require_loop(self, client: str) -> None:
        """Raise LocalProtocolError where no answer could arrive: on another loop or in a forked child."""
        if self.is_parents:
            raise InvalidState(FORKED)
        if running_loop() is not self._loop:
            raise InvalidState(other_loop(client))

    async def call(self, address: str, request: Command, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Make a request and wait for its reply; raises RemoteError."""
        future: asyncio.Future[Command] = asyncio.get_running_loop().create_future()

        def done(outcome: Command | RemoteError) -> None:
            if future.done():
                return
            if isinstance(outcome, Command):
                future.set_result(outcome)
            else:
                future.set_exception(outcome)

        self.send(address, request, done, timeout_ms=timeout_ms)
        return await future

    async def aclose(self) -> None:
        """Close every connection; requests in flight fail with ConnectionLost. No-op in a forked child."""
        if not self.is_parents:
            self.close()
            await self._sockets.wait_closed()


_made: Final[weakref.WeakSet[AsyncioRemotes]] = weakref.WeakSet()
#: The parent's remotes are kept untouched: closing or deregistering a socket may stop the parent's reads.
_parents: Final[list[AsyncioRemotes]] = []


def _forked() -> None:
    """Make every request of the child fail: the answer would arrive on the parent's connection."""
    for remotes in list(_made):
        remotes.is_parents = True
        remotes.refuse_all(FORKED)
        _parents.append(remotes)


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
