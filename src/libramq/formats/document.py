"""The document: a typed value in fastjson's dialect, as in bodies and config files."""

from typing import Any, TypeVar

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.formats import fastjson

T = TypeVar("T")


class Document(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The base of typed documents: snake_case here, camelCase on the wire; unknown members are ignored."""


def decode_body(data: bytes, kind: type[T], bounds: fastjson.Bounds | None = None) -> T:
    """Decode a body; RemoteProtocolError names the invalid member, or the bound."""
    return from_value(fastjson.loads(data, bounds), kind)


def from_value(value: Any, kind: type[T]) -> T:
    """Turn what `fastjson.loads` returned into a typed value."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from None


def encode_body(body: Any) -> bytes:
    """Encode a body in fastjson's dialect, as the Java side writes and reads it."""
    return fastjson.dumps(body)
