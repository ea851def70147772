"""The TLS of accepted connections: the channel that encrypts one, the detection of TLS by the first byte, and
the server's certificate: when it is reloaded, refused or warned about.

    files ── stat at each handshake ──► changed? ── read, checked ──► the context of later connections
                                                 └─ invalid ────────► logged once; the old context stays

Open connections keep their context. An expired certificate or a wrong key is detected at startup, rather than
by the first client: a handshake is tried in memory.

    encrypted input ── receive ──► plain input         to_send: answers of the handshake, alerts
    plain output ── encrypt ──► encrypted output

A connection reads and writes the encrypted bytes itself, like plain ones. So the same code takes turns,
slices large writes and counts unread bytes. asyncio's TLS transport does not count the bytes buffered in the
transport below it, and keeps 256 KiB for each connection.
Upstream: Netty's SslHandler; TlsHelper.java; its FileWatchService checks twice a second.
"""

import contextlib
import os
import re
import ssl
import stat
import time
from collections.abc import Callable
from typing import Any, Final

from libramq.errors import ConfigError, RemoteProtocolError
from libramq.logs import get_logger
from libramq.transport.tls import Encryption, RenewedContext, reason_of
from libramq.transport.tls_options import TlsOptions

log = get_logger(__name__)

#: RFC 8446, 5.1: a record's content type, in the first byte of a TLS connection.
HANDSHAKE_BYTE: Final = 0x16
_CERTIFICATE: Final = re.compile(rb"-----BEGIN CERTIFICATE-----[A-Za-z0-9+/=\s]+-----END CERTIFICATE-----")
#: X509_V_ERR_CERT_NOT_YET_VALID, X509_V_ERR_CERT_HAS_EXPIRED.
_DATES: Final = {9: "is not valid yet", 10: "has expired"}
#: Ours: 90-day certificates are usually renewed this long before they expire.
EXPIRY_WARNED_S: Final = 30 * 86_400
#: Ours: how often the warning is repeated.
EXPIRY_WARNED_AGAIN_S: Final = 86_400
#: Ours: the authorities of all browsers have 300 KB. Files are read on the loop, during a handshake.
FILE_BYTES_MAX: Final = 1024 * 1024
#: Ours: client and server take two turns each; the third sends the rest.
_TURNS: Final = 3
#: RFC 8446, 5.1: the most bytes of a record.
RECORD_BYTES_MAX: Final = 16 * 1024


#: Kinds of names that can be a user's, as Python's ssl calls them; it shows a placeholder for other kinds.
NAME_KINDS: Final = ("DNS", "email", "URI", "IP Address")


def encryption(options: TlsOptions) -> Encryption:
    """Return the encryption that a server's options describe. Raises ConfigError for unusable files."""
    if options.enable and options.client_cert_path:
        key_path = options.client_key_path or options.client_cert_path
        check_private(f"tls.client.keyPath={key_path}", key_path)
    return Encryption(
        incoming=None if options.mode == "disabled" else ServerTls(options), outgoing=options.outgoing
    )


