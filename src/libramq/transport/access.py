"""Access: a client's credentials, TLS and timeouts, the properties that set them (accessKey, tls.enable,
...), and the hint at the likely cause when a server closes a connection without an answer.

The asyncio and the blocking shell share it. Requests are signed when they are written, each attempt anew.
Spark's options, pipelines and the file that `$LIBRA_ACCESS` names set it with properties:

    accessKey=bob                            of an ACL; with ACL 2.0 the user's name
    secretKey=…                              and the user's password
    securityToken=…                          of temporary credentials
    tls.enable=true
    tls.client.trustCertPath=ca.pem          trusted authorities; the system's by default
    tls.client.certPath=client.pem           the client's own certificate, if servers require one
    tls.client.keyPath=client.key
    tls.client.keyPassword=…
    tls.verify=full                          certificate checks: full, ca (not the name), none (for tests)

All commands, and clients without credentials and TLS of their own, use the file that `$LIBRA_ACCESS` names,
so no secret has to appear in a program or on its command line. Pipelines use it if their configuration sets
no access; Spark's source and sink read their options only.

Upstream: tools.yml, SessionCredentials.java, TlsSystemConfig.java. tls.verify is ours; it replaces two
switches (tls.test.mode.enable, tls.client.authServer) that check nothing by default.
"""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, cast

from libramq.errors import ConfigError
from libramq.remoting.credentials import Credentials
from libramq.transport.tls import Tls, Verify

#: NettyClientConfig.connectTimeoutMillis.
CONNECT_TIMEOUT_MS: Final = 3000
#: ClientConfig.mqClientApiTimeout.
REQUEST_TIMEOUT_MS: Final = 3000


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

    def lost(self, address: str, *, is_silent: bool, reason: str = "") -> str:
        """Return the error message for a lost connection. is_silent: nothing was ever received on it."""
        text = f"the connection to {address} ended before the answer arrived"
        text += f": {reason}" if reason else ""
        if not is_silent:
            return text
        needed = "a client certificate"
        if self.tls is None:
            needed = "TLS (tls=, or the file that LIBRA_ACCESS names)"
        return (
            f"{text}. Nothing was received from it at all; the server may require {needed}, "
            "or take no more connections"
        )


OPEN: Final = Access()
"""No credentials, no TLS."""


ACCESS_KEY: Final = "accessKey"
SECRET_KEY: Final = "secretKey"
SECURITY_TOKEN: Final = "securityToken"
TLS_ENABLE: Final = "tls.enable"
TRUST_CERT_PATH: Final = "tls.client.trustCertPath"
CERT_PATH: Final = "tls.client.certPath"
KEY_PATH: Final = "tls.client.keyPath"
KEY_PASSWORD: Final = "tls.client.keyPassword"
VERIFY: Final = "tls.verify"
_TLS: Final = (TRUST_CERT_PATH, CERT_PATH, KEY_PATH, KEY_PASSWORD, VERIFY)
NAMES: Final = (ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN, TLS_ENABLE, *_TLS)


VARIABLE: Final = "LIBRA_ACCESS"
_warned_of: Final[set[str]] = set()


def environment_properties() -> dict[str, str]:
    """Return the properties in the file of `$LIBRA_ACCESS`; empty if it is unset. Raises ConfigError."""
    from libramq.formats.properties_file import read_properties  # Imported late: Spark starts a worker for
    from libramq.logs import get_logger  # each task, which needs neither.

    file = os.environ.get(VARIABLE)
    if not file:
        return {}
    try:
        found = read_properties(Path(file))
    except ConfigError as error:  # The message names the file.
        raise ConfigError(f"{VARIABLE}: {error}") from None
    # Never quote such a line: it may be the second half of a secret that was wrapped.
    if any(name not in NAMES and not value.strip("=") for name, value in found.items()):
        raise ConfigError(
            f"{VARIABLE}={file}: a line has no value, and its name is none of: {', '.join(NAMES)}; "
            f"write a secret on one line, as {SECRET_KEY}=…"
        )
    is_secret = SECRET_KEY in found or KEY_PASSWORD in found
    if is_secret and file not in _warned_of and _is_public(file):
        _warned_of.add(file)
        get_logger(__name__).warning(
            "every user of this machine can read the secret key", file=file, remedy=f"chmod 600 {file}"
        )
    return found


def _is_public(file: str) -> bool:
    """Return whether every user may read a file; False if it was removed after it was read."""
    try:
        return bool(os.stat(file).st_mode & stat.S_IROTH)
    except OSError:
        return False


def environment_access() -> Access:
    """Return the access set by `$LIBRA_ACCESS`'s file; raises ConfigError if the file is invalid."""
    found = environment_properties()
    try:
        return access_of(found)
    except ConfigError as error:
        raise ConfigError(f"{VARIABLE}={os.environ[VARIABLE]}: {error}") from None


def client_access(credentials: Credentials | None, tls: Tls | None) -> Access:
    """Return a client's access: its own credentials and TLS, or the environment's if it has neither."""
    return environment_access() if credentials is None and tls is None else Access(credentials, tls)


def access_of(properties: Mapping[str, str], *, prefix: str = "") -> Access:
    """Build access from properties. ConfigError names the invalid one, with the prefix its user wrote.

    Files are checked as well: a wrong path is reported before any connection is made.
    """
    for name in properties:
        if name not in NAMES:
            raise ConfigError(f"access has no {prefix}{name}; there are: {', '.join(NAMES)}")
    if not properties:
        return OPEN
    tls = _tls(properties, prefix)
    if tls is not None:
        tls.context()
    return Access(_credentials(properties, prefix), tls)


def _credentials(properties: Mapping[str, str], prefix: str) -> Credentials | None:
    access_key, secret_key = properties.get(ACCESS_KEY), properties.get(SECRET_KEY)
    if access_key and secret_key:
        return Credentials(access_key, secret_key, properties.get(SECURITY_TOKEN))
    for name in (ACCESS_KEY, SECRET_KEY, SECURITY_TOKEN):
        if name in properties:
            missing = SECRET_KEY if access_key else ACCESS_KEY
            raise ConfigError(f"{prefix}{name} is given and {prefix}{missing} is not; give both")
    return None


def _tls(properties: Mapping[str, str], prefix: str) -> Tls | None:
    enable = properties.get(TLS_ENABLE, "false").lower()
    if enable not in ("true", "false"):
        raise ConfigError(f"{prefix}{TLS_ENABLE}={enable!r}: give true or false")
    if enable == "false":
        useless = next((name for name in _TLS if name in properties), None)
        if useless is not None and TLS_ENABLE not in properties:
            raise ConfigError(f"{prefix}{useless} has no effect without {prefix}{TLS_ENABLE}=true")
        return None
    try:
        return Tls(
            ca_file=properties.get(TRUST_CERT_PATH),
            cert_file=properties.get(CERT_PATH),
            key_file=properties.get(KEY_PATH),
            key_password=properties.get(KEY_PASSWORD),
            verify=cast(Verify, properties.get(VERIFY, "full").lower()),
        )
    except ConfigError as error:
        raise ConfigError(f"{prefix}tls: {error}") from None
