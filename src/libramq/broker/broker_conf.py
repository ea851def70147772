"""`broker.conf`: how the properties file becomes a configuration, which options are refused because this
broker cannot keep their promise, and which are ignored with a warning.

Apache's unused names, and unknown names, cause warnings; only options that promise security or durability are
refused (`REFUSED`).
"""

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from libramq.broker.config import CREDENTIALS_OPTION, INITIAL_USER_OPTION, BrokerConfig
from libramq.errors import ConfigError
from libramq.formats.access import UserInfo, initial_user
from libramq.formats.properties_file import parse_properties, read_properties_files, shown, whole_number
from libramq.remoting.credentials import parse_credentials
from libramq.transport.address import bind_address, check_announced, is_lookup, split_name_servers
from libramq.transport.tls_options import PREFIX as TLS_PREFIX
from libramq.transport.tls_options import tls_options

#: Ours: similarity from which a name is taken for a misspelt one; `authenticationProvider` and
#: `authenticationEnabled` are less similar.
SIMILARITY_MIN: Final = 0.9


class Refusal(NamedTuple):
    """A refused option. harmless: values without a promise; lacking: what this broker does not do."""

    name: str
    harmless: tuple[str, ...]
    lacking: str


_ACL_1: Final = "users and policies are those of ACL 2.0 (authenticationEnabled, authorizationEnabled)"
_OTHER: Final = "only Apache's own providers are available here"
_AUTH: Final = "org.apache.rocketmq.auth."
#: The classes of AuthConfig that have counterparts here.
_PROVIDERS: Final = {
    "authenticationProvider": "authentication.provider.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": "authentication.provider.LocalAuthenticationMetadataProvider",
    "authorizationProvider": "authorization.provider.DefaultAuthorizationProvider",
    "authorizationMetadataProvider": "authorization.provider.LocalAuthorizationMetadataProvider",
}
_ALONE: Final = "this is not built yet (masters with slaves are: brokerRole, inSyncReplicas)"
REFUSED: Final = {
    refusal.name: refusal
    for refusal in (
        Refusal("aclEnable", ("false",), _ACL_1),
        Refusal("migrateAuthFromV1Enabled", ("false",), _ACL_1),
        *(Refusal(name, (_AUTH + harmless, ""), _OTHER) for name, harmless in _PROVIDERS.items()),
        Refusal("allAckInSyncStateSet", ("false",), _ALONE),
        Refusal("enableControllerMode", ("false",), _ALONE),
        Refusal("enableDLegerCommitLog", ("false",), _ALONE),
        Refusal("duplicationEnable", ("false",), _ALONE),
        Refusal("readOnlyCommitLogStorePaths", ("",), "this broker reads its log from one directory"),
    )
}
#: Promises that are kept if their names are spelt right.
_KEPT: Final = (
    "flushDiskType",
    "brokerRole",
    "inSyncReplicas",
    "minInSyncReplicas",
    "totalReplicas",
    "enableAutoInSyncReplicas",
    "enableLmq",
    "enableMultiDispatch",
    "bindAddress",
    CREDENTIALS_OPTION,
    INITIAL_USER_OPTION,
    "authenticationEnabled",
    "authorizationEnabled",
    "authorizationDryRun",
)
#: By their names in lower case.
_PROMISES: Final = {name.lower(): name for name in (*REFUSED, *_KEPT)}


