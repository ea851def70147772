"""Outgoing connections over sockets of an event loop, with TLS if configured; what becomes of one that is
made after its attempt was given up; what a client on another loop, or after a fork, is refused.
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

#: The error of a client in the child of a fork.
FORKED: Final = (
    "this client was started before the process forked: its threads and connections are the parent's; make a "
    "new one in the child"
)
#: Ours: time for a loop that was late to look at its sockets once.
LATE_MS: Final = 100


def running_loop() -> asyncio.AbstractEventLoop | None:
    """Return the event loop that runs on this thread, if any."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def other_loop(client: str) -> str:
    """Return the error of a client that is used on another event loop than its own."""
    return f"this {client} was started on another event loop; make one for each loop, or use libramq.sync"


def _ignore(_: bytes) -> None:
    """Send nothing: the connection has ended."""


class _Link(asyncio.BaseProtocol):
    """One outgoing connection."""

    def __init__(self, dialer: "SocketDialer", dialed: Dialed) -> None:
        self._dialer = dialer
        self._dialed = dialed
        self._transport: asyncio.Transport | None = None
        #: Sends bytes; it is the transport's own, without a call between.
        self.write: Callable[[bytes], None] = _ignore
        #: Of the attempt, while it is under way.
        self._limit: asyncio.Timeout | None = None

    @contextlib.asynccontextmanager
    async def time_limit(self) -> AsyncIterator[None]:
        """Limit the time until the connection is made; raises TimeoutError.

        A loop that was late itself looks once more for what has happened meanwhile.
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
        # uvloop's is not a subclass, but behaves like one.
        self._transport = cast(asyncio.Transport, transport)
        self.write = self._transport.write
        self._dialer.links[self] = asyncio.Event()
        self._dialed.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._transport is None:  # It was given up.
            return
        self._transport, self.write = None, _ignore
        self._dialer.links.pop(self).set()
        self._dialed.ended("" if exc is None else str(exc))

    def give_up(self) -> None:
        """End a connection whose attempt was given up in the moment in which it was made.

        uvloop closes it then without a call of `connection_lost`, and its transport does not say that it is
        closing: requests would be written to it for ever, and every write raise RuntimeError.
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
    """A connection that receives into its observer's memory."""

    def __init__(self, dialer: "SocketDialer", dialed: Dialed, filled: Filled) -> None:
        super().__init__(dialer, dialed)
        self._filled = filled
        self.buffer_updated = filled.filled  # type: ignore[method-assign]  # It is called for each read.

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._filled.room


class SocketDialer:
    """Connects on the running event loop. Raises ConfigError for TLS files that cannot be used."""

    def __init__(self, tls: Tls | None = None) -> None:
        self._tls = tls.renewed() if tls is not None else None
        self._dialing: set[asyncio.Task[None]] = set()
        #: Open connections, and the events set when each has ended.
        self.links: dict[_Link, asyncio.Event] = {}

    def dial(self, address: str, dialed: Dialed) -> None:
        """Connect; `dialed` gets the result."""
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
        if self._tls is not None:  # Its closing handshake needs an answer.
            await asyncio.gather(*(ended.wait() for ended in self.links.values()))

    async def _dial(self, address: str, dialed: Dialed) -> None:
        link: _Link = _SocketLink(self, dialed)
        if isinstance(dialed, Filled):  # The remotes; streams of other bytes are few.
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
            reason = reason or f"cannot connect to {address} (does it run there?): {error.strerror or error}"
            dialed.refused(ConnectFailed(reason))
        except Exception as error:  # Whatever resolvers and TLS raise, the waiting caller must get it.
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
        #: Whether it was made before a fork, in the parent process.
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
        """Raise LocalProtocolError where no answer would arrive: on another loop, in a fork's child."""
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
        """Close every connection; requests in flight fail with ConnectionLost. In a forked child: nothing."""
        if not self.is_parents:
            self.close()
            await self._sockets.wait_closed()


_made: Final[weakref.WeakSet[AsyncioRemotes]] = weakref.WeakSet()
#: They are kept as they are: what closes a socket, or forgets it, may end its parent's reading.
_parents: Final[list[AsyncioRemotes]] = []


def _forked() -> None:
    """Have every request of the child fail: its answer, on the parent's connection, would be the parent's."""
    for remotes in list(_made):
        remotes.is_parents = True
        remotes.refuse_all(FORKED)
        _parents.append(remotes)


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)
