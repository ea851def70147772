"""The document: reads and writes typed values in fastjson's dialect, within bounds."""

import functools
from collections.abc import Hashable
from typing import Annotated, Any, TypeVar

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.formats import fastjson
from libramq.formats.fastjson import encode_plain

T = TypeVar("T")

#: Java's int and long: larger numbers are refused on receipt.
Int = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
Long = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class Document(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The base of typed documents: snake_case here, camelCase on the wire; unknown members are ignored."""


def decode_body(data: bytes, kind: type[T], bounds: fastjson.Bounds | None = None) -> T:
    """Decode a body; RemoteProtocolError names the invalid member or the bound.

    Standard JSON is decoded directly to the typed value; the dialect's reader handles everything else, and
    reports all errors.
    """
    hashable: Any = kind  # All types are hashable, but mypy does not know it of a type variable.
    decoder = _decoder(hashable)
    is_bounded = (  # Most bodies have fewer bytes than the limit of marks.
        bounds is None
        or len(data) <= bounds.marks
        or fastjson.count_marks(data, bounds.marks) <= bounds.marks
    )
    if decoder is not None and is_bounded:
        try:
            decoded: T = decoder.decode(data)
            return decoded
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            pass
    return from_value(fastjson.loads(data, bounds), kind)


@functools.cache
def _decoder(kind: Hashable) -> "msgspec.json.Decoder[Any] | None":
    """Return the decoder of a type; None for maps with keys that standard JSON does not allow."""
    try:
        decoder: msgspec.json.Decoder[Any] = msgspec.json.Decoder(kind, strict=False)
    except TypeError:
        return None
    return decoder


def from_value(value: Any, kind: type[T]) -> T:
    """Turn what `fastjson.loads` returned into a typed value."""
    try:
        return msgspec.convert(value, kind, strict=False)
    except msgspec.ValidationError as error:
        raise RemoteProtocolError(f"{kind.__name__}: {error}") from None


def encode_body(body: Any) -> bytes:
    """Encode a body in fastjson's dialect, as the Java side writes and reads it.

    Plain typed values are encoded directly; the dialect's writer handles everything else.
    """
    data = encode_plain(body)
    return data if data is not None else fastjson.dumps(body)