def check_refused(properties: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise ConfigError for the first promise that cannot be kept. known: names that have an effect here."""
    for name, value in properties.items():
        refusal = REFUSED.get(name)
        if refusal is not None and value.lower() not in map(str.lower, refusal.harmless):
            raise ConfigError(
                f"{name}={value}: {refusal.lacking}, so this broker would not do what the line promises; "
                f"remove it (or set {name}={refusal.harmless[-1]}) to run without, or use Apache's broker"
            )
        if refusal is None and name not in known:
            near = difflib.get_close_matches(name.lower(), _PROMISES, n=1, cutoff=SIMILARITY_MIN)
            if near:
                # The value is not shown: it may be a secret.
                raise ConfigError(f"{name}: no such option; did you mean {_PROMISES[near[0]]}?")


def broker_config(properties: Mapping[str, str], **overrides: Any) -> tuple[BrokerConfig, list[str]]:
    """Build a configuration from properties and overrides; also return the names without an effect.

    Raises ConfigError for an invalid value, and for an option that the broker cannot honour.
    """
    by_name = {option.metadata["name"]: option for option in fields(BrokerConfig) if option.metadata}
    values: dict[str, Any] = {"tls": tls_options(properties)}
    properties = {name: text for name, text in properties.items() if not name.startswith(TLS_PREFIX)}
    check_refused(properties, frozenset(by_name))
    unknown = []
    for name, text in properties.items():
        option = by_name.get(name)
        if option is None:
            if name not in REFUSED:  # Otherwise its value is harmless.
                unknown.append(name)
        else:
            values[option.name] = option_value(name, text, option.default)
    if "bind_address" not in values and "broker_ip" in values:
        announced = values["broker_ip"]
        check_announced(announced, "brokerIP1")
        remedy = f"bindAddress={announced} and allowPublic=true"
        values["bind_address"] = bind_address(announced, "brokerIP1", remedy)
    name_servers = values.get("namesrv_addr")
    if name_servers and not is_lookup(name_servers):
        try:
            split_name_servers(name_servers)
        except ConfigError as error:
            raise ConfigError(f"namesrvAddr: {error}") from None
    values.update({name: value for name, value in overrides.items() if value is not None})
    return BrokerConfig(**values), unknown


def load_broker_config(
    *paths: Path, settings: Sequence[str] = (), **overrides: Any
) -> tuple[BrokerConfig, list[str]]:
    """Read `broker.conf`, possibly from several files; see `broker_config`.

    settings: further lines, which take precedence.
    """
    properties = read_properties_files(paths) | parse_properties("\n".join(settings))
    try:
        return broker_config(properties, **overrides)
    except ConfigError as error:
        if not paths:
            raise
        raise ConfigError(f"{', '.join(map(str, paths))}: {error}") from None


def advice(name: str, options: type = BrokerConfig) -> str:
    """Return a "did you mean" hint for a message about an unknown option; empty if no name is similar."""
    named = [(option.name, str(option.metadata["name"])) for option in fields(options) if option.metadata]
    # As commands name them, for example metricsPort.
    by_lower = {ours.replace("_", ""): known for ours, known in named}
    by_lower |= {known.lower(): known for _, known in named}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.75)
    return f"; did you mean {by_lower[near[0]]}?" if near else ""


def option_value(name: str, text: str, default: object) -> object:
    """Parse an option's text; raises ConfigError."""
    if name == CREDENTIALS_OPTION:
        return parse_credentials(name, text) if text else None
    if name == INITIAL_USER_OPTION:
        return _initial_user(text) if text.strip() else None
    if isinstance(default, frozenset):
        return frozenset(_code(name, each) for each in text.split(",") if each.strip())
    if isinstance(default, bool):
        if text.lower() not in ("true", "false"):
            raise ConfigError(f"{name}={shown(text)}; true or false is allowed")
        return text.lower() == "true"
    if isinstance(default, int):
        number = whole_number(text)
        if number is None:
            raise ConfigError(f"{name}={shown(text)}; a whole number is needed")
        return number
    return text


def _initial_user(text: str) -> UserInfo:
    """Parse the first user; ConfigError does not show the value."""
    try:
        user = initial_user(text)
        if user.username and user.password:
            return user
    except msgspec.MsgspecError:
        pass
    raise ConfigError(
        f'{INITIAL_USER_OPTION} cannot be read; write {{"username":"…","password":"…"}}, neither empty'
    )


def _code(name: str, text: str) -> int:
    code = whole_number(text.strip())
    if code is None:
        raise ConfigError(f"{name}: {shown(text)} is not the code of a request; write for example 105,34")
    return code
