"""The listener: a server's listening sockets, how many connections are accepted in a round, and what happens
when no descriptors are left.

    accept, admission, [first byte], [a turn for its TLS handshake], protocol

asyncio's own server has to choose between TLS and plain before a byte has arrived. A listener with `tls`
peeks at the first byte, which tells all protocols apart: the length of a frame begins with 0 or 1 (RocketMQ's
has 16 MiB at most), a TLS handshake with 22, HTTP/2 with "P". The protocol gets the TLS context and performs
the handshake.
Upstream: remoting/netty/NettyRemotingServer.java, HandshakeHandler.
"""

import asyncio
import contextlib
import errno
import os
import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Final

from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, LibraError, ProtocolError
from libramq.logs import BoundedLog, get_logger
from libramq.transport.admission import Admission, Limit, Place, for_connections
from libramq.transport.handshakes import Handshakes
from libramq.transport.tls import TlsByFirstByte

if TYPE_CHECKING:
    import ssl

log = get_logger(__name__)

#: NettyServerConfig.serverSocketBacklog.
BACKLOG: Final = 1024
#: Ours: this many connections are accepted between two polls of the other sockets.
ACCEPTS_PER_ROUND: Final = 64
#: Ours, as asyncio's ACCEPT_RETRY_DELAY: the pause after the operating system ran short while accepting.
ACCEPT_RETRY_S: Final = 1.0
#: Errors for lack of descriptors or memory, reported even if no client connects. Other errors concern a
#: single connection (accept(2)).
SHORTAGES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})


