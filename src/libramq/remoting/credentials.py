"""Credentials: the sender of a request, proven by its signature.

    Signature = Base64(HMAC-SHA1(secret key, values of the ext fields in the order of their names + body))

Access key and security token are ext fields and signed with the others; the secret key is never sent. Code,
flags and number are not signed, nor is the header's form, so a signature is valid in JSON and in binary.
Upstream: AclClientRPCHook.java, AclUtils.combineRequestContent, AclSigner.java, SessionCredentials.java.
"""

import hmac
from base64 import b64encode
from dataclasses import dataclass, field
from typing import Final

import msgspec

from libramq.errors import ConfigError
from libramq.remoting.command import Command

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
#: Ours: the purpose of a request between brokers, so that it is valid for nothing else (`sign_for`).
PURPOSE: Final = "lbPurpose"


@dataclass(frozen=True, slots=True)
class Credentials:
    """An access key (with ACL 2.0 the user's name) and its secret (the user's password).

    security_token: of temporary credentials. Only the access key is ever shown.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        for name in ("access_key", "secret_key"):
            if not getattr(self, name):
                raise ConfigError(f"credentials need access_key and secret_key; {name} is empty")


def sign(request: Command, credentials: Credentials) -> Command:
    """Return the request with the fields that identify and prove its sender; the given one is unchanged."""
    ext = {name: value for name, value in request.ext.items() if name != SIGNATURE}
    ext[ACCESS_KEY] = credentials.access_key
    if credentials.security_token is not None:
        ext[SECURITY_TOKEN] = credentials.security_token
    ext[SIGNATURE] = signature(ext, request.body, credentials.secret_key)
    return msgspec.structs.replace(request, ext=ext)


def sign_for(request: Command, credentials: Credentials, address: str) -> Command:
    """Sign a request between brokers, together with its code and the address that it goes to."""
    ext = request.ext | {PURPOSE: _purpose(request.code, address)}
    return sign(msgspec.structs.replace(request, ext=ext), credentials)


def is_signed_for(request: Command, credentials: Credentials, address: str) -> bool:
    """Return whether a request was signed with these credentials for its code and this address."""
    purpose = request.ext.get(PURPOSE, "")
    return purpose == _purpose(request.code, address) and is_signed(request, credentials)


def is_signed(request: Command, credentials: Credentials) -> bool:
    """Return whether a request was signed with these credentials, in constant time."""
    ext = {name: value for name, value in request.ext.items() if name != SIGNATURE}
    try:
        expected = signature(ext, request.body, credentials.secret_key).encode()
        presented = request.ext.get(SIGNATURE, "").encode()
    except UnicodeEncodeError:  # A lone surrogate, which cannot be signed.
        return False
    is_right = hmac.compare_digest(presented, expected)
    return is_right and ext.get(ACCESS_KEY) == credentials.access_key


def parse_credentials(option: str, text: str) -> Credentials:
    """Read credentials as Apache's `broker.conf` has them: {"accessKey":"…","secretKey":"…"}.

    Raises ConfigError, which names the option and does not show its value. Upstream: SessionCredentials, read
    by fastjson in BrokerOuterAPI and BrokerController.
    """
    try:
        found = msgspec.json.decode(text, type=_CredentialsText)
        return Credentials(found.access_key, found.secret_key, found.security_token)
    except (msgspec.MsgspecError, UnicodeError, ConfigError):
        raise ConfigError(
            f'{option} cannot be read; write {{"accessKey":"…","secretKey":"…"}}, neither of them empty'
        ) from None


class _CredentialsText(msgspec.Struct, rename="camel"):
    """Credentials in JSON."""

    access_key: str
    secret_key: str
    security_token: str | None = None


def _purpose(code: int, address: str) -> str:
    return f"{code} to {address}"


def signature(ext: dict[str, str], body: bytes, secret_key: str) -> str:
    """Return the signature of ext fields and a body; about 3 µs plus SHA-1's time for the body."""
    content = "".join(ext[name] for name in sorted(ext)).encode() + body
    return b64encode(hmac.digest(secret_key.encode(), content, "sha1")).decode()
