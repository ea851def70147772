"""The TLS channel: the encryption of one accepted connection without its socket: handshake, records, and the
names in a client's certificate.

    what a read brought ── receive ──► a client's bytes        to_send: answers of the handshake, alerts
    a server's bytes ── encrypt ──► what is written

A connection reads and writes the encrypted bytes itself, as it would plain ones. So the same code takes
turns, slices large writes and counts what a client leaves unread; asyncio's TLS transport does not count what
waits in the one below it, and keeps 256 KiB for each connection.
Upstream: Netty's SslHandler.
"""

import contextlib
import ssl
from typing import Any, Final

from libramq.errors import RemoteProtocolError

#: RFC 8446, 5.1: what a record holds at most.
RECORD_BYTES_MAX: Final = 16 * 1024


#: The kinds of names that can be a user's, as Python's ssl calls them; of others it shows a placeholder.
NAME_KINDS: Final = ("DNS", "email", "URI", "IP Address")


class TlsChannel:
    """The server's side of a TLS connection."""

    __slots__ = ("_incoming", "_object", "_outgoing", "is_ended", "is_established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        #: Whether the handshake is finished.
        self.is_established = False
        #: Whether the client has ended its side.
        self.is_ended = False

    def receive(self, data: bytes) -> bytes:
        """Take the bytes that arrived; return what they encrypt. There may be something `to_send`.

        Raises RemoteProtocolError for what is no TLS, and for a certificate that is not accepted.
        """
        self._incoming.write(data)
        try:
            if not self.is_established:
                self._object.do_handshake()
                self.is_established = True
            return self._read()
        except ssl.SSLWantReadError:
            return b""
        except ssl.SSLError as error:
            raise RemoteProtocolError(self._failure(error)) from None

    def to_send(self) -> bytes:
        """Return what TLS itself has to send."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Return the bytes to write in order to send these."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]  # A record at a time.
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the bytes that end our side."""
        with contextlib.suppress(ssl.SSLError):  # It wants the other end's, or there was no handshake.
            self._object.unwrap()
        return self.to_send()

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the names in the client's certificate (subjectAltName); none if it has shown none."""
        certificate: dict[str, Any] = self._object.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        return tuple(value for kind, value in names if kind in NAME_KINDS and isinstance(value, str))

    def _read(self) -> bytes:
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while data := self._object.read(RECORD_BYTES_MAX):
                pieces.append(data)
                # Of a record whose rest has not come, OpenSSL has taken the beginning.
                if not self._incoming.pending and not self._object.pending():
                    break
            else:
                self.is_ended = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _failure(self, error: ssl.SSLError) -> str:
        reason = (error.reason or str(error)).lower().replace("_", " ")
        if isinstance(error, ssl.SSLCertVerificationError):
            reason = f"the client's certificate is not accepted: {error.verify_message}"
        return f"TLS: {reason}" if self.is_established else f"no TLS handshake: {reason}"