class Listener:
    """Accepts connections on all of a host's addresses, within the limits of an admission.

    protocol: makes the protocol of a connection from its place and, if it begins a TLS handshake, the
    context; the protocol reports the connection's end to the admission.
    tls: without it every connection is plain, and its protocol is made at once.
    """

    def __init__(
        self,
        admission: Admission,
        protocol: "Callable[[Place, ssl.SSLContext | None], asyncio.BaseProtocol]",
        monotonic_ms: Callable[[], MonotonicMs],
        handshakes: Handshakes,
        tls: TlsByFirstByte | None = None,
    ) -> None:
        self._admission = admission
        self._protocol = protocol
        self._monotonic_ms = monotonic_ms
        self._tls = tls
        self._handshakes = handshakes
        #: Connections waiting for their turn to begin a handshake.
        self._waiting: dict[socket.socket, Place] = {}
        self._listening: list[socket.socket] = []
        #: Released to refuse a connection when no descriptor is left.
        self._spare_descriptor: int | None = None
        self._retry: asyncio.TimerHandle | None = None
        #: Connections without a first byte, with the time at which each was accepted.
        self._silent: dict[socket.socket, tuple[MonotonicMs, Place]] = {}
        self._log = BoundedLog(log.info, monotonic_ms)
        self._connecting: dict[asyncio.Task[None], socket.socket] = {}

    async def listen(self, host: str, port: int) -> int:
        """Accept connections; return the port (for 0 the one that the system chose).

        Raises ConfigError if the address is in use or not this machine's.
        """
        loop = asyncio.get_running_loop()
        try:
            found = await loop.getaddrinfo(
                host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
            )
            for family, address in dict.fromkeys((each[0], each[4]) for each in found):
                self._open(family, address)
            if not self._listening:
                raise OSError(errno.EAFNOSUPPORT, os.strerror(errno.EAFNOSUPPORT))
        except OSError as error:
            await self.close()
            raise _listen_error(host, port, error) from None
        self._accept_again()
        return int(self._listening[0].getsockname()[1])

    def _open(self, family: int, address: Any) -> None:
        try:
            listening = socket.create_server(address, family=family, backlog=BACKLOG)
        except OSError as error:
            if error.errno == errno.EAFNOSUPPORT:  # "localhost" may include ::1 on a kernel without IPv6.
                return
            raise
        # Accepted sockets inherit this; asyncio sets it only for sockets that name their protocol.
        listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        listening.setblocking(False)
        self._listening.append(listening)

    def _accept_again(self) -> None:
        self._retry = None
        self._keep_spare()
        for each in self._listening:
            asyncio.get_running_loop().add_reader(each, self._accept, each)

    def _accept(self, listening: socket.socket) -> None:
        try:
            for accepted, peer in _accepted(listening):
                place = self._admission.admit(_text(peer), accepted.fileno())
                if place is not None:
                    self._admitted(accepted, place)
                else:
                    accepted.close()
        except OSError:
            self._refuse_waiting(listening)

    def _refuse_waiting(self, listening: socket.socket) -> None:
        """Close connections that get no descriptor, using the spare one, as libuv does; else pause.

        Otherwise they would be reported in every round of the loop, and their clients would wait for ever.
        """
        self._release_spare()
        try:
            for refused, peer in _accepted(listening):
                refused.close()
                self._admission.refuse(_text(peer), for_connections())
        except OSError:
            if self._retry is None:
                self._pause()
        self._keep_spare()

    def _pause(self) -> None:
        self._admission.refuse("", for_connections())
        loop = asyncio.get_running_loop()
        for each in self._listening:
            loop.remove_reader(each)
        self._retry = loop.call_later(ACCEPT_RETRY_S, self._accept_again)

    def _keep_spare(self) -> None:
        if self._spare_descriptor is None:
            with contextlib.suppress(OSError):
                self._spare_descriptor = os.open(os.devnull, os.O_RDONLY)

    def _release_spare(self) -> None:
        if self._spare_descriptor is not None:
            os.close(self._spare_descriptor)
            self._spare_descriptor = None

    def _admitted(self, accepted: socket.socket, place: Place) -> None:
        accepted.setblocking(False)
        if self._tls is None:
            self._connect(accepted, place)
        else:
            self._silent[accepted] = self._monotonic_ms(), place
            place.end = lambda _: self._give_up(accepted)
            asyncio.get_running_loop().add_reader(accepted, self._look, accepted, place)

    def _look(self, accepted: socket.socket, place: Place) -> None:
        try:
            first = accepted.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return
        except OSError:
            first = b""
        if not first:
            self._give_up(accepted)
            return
        self._forget_silent(accepted)
        assert self._tls is not None
        try:
            context = self._tls(first[0])
        except ProtocolError as error:
            self._log("a connection is refused", peer=place.address, reason=str(error))
            self._end(accepted, place)
            return
        if context is None:
            self._connect(accepted, place)
        else:
            self._waiting[accepted] = place
            place.end = lambda _: self._abandon(accepted)
            self._handshakes.wait(lambda: self._begin(accepted, context), lambda: self._abandon(accepted))

    def _begin(self, accepted: socket.socket, context: "ssl.SSLContext") -> None:
        place = self._waiting.pop(accepted, None)
        if place is not None:  # Otherwise it was given up, or the listener has closed.
            self._connect(accepted, place, context)

    def _abandon(self, accepted: socket.socket) -> None:
        place = self._waiting.pop(accepted, None)
        if place is not None:
            self._end(accepted, place)

    def _connect(
        self, accepted: socket.socket, place: Place, context: "ssl.SSLContext | None" = None
    ) -> None:
        place.end = None
        task = asyncio.get_running_loop().create_task(self._make(accepted, place, context))
        self._connecting[task] = accepted
        task.add_done_callback(self._connecting.pop)

    async def _make(self, accepted: socket.socket, place: Place, context: "ssl.SSLContext | None") -> None:
        try:
            await asyncio.get_running_loop().connect_accepted_socket(
                lambda: self._protocol(place, context), accepted
            )
        except Exception as error:  # A loop may raise anything for a connection that has ended.
            reason = str(error) or type(error).__name__
            self._log("a connection could not be made", peer=place.address, reason=reason)
            self._end(accepted, place)

    def _end(self, accepted: socket.socket, place: Place) -> None:
        accepted.close()
        self._admission.ended(place)

    def _forget_silent(self, accepted: socket.socket) -> None:
        asyncio.get_running_loop().remove_reader(accepted)
        del self._silent[accepted]

    def _give_up(self, accepted: socket.socket) -> None:
        _, place = self._silent[accepted]
        self._forget_silent(accepted)
        self._end(accepted, place)

    def close_silent(self, before_ms: MonotonicMs) -> None:
        """Close connections accepted before a time that have sent no first byte."""
        for accepted, (since_ms, _) in list(self._silent.items()):
            if since_ms >= before_ms:
                break  # The oldest come first.
            self._admission.census.refused[Limit.FIRST_BYTE] += 1
            self._give_up(accepted)

    async def close(self) -> None:
        """Stop listening; on return, connections in progress have been established or refused."""
        if self._retry is not None:
            self._retry.cancel()
        for listening in self._listening:
            asyncio.get_running_loop().remove_reader(listening)
            listening.close()
        self._listening.clear()
        self._release_spare()
        for accepted in list(self._silent):
            self._give_up(accepted)
        while self._waiting:
            self._end(*self._waiting.popitem())
        await asyncio.gather(*self._connecting)


def _accepted(listening: socket.socket) -> Iterator[tuple[socket.socket, Any]]:
    """Accept pending connections and yield each with its peer; raises OSError for a shortage."""
    for _ in range(ACCEPTS_PER_ROUND):
        try:
            yield listening.accept()
        except BlockingIOError:
            return
        except OSError as error:
            if error.errno in SHORTAGES:
                raise


def _text(peer: tuple[Any, ...]) -> str:
    return f"{peer[0]}:{peer[1]}" if peer else ""


def _listen_error(host: str, port: int, error: OSError) -> LibraError:
    if error.errno == errno.EADDRINUSE:
        return ConfigError(f"port {port} on {host} is taken; stop what listens there or choose another port")
    if error.errno in (errno.EADDRNOTAVAIL, errno.EACCES):
        return ConfigError(
            f"cannot listen on {host}:{port}: {os.strerror(error.errno)}; choose another address or port"
        )
    return ConfigError(f"cannot listen on {host}:{port}: {error}")
