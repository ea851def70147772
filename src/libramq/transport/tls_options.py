"""The TLS options of servers (`tls.server.…`, `tls.client.…`): names, defaults and contradictions.

    tls.server.…      connections that a server accepts: mode, certificate, clients' certificates
    tls.client.…      its own connections to name servers, brokers and its master, with tls.enable=true

Apache's servers read them as system properties, and from tls.config.file, which has precedence. They verify
certificates of clients and servers only if `authClient` and `authServer` are set; here all are verified.
Upstream: remoting/netty/TlsSystemConfig.java, TlsHelper.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, cast

from libramq.errors import ConfigError
from libramq.formats.properties_file import read_properties, shown
from libramq.transport.tls import Tls, Verify

#: The prefix of every option's name.
PREFIX: Final = "tls."
#: TlsSystemConfig.tlsConfigFile, read if it exists.
DEFAULT_FILE: Final = Path("/etc/rocketmq/tls.properties")
MODES: Final = ("disabled", "permissive", "enforcing")
#: Netty's ClientAuth. Upstream takes any other value for "none".
CLIENT_AUTH: Final = ("none", "optional", "require")


def _option(default: Any, name: str, about: str, *, is_secret: bool = False) -> Any:
    return field(default=default, repr=not is_secret, metadata={"name": name, "about": about})


@dataclass(frozen=True, slots=True, kw_only=True)
class TlsOptions:
    """The TLS options of one server process; raises ConfigError for contradictory ones."""

    server_mode: str = _option(
        "",
        "tls.server.mode",
        "Accepted connections: `disabled`, plain ones only; `permissive`, both on every port; `enforcing`, "
        "encrypted ones only. Default: `permissive` with a certificate, `disabled` without.",
    )
    server_cert_path: str = _option(
        "", "tls.server.certPath", "The server's certificate with its chain, in PEM."
    )
    server_key_path: str = _option(
        "",
        "tls.server.keyPath",
        "Its private key, which other users may not read (mode 0600). Default: in `tls.server.certPath`.",
    )
    server_key_password: str = _option("", "tls.server.keyPassword", "The key's password.", is_secret=True)
    need_client_auth: str = _option(
        "none",
        "tls.server.need.client.auth",
        "Whether clients present a certificate: `none`, `optional`, `require` (with `enforcing` only). It is "
        "always verified.",
    )
    server_trust_cert_path: str = _option(
        "", "tls.server.trustCertPath", "The authorities trusted for clients' certificates, in PEM."
    )
    server_auth_client: str = _option(
        "",
        "tls.server.authClient",
        "Has no effect: Apache's servers verify clients' certificates only with it; these always do.",
    )
    enable: bool = _option(
        False,
        "tls.enable",
        "Encrypt the server's own connections: to name servers, brokers, and the master whose log it copies.",
    )
    client_trust_cert_path: str = _option(
        "", "tls.client.trustCertPath", "The authorities trusted for other servers; the system's by default."
    )
    client_cert_path: str = _option(
        "", "tls.client.certPath", "The certificate presented to servers that require one."
    )
    client_key_path: str = _option("", "tls.client.keyPath", "Its key; by default in `tls.client.certPath`.")
    client_key_password: str = _option("", "tls.client.keyPassword", "The key's password.", is_secret=True)
    client_auth_server: str = _option(
        "",
        "tls.client.authServer",
        "Has no effect: servers' certificates are always verified, to the extent of `tls.verify`.",
    )
    verify: str = _option(  # LibraMQ's own.
        "full",
        "tls.verify",
        "How servers' certificates are verified: `full`, `ca` (not the name in it), `none` (for tests).",
    )
    test_mode_enable: bool = _option(  # Apache's default is true.
        False,
        "tls.test.mode.enable",
        "`true` is refused: Apache's servers then generate a certificate that clients cannot verify.",
    )
    config_file: str = _option(
        "",
        "tls.config.file",
        f"A properties file with these options, which has precedence. Default: `{DEFAULT_FILE}`, if there is "
        "one.",
    )

    def __post_init__(self) -> None:
        if self.server_mode not in ("", *MODES):
            raise ConfigError(f"tls.server.mode={shown(self.server_mode)}: write {', '.join(MODES)}")
        if self.need_client_auth not in CLIENT_AUTH:
            raise ConfigError(
                f"tls.server.need.client.auth={shown(self.need_client_auth)}: write {', '.join(CLIENT_AUTH)}"
            )
        if self.test_mode_enable:
            raise ConfigError(
                "tls.test.mode.enable=true: clients cannot verify a self-made certificate; "
                "remove it, and name one in tls.server.certPath"
            )
        if self.server_key_path and not self.server_cert_path:
            raise ConfigError("tls.server.keyPath is a key without its certificate; set tls.server.certPath")
        if self.mode != "disabled" and not self.server_cert_path:
            raise ConfigError(f"tls.server.mode={self.mode} needs a certificate; set tls.server.certPath")
        if self.wants_client_certificates and not self.server_trust_cert_path:
            raise ConfigError(
                f"tls.server.need.client.auth={self.need_client_auth}: a certificate that is not verified "
                "proves nothing; name its authorities in tls.server.trustCertPath"
            )
        if self.wants_client_certificates and self.mode == "disabled":
            raise ConfigError(
                f"tls.server.need.client.auth={self.need_client_auth} has no effect on plain connections; "
                "set tls.server.certPath, and tls.server.mode=enforcing"
            )
        if self.need_client_auth == "require" and self.mode == "permissive":
            raise ConfigError(
                "tls.server.need.client.auth=require: plain connections, which tls.server.mode=permissive "
                "takes, show none; set tls.server.mode=enforcing, or optional until all clients have one"
            )
        if self.enable:
            _ = self.outgoing

    @property
    def mode(self) -> str:
        """Return the mode; by default permissive if there is a certificate, otherwise disabled."""
        return self.server_mode or ("permissive" if self.server_cert_path else "disabled")

    @property
    def wants_client_certificates(self) -> bool:
        """Return whether clients are asked for a certificate."""
        return self.need_client_auth != "none"

    @property
    def outgoing(self) -> Tls | None:
        """Return the TLS of the server's own connections; None if they are plain."""
        if not self.enable:
            return None
        try:
            return Tls(
                ca_file=None if self.verify == "none" else self.client_trust_cert_path or None,
                cert_file=self.client_cert_path or None,
                key_file=self.client_key_path or None,
                key_password=self.client_key_password or None,
                verify=cast(Verify, self.verify),
            )
        except ConfigError as error:
            raise ConfigError(f"tls.client: {error}") from None


