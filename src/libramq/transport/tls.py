"""TLS of outgoing connections: how a server's certificate is verified, when files are reloaded, and how a
failed handshake is explained.

Apache's clients verify no certificate by default, and never the name in it. Here everything is verified by
default. The user may exclude a part, for example the name, because brokers register by address and their
certificates often name something else. Importing ssl takes 20 ms, so it is imported on first use.
Upstream: remoting/netty/TlsHelper.java, TlsSystemConfig.java.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal, get_args

from libramq.errors import ConfigError

if TYPE_CHECKING:
    import ssl


#: full: the certificate and the name in it. ca: the certificate alone. none: nothing; for tests.
Verify = Literal["full", "ca", "none"]

#: Ours: how long a closing connection waits for the peer's closing handshake.
SHUTDOWN_TIMEOUT_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """The encryption of connections to name servers and brokers; the files are PEM.

    ca_file: the trusted authorities; the system's by default.
    cert_file, key_file: the client's own certificate with its chain; its key (by default in cert_file).
    key_password: the key's password; never shown.
    verify: how a server's certificate is verified: full, ca (not the name), none (for tests).
    """

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    key_password: str | None = field(default=None, repr=False)
    verify: Verify = "full"

    def __post_init__(self) -> None:
        if self.verify not in get_args(Verify):
            raise ConfigError(f"TLS: verify={self.verify!r}: give {', '.join(get_args(Verify))}")
        if self.key_file is not None and self.cert_file is None:
            raise ConfigError("TLS: a key without its certificate; give cert_file too")
        if self.verify == "none" and self.ca_file is not None:
            raise ConfigError("TLS: verify=none checks no certificate; leave ca_file out, or use verify=ca")

    def renewed(self) -> "RenewedContext":
        """Return a context that follows changes of the files; raises ConfigError if they are unusable."""
        import ssl

        authorities = self.ca_file or ssl.get_default_verify_paths().cafile
        files = [file for file in (authorities, self.cert_file, self.key_file) if file is not None]
        return RenewedContext("outgoing connections", files, self.context)

    def context(self) -> "ssl.SSLContext":
        """Return the TLS context of a connection; raises ConfigError for an unusable file."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca_file)
        except OSError as error:
            raise _unusable(f"ca_file {self.ca_file}", error) from None
        # Python 3.13's default would refuse certificates made by RocketMQ's own guide.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        context.check_hostname = self.verify == "full"
        if self.verify == "none":
            context.verify_mode = ssl.CERT_NONE
        if self.cert_file is not None:
            try:
                # Without a password argument, OpenSSL would prompt on the terminal.
                context.load_cert_chain(self.cert_file, self.key_file, self.key_password or "")
            except OSError as error:
                files = f"cert_file {self.cert_file}"
                files += f" and key_file {self.key_file}" if self.key_file is not None else ""
                raise _unusable(f"{files} (or the key's password)", error) from None
        return context


class RenewedContext:
    """A TLS context that is reloaded when one of its files has changed.

    The constructor raises ConfigError for unusable files. Later on they are logged once, and the previous
    context stays. what: names the files' user in the log.
    """

    def __init__(self, what: str, files: Sequence[str], load: "Callable[[], ssl.SSLContext]") -> None:
        self._what = what
        self._files = files
        self._load = load
        self._seen = self._look()  # Before loading: a file that changes meanwhile is read again.
        self._context = load()

    def current(self) -> "ssl.SSLContext":
        """Return the context for a connection that begins now."""
        seen = self._look()
        if seen != self._seen:
            self._seen = seen
            from libramq.logs import get_logger  # Not at the top: Spark's tasks do without structlog.

            log = get_logger(__name__)
            try:
                self._context = self._load()
            except ConfigError as error:
                log.error(
                    "changed TLS files are not used, the previous ones stay in use",
                    of=self._what,
                    reason=str(error),
                )
            else:
                log.info("changed TLS files are used from now on", of=self._what)
        return self._context

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(file) for file in self._files]


def _stamp(path: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_ctime_ns, found.st_size, found.st_ino  # A chmod changes ctime.


#: Returns the TLS context for a connection that begins with this byte; None for a plain one.
TlsByFirstByte = Callable[[int], "ssl.SSLContext | None"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Encryption:
    """The encryption of a server process.

    incoming: for accepted connections; None: all are plain and do not wait for a first byte.
    outgoing: for its own connections to other servers; None: all are plain.
    """

    incoming: TlsByFirstByte | None = None
    outgoing: Tls | None = None


PLAIN: Final = Encryption()


def handshake_failure(address: str, error: OSError) -> str | None:
    """Describe a TLS handshake that failed after the connection was made; None for other errors."""
    import ssl

    if isinstance(error, ssl.SSLCertVerificationError):
        remedy = "give the ca_file that signed it"
        if "mismatch" in error.verify_message:
            remedy = "reach it by a name in its certificate, or check all but the name with verify=ca"
        return f"the certificate of {address} is not accepted: {error.verify_message}; {remedy}"
    if isinstance(error, ssl.SSLError | ConnectionResetError | ConnectionAbortedError | BrokenPipeError):
        return f"no TLS handshake with {address} ({reason_of(error)}); does it serve TLS, and this client?"
    return None


def _unusable(what: str, error: OSError) -> ConfigError:
    return ConfigError(f"TLS: {what} cannot be used: {reason_of(error)}")


def reason_of(error: OSError) -> str:
    """Return the reason in words, without codes."""
    reason = getattr(error, "reason", None)  # SSLError's: UNEXPECTED_EOF_WHILE_READING.
    if isinstance(reason, str):
        return reason.lower().replace("_", " ")
    return error.strerror or str(error) or "the connection ended"