class ServerTls:
    """Chooses the TLS context of a connection by its first byte. Raises ConfigError for unusable files.

    It warns before the certificate expires, at startup and then at most once a day, when a client connects.
    wall_s: returns the time, in seconds since 1970.
    """

    def __init__(self, options: TlsOptions, wall_s: Callable[[], float] = time.time) -> None:
        self._options = options
        self._wall_s = wall_s
        self._expires_s = 0.0
        self._warn_from_s = 0.0
        self._is_enforcing = options.mode == "enforcing"
        paths = (options.server_cert_path, options.server_key_path, options.server_trust_cert_path)
        files = [path for path in paths if path]
        self._renewed = RenewedContext("tls.server", files, self._load)

    def __call__(self, first: int) -> ssl.SSLContext | None:
        """Return the context of a connection that begins with this byte; None for a plain one.

        Raises RemoteProtocolError if plain connections are not allowed.
        """
        if first == HANDSHAKE_BYTE:
            context = self._renewed.current()
            self._warn_before_expiry()
            return context
        if self._is_enforcing:
            raise RemoteProtocolError("it is not encrypted, and tls.server.mode is enforcing")
        return None

    def _load(self) -> ssl.SSLContext:
        context, self._expires_s = load(self._options)
        self._warn_from_s = self._expires_s - EXPIRY_WARNED_S
        self._warn_before_expiry()
        return context

    def _warn_before_expiry(self) -> None:
        now_s = self._wall_s()
        if now_s < self._warn_from_s:
            return
        self._warn_from_s = now_s + EXPIRY_WARNED_AGAIN_S
        log.warning(
            "the certificate expires soon, have it renewed"
            if now_s < self._expires_s
            else "the certificate has expired, clients refuse it",
            file=self._options.server_cert_path,
            expires=time.strftime("%Y-%m-%d", time.gmtime(self._expires_s)),
            days=int((self._expires_s - now_s) // 86_400),
        )


def load(options: TlsOptions) -> tuple[ssl.SSLContext, float]:
    """Return a server's context for these files, and when its certificate expires (seconds since 1970).

    ConfigError names the unusable file and the remedy.
    """
    certificate = f"tls.server.certPath={options.server_cert_path}"
    chain = _certificates(certificate, options.server_cert_path)
    if options.server_key_path:
        key, key_path = f"tls.server.keyPath={options.server_key_path}", options.server_key_path
    else:
        key, key_path = certificate, options.server_cert_path
    check_private(key, key_path)
    key_text = _read(key, key_path)
    if b"PRIVATE KEY-----" not in key_text:
        raise ConfigError(f"{key} has no private key in PEM; write the file's path into tls.server.keyPath")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
    try:
        # Without a password argument, OpenSSL would prompt on the terminal.
        context.load_cert_chain(options.server_cert_path, key_path, options.server_key_password)
    except ssl.SSLError as error:
        raise ConfigError(_unfit(error, certificate, key, is_encrypted=b"ENCRYPTED" in key_text)) from None
    expires_s = _try_out(context, certificate, chain)
    if options.wants_client_certificates:
        _ask_clients(context, options)
    return context, expires_s


def check_private(what: str, path: str) -> None:
    """Raise ConfigError if others may read a key: PostgreSQL's rule (be-secure-common.c)."""
    try:
        found = os.stat(path)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from None
    others = stat.S_IRWXO | stat.S_IRWXG
    if found.st_uid == 0 != os.geteuid():  # Owned by root, it may be group-readable.
        others = stat.S_IRWXO | stat.S_IWGRP
    if found.st_mode & others:
        raise ConfigError(
            f"{what} can be read by others (mode {stat.S_IMODE(found.st_mode):04o}); chmod 600 it"
        )


def _read(what: str, path: str) -> bytes:
    try:
        if not stat.S_ISREG(os.stat(path).st_mode):  # A pipe would block, a device never end.
            raise ConfigError(f"{what} is not a file")
        with open(path, "rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise ConfigError(f"{what} cannot be read: {error.strerror}") from None
    if len(content) > FILE_BYTES_MAX:
        raise ConfigError(f"{what} has more than {FILE_BYTES_MAX} bytes; is it the right file?")
    return content


def _certificates(what: str, path: str) -> str:
    """Return the certificates of a file, the server's own first."""
    found = _CERTIFICATE.findall(_read(what, path))
    if not found:
        raise ConfigError(f"{what} has no certificate in PEM; convert it (openssl x509 -inform der)")
    return b"\n".join(found).decode("ascii")


def _unfit(error: ssl.SSLError, certificate: str, key: str, *, is_encrypted: bool) -> str:
    reason = reason_of(error)
    if "mismatch" in reason:
        return f"{key} is not the key of {certificate}; name the key with which the certificate was made"
    if is_encrypted:  # Apache's guide uses PBE-SHA1-RC4-128, which OpenSSL 3 cannot read.
        return (
            f"{key} is encrypted, and tls.server.keyPassword is not its password, or OpenSSL does not read "
            "its kind of encryption: openssl pkcs8 -topk8 -v2 aes256 makes another"
        )
    return f"{certificate} and {key} cannot be used together: {reason}"


def _try_out(context: ssl.SSLContext, what: str, chain: str) -> float:
    """Try a handshake in memory; the client checks everything but the name and the authority.

    Return when the certificate expires.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    client.load_verify_locations(cadata=chain.partition("\n-----BEGIN")[0])
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (client.wrap_bio(to_client, to_server), context.wrap_bio(to_server, to_client, server_side=True))
    try:
        for _ in range(_TURNS):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        reason = _DATES.get(error.verify_code, f"is refused by clients ({error.verify_message})")
        raise ConfigError(f"{what}: the certificate {reason}; have it renewed") from None
    except ssl.SSLError as error:
        raise ConfigError(f"{what}: no client could connect ({error.reason}); have it renewed") from None
    found = ends[0].getpeercert()
    assert found is not None, "the client has verified the certificate"
    return ssl.cert_time_to_seconds(str(found["notAfter"]))


def _ask_clients(context: ssl.SSLContext, options: TlsOptions) -> None:
    what = f"tls.server.trustCertPath={options.server_trust_cert_path}"
    try:
        context.load_verify_locations(cadata=_certificates(what, options.server_trust_cert_path))
    except ssl.SSLError as error:
        raise ConfigError(f"{what} has no usable certificate: {error.reason}") from None
    is_optional = options.need_client_auth == "optional"
    context.verify_mode = ssl.CERT_OPTIONAL if is_optional else ssl.CERT_REQUIRED


class TlsChannel:
    """The server's side of a TLS connection."""

    __slots__ = ("_incoming", "_object", "_outgoing", "is_ended", "is_established")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        #: Whether the handshake is finished.
        self.is_established = False
        #: Whether the client has closed its side.
        self.is_ended = False

    def receive(self, data: bytes) -> bytes:
        """Decrypt the bytes that arrived; afterwards there may be bytes `to_send`.

        Raises RemoteProtocolError for bytes that are not TLS, and for a client certificate that is refused.
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
            reason = reason_of(error)
            if isinstance(error, ssl.SSLCertVerificationError):
                reason = f"the client's certificate is not accepted: {error.verify_message}"
            what = "TLS" if self.is_established else "no TLS handshake"
            raise RemoteProtocolError(f"{what}: {reason}") from None

    def to_send(self) -> bytes:
        """Return the bytes that TLS itself has to send."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def encrypt(self, data: bytes | memoryview) -> bytes:
        """Return the encrypted bytes to write."""
        rest = memoryview(data)
        while rest:
            rest = rest[self._object.write(rest) :]  # One record at a time.
        return self._outgoing.read()

    def end(self) -> bytes:
        """Return the bytes that close our side."""
        with contextlib.suppress(ssl.SSLError):  # It waits for the peer's close, or there was no handshake.
            self._object.unwrap()
        return self.to_send()

    @property
    def client_names(self) -> tuple[str, ...]:
        """Return the names in the client's certificate (subjectAltName); empty without a certificate."""
        certificate: dict[str, Any] = self._object.getpeercert() or {}
        names = certificate.get("subjectAltName", ())
        return tuple(value for kind, value in names if kind in NAME_KINDS and isinstance(value, str))

    def _read(self) -> bytes:
        pieces = []
        with contextlib.suppress(ssl.SSLWantReadError):
            while data := self._object.read(RECORD_BYTES_MAX):
                pieces.append(data)
                # OpenSSL has taken all input, possibly the beginning of a record.
                if not self._incoming.pending and not self._object.pending():
                    break
            else:
                self.is_ended = True
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)
