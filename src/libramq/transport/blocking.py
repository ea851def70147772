"""The blocking shell of one outgoing connection, for synchronous code such as Spark's readers.

It is not thread-safe; each thread makes its own. Requests can be pipelined: `start` writes, `finish` waits.
"""

import socket
from collections.abc import Callable

from libramq.clock import MonotonicMs
from libramq.errors import ConnectFailed, ConnectionLost, ProtocolError, RequestTimeout
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameFiller, PendingRequests
from libramq.remoting.credentials import sign
from libramq.remoting.frame import encode_frame
from libramq.transport.access import CONNECT_TIMEOUT_MS, OPEN, REQUEST_TIMEOUT_MS, Access
from libramq.transport.address import split_address
from libramq.transport.tls import handshake_failure


class BlockingRemote:
    """One connection to one address. Raises ConnectFailed, and ConfigError for unusable files of `access`."""

    def __init__(
        self,
        address: str,
        monotonic_ms: Callable[[], MonotonicMs],
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
        access: Access = OPEN,
    ) -> None:
        self.address = address
        self._monotonic_ms = monotonic_ms
        self._access = access
        self._is_silent = True
        self._frames = FrameFiller()
        self._pending: PendingRequests[int] = PendingRequests()
        self._replies: dict[int, Command] = {}
        host, port = split_address(address)
        try:
            self._socket = socket.create_connection((host, port), timeout=connect_timeout_ms / 1000)
        except OSError as error:
            reason = error.strerror or error
            raise ConnectFailed(f"cannot connect to {address} (is it running?): {reason}") from None
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if access.tls is not None:
            try:
                self._socket = access.tls.context().wrap_socket(self._socket, server_hostname=host)
            except OSError as error:
                self._socket.close()
                failure = handshake_failure(address, error)
                raise ConnectFailed(failure or f"no TLS handshake with {address}: {error}") from None
            except BaseException:
                self._socket.close()
                raise

    def start(self, request: Command, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> int:
        """Write a request; return the number to pass to `finish`."""
        self._pending.add(request, request.opaque, deadline_ms=self._monotonic_ms() + timeout_ms)
        self._write(request, timeout_ms)
        return request.opaque

    def send_oneway(self, request: Command, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> None:
        """Write a one-way request, without confirmation."""
        self._pending.number(request)
        self._write(request, timeout_ms)

    def finish(self, opaque: int, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Wait for the reply to a started request."""
        deadline_ms = self._monotonic_ms() + timeout_ms
        while (reply := self._replies.pop(opaque, None)) is None:
            left_ms = deadline_ms - self._monotonic_ms()
            if left_ms <= 0:
                self._pending.discard(opaque)
                raise RequestTimeout.of(self.address, f"within {timeout_ms} ms")
            self._read(left_ms)
        return reply

    def call(self, request: Command, *, timeout_ms: int = REQUEST_TIMEOUT_MS) -> Command:
        """Make a request and wait for its reply."""
        return self.finish(self.start(request, timeout_ms=timeout_ms), timeout_ms=timeout_ms)

    def close(self) -> None:
        """Close the connection."""
        self._socket.close()

    def _write(self, request: Command, timeout_ms: int) -> None:
        try:
            self._socket.settimeout(timeout_ms / 1000)
            if self._access.credentials is not None:
                request = sign(request, self._access.credentials)
            self._socket.sendall(encode_frame(request))
        except OSError as error:
            raise self._lost(str(error)) from None

    def _read(self, timeout_ms: int) -> None:
        try:
            self._socket.settimeout(timeout_ms / 1000)
            count = self._socket.recv_into(self._frames.room)
        except TimeoutError:
            return
        except OSError as error:
            raise self._lost(str(error)) from None
        if not count:
            raise self._lost("the other side closed it")
        self._is_silent = False
        try:
            commands = self._frames.received(count)
        except ProtocolError:
            self.close()
            raise
        for command in commands:
            if command.is_response and self._pending.take(command) is not None:
                self._replies[command.opaque] = command

    def _lost(self, reason: str) -> ConnectionLost:
        return ConnectionLost(self._access.lost(self.address, is_silent=self._is_silent, reason=reason))