OPTIONS: Final = {each.metadata["name"]: each for each in fields(TlsOptions)}


def tls_options(properties: Mapping[str, str]) -> TlsOptions:
    """Return the TLS options from a server's properties and its tls.config.file; raises ConfigError."""
    found = {name: text for name, text in properties.items() if name.startswith(PREFIX)}
    file = found.get("tls.config.file", "")
    if file or DEFAULT_FILE.is_file():
        found |= _of_file(Path(file or DEFAULT_FILE))
    values: dict[str, Any] = {OPTIONS[name].name: _value(name, text) for name, text in _known(found).items()}
    return TlsOptions(**values)


def _of_file(file: Path) -> dict[str, str]:
    properties = read_properties(file)
    try:
        return dict(_known(properties))
    except ConfigError as error:
        raise ConfigError(f"tls.config.file {file}: {error}") from None


def _known(properties: Mapping[str, str]) -> Mapping[str, str]:
    """Return the properties; raises ConfigError for an unknown name."""
    for name in properties:
        if name not in OPTIONS:  # The value is not shown: it may be a secret.
            raise ConfigError(f"{name}: there is no such TLS option; there are: {', '.join(OPTIONS)}")
    return properties


def _value(name: str, text: str) -> object:
    if not isinstance(OPTIONS[name].default, bool):
        is_choice = name in ("tls.server.mode", "tls.server.need.client.auth", "tls.verify")
        return (text.lower() or OPTIONS[name].default) if is_choice else text
    if text.lower() not in ("true", "false"):
        raise ConfigError(f"{name}={shown(text)}; true or false is allowed")
    return text.lower() == "true"
