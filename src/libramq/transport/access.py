"""Access: a client's signature and encryption.

The asyncio and the blocking shell share it. Requests are signed as they are written, each attempt again.
"""

from dataclasses import dataclass
from typing import Final

from libramq.errors import ConfigError
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign
from libramq.transport.tls import Tls


@dataclass(frozen=True, slots=True)
class Access:
    """Credentials and TLS for servers. None: requests are unsigned; connections are plain."""

    credentials: Credentials | None = None
    tls: Tls | None = None

    def __post_init__(self) -> None:
        if self.credentials is not None and not isinstance(self.credentials, Credentials):
            raise ConfigError(f"credentials is a Credentials(…), not {type(self.credentials).__name__!r}")
        if self.tls is not None and not isinstance(self.tls, Tls):
            raise ConfigError(f"tls is a Tls(…), not {self.tls!r}")

    def signed(self, request: Command) -> Command:
        """Return the command as it is sent, signed if there are credentials."""
        return request if self.credentials is None else sign(request, self.credentials)

    def lost(self, address: str, *, is_silent: bool, reason: str = "") -> str:
        """Return the message about a connection that ended. is_silent: nothing was ever received on it."""
        text = f"the connection to {address} ended before the answer came"
        text += f": {reason}" if reason else ""
        if not is_silent:
            return text
        if self.tls is None:
            return f"{text}. Nothing was received from it at all; the server may require TLS (tls)"
        return f"{text}. Nothing was received from it at all; the server may require a client certificate"


OPEN: Final = Access()
"""No credentials, no TLS."""
