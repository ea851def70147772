"""The document: a typed value in fastjson's dialect, as bodies and config files hold it."""

from typing import Any, TypeVar

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.formats import fastjson

T = TypeVar("T")


class Document(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The base of typed documents: snake_case here, camelCase on the wire, unknown members ignored."""


def decode_body(data: bytes, kind: type[T], bounds: fastjson.Bounds | None = None) -> T:
    """Read a body; RemoteProtocolError names the member that does not fit, or the bound."""
    return from_value(fastjson.loads(data, bounds), kind)


def from_value(value: Any, kind: type[T]) -> T:
    """Turn what `fastjson.loads` returned into a typed value."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from None


def encode_body(body: Any) -> bytes:
    """Write a body in the loose dialect, as Java's side writes and reads it."""
    return fastjson.dumps(body)
