"""The refused options: settings in `broker.conf` that promise what this broker lacks.

A broker that started regardless would serve clients it should not, or acknowledge messages that may be lost,
or that their readers never see.
Names that are nearly one of these are refused too: a misspelt promise is still a promise.
Upstream: BrokerConfig.java, MessageStoreConfig.java, AuthConfig.java, TlsSystemConfig.java.
"""

import difflib
from collections.abc import Mapping
from typing import Final, NamedTuple

from libramq.errors import ConfigError

#: Ours: how similar a misspelt name is; `authenticationProvider` and `authenticationEnabled` are not that
#: similar.
SIMILARITY_MIN: Final = 0.9


class Refusal(NamedTuple):
    """A refused option. harmless: values without a promise; lacking: what this broker does not do."""

    name: str
    harmless: tuple[str, ...]
    lacking: str


_OPEN: Final = "clients are not authenticated or authorised yet"
_PLAIN: Final = "connections are not encrypted yet"
_ALONE: Final = "this is not built yet (masters with slaves are: brokerRole, inSyncReplicas)"
REFUSED: Final = {
    refusal.name: refusal
    for refusal in (
        Refusal("authenticationEnabled", ("false",), _OPEN),
        Refusal("authorizationEnabled", ("false",), _OPEN),
        Refusal("aclEnable", ("false",), _OPEN),
        Refusal("migrateAuthFromV1Enabled", ("false",), _OPEN),
        Refusal("tls.enable", ("false",), _PLAIN),
        Refusal("tls.server.mode", ("disabled", "permissive"), _PLAIN),
        Refusal("tls.server.need.client.auth", ("none",), _PLAIN),
        Refusal("allAckInSyncStateSet", ("false",), _ALONE),
        Refusal("enableControllerMode", ("false",), _ALONE),
        Refusal("enableDLegerCommitLog", ("false",), _ALONE),
        Refusal("duplicationEnable", ("false",), _ALONE),
        Refusal("readOnlyCommitLogStorePaths", ("",), "this broker reads its log from one directory"),
    )
}
#: What is kept, when it is spelt right.
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
    "innerClientAuthenticationCredentials",
)
#: By their names in small letters.
_PROMISES: Final = {name.lower(): name for name in (*REFUSED, *_KEPT)}


def check_refused(properties: Mapping[str, str], known: frozenset[str]) -> None:
    """Raise ConfigError for the first promise that cannot be kept. known: names that have an effect here."""
    for name, value in properties.items():
        refusal = REFUSED.get(name)
        if refusal is not None and value.lower() not in refusal.harmless:
            raise ConfigError(
                f"{name}={value}: {refusal.lacking}, so this broker would not do what the line promises; "
                f"remove it (or set {name}={refusal.harmless[-1]}) to run without, or use Apache's broker"
            )
        if refusal is None and name not in known:
            near = difflib.get_close_matches(name.lower(), _PROMISES, n=1, cutoff=SIMILARITY_MIN)
            if near:
                # The value is not shown: it may be a secret.
                raise ConfigError(f"{name}: no such option; did you mean {_PROMISES[near[0]]}?")


def is_harmless(name: str) -> bool:
    """Return whether an option that passed `check_refused` is without effect."""
    return name in REFUSED
