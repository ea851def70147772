"""Credentials: how requests are signed with an access key and its secret, and how brokers prove themselves to
each other.

    request's ext fields and body ─► `auth/signature.py` ─► Signature, an ext field

Code, flags, number and header form are not signed: a signature is valid in JSON and in binary.
Upstream: AclClientRPCHook.java, AclUtils.combineRequestContent, AclSigner.java, SessionCredentials.java.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from libramq.auth.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, is_right, signature
from libramq.errors import ConfigError
from libramq.remoting.command import Command

#: MixAll.UNIQUE_MSG_QUERY_FLAG, and the last MQVersion whose clients leave it unsigned.
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
V4_9_3: Final = 399
#: Ours: the purpose of a request between brokers, which makes its signature valid for nothing else
#: (`sign_for`).
PURPOSE: Final = "lbPurpose"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key (with ACL 2.0 the user's name) and its secret (the user's password).

    security_token: of temporary credentials. second_secret_key: accepted, but not used to sign, while a
    cluster's brokers change over to another secret. Only the access key is ever shown.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)
    second_secret_key: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name):
                raise ConfigError(f"credentials need access_key and secret_key; {name} is empty")

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """Return the one or two accepted secrets; the first one signs."""
        second = (self.second_secret_key.encode(),) if self.second_secret_key else ()
        return self.secret_key.encode(), *second


def sign(request: Command, credentials: Credentials) -> Command:
    """Return a copy of the request with the fields that identify and authenticate its sender."""
    ext = {name: value for name, value in request.ext.items() if name != SIGNATURE}
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, request.body, credentials.secret_key.encode())
    return msgspec.structs.replace(request, ext=ext)


def sign_for(request: Command, credentials: Credentials, address: str) -> Command:
    """Sign a request between brokers, together with its code and destination address."""
    ext = request.ext | {PURPOSE: _purpose(request.code, address)}
    return sign(msgspec.structs.replace(request, ext=ext), credentials)


def is_signed_for(request: Command, credentials: Credentials, address: str) -> bool:
    """Return whether a request was signed with these credentials for its code and this address."""
    purpose = request.ext.get(PURPOSE, "")
    return purpose == _purpose(request.code, address) and is_signed(request, credentials)


def is_signed_by_broker(request: Command, credentials: Credentials) -> bool:
    """Return whether a broker signed a request to a name server: ours for its code, Apache's without it."""
    purpose = request.ext.get(PURPOSE)
    is_for = purpose is None or purpose.startswith(_purpose(request.code, ""))
    return is_for and is_signed(request, credentials)


def is_signed(request: Command, credentials: Credentials) -> bool:
    """Return whether a request was signed with these credentials, in constant time."""
    is_named = request.ext.get(ACCESS_KEY) == credentials.access_key
    return is_right(request.ext, request.body, *credentials.secrets) and is_named


def signed_fields(request: Command) -> Mapping[str, str]:
    """Return the ext fields that a client signs; old ones add `_UNIQUE_KEY_QUERY` after signing."""
    fields = request.ext
    if UNIQUE_KEY_QUERY in fields and request.version <= V4_9_3:
        return {name: value for name, value in fields.items() if name != UNIQUE_KEY_QUERY}
    return fields


def parse_credentials(option: str, text: str) -> Credentials:
    """Parse credentials in the form of Apache's `broker.conf`: {"accessKey":"…","secretKey":"…"}.

    "secondSecretKey" is ours; Apache's servers ignore it. Raises ConfigError, which names the option but
    never its value. Upstream: SessionCredentials, read by fastjson in BrokerOuterAPI and BrokerController.
    """
    try:
        found = msgspec.json.decode(text, type=_CredentialsText)
        return Credentials(found.access_key, found.secret_key, found.security_token, found.second_secret_key)
    except (msgspec.MsgspecError, UnicodeError, ConfigError):
        raise ConfigError(
            f'{option} cannot be read; write {{"accessKey":"…","secretKey":"…"}}, neither of them empty'
        ) from None


class _CredentialsText(msgspec.Struct, rename="camel"):
    """Credentials in JSON."""

    access_key: str
    secret_key: str
    security_token: str | None = None
    second_secret_key: str | None = None


def _purpose(code: int, address: str) -> str:
    return f"{code} to {address}"
