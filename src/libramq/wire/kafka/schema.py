"""The schema of Kafka's messages: how a Struct's annotations state which versions have a field and how it is
encoded.

    class HeartbeatRequest(Request, frozen=True, kw_only=True):
        group_id: String
        generation_id: Int32
        member_id: String
        group_instance_id: Annotated[NullableString, Versions(3)] = None

A field missing in a version keeps its default. From the version `flexible` on, lengths are compact and each
structure ends with tagged fields (KIP-482): those of requests are skipped, and answers have none.

One Struct serves all versions, so that translators need not know a client's version.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import islice
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Generic,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from libramq.errors import LocalProtocolError, RemoteProtocolError
from libramq.wire.kafka.primitives import (
    Reader,
    encode_boolean,
    encode_int8,
    encode_int16,
    encode_int32,
    encode_int64,
    encode_uuid,
    encode_uvarint,
)

Int8 = Annotated[int, "int8"]
Int16 = Annotated[int, "int16"]
Int32 = Annotated[int, "int32"]
Int64 = Annotated[int, "int64"]
Boolean = Annotated[bool, "boolean"]
String = Annotated[str, "string"]
NullableString = Annotated[str | None, "string"]
#: The text of an error; truncated, as it quotes names from the request, and most versions allow 32,767 bytes.
Remark = Annotated[str | None, "remark"]
Bytes = Annotated[bytes, "bytes"]
NullableBytes = Annotated[bytes | None, "bytes"]
#: The id of a topic.
Uuid = Annotated[bytes, "uuid"]


#: The same as for remarks to RocketMQ's clients (`encode_reply`).
REMARK_CHARACTERS_MAX: Final = 1_000


class Versions(NamedTuple):
    """The versions that have a field, both ends included."""

    first: int
    last: int = 1 << 15


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A request, an answer, or a structure within one."""


class Request(Message, frozen=True, kw_only=True):
    """The body of a request."""


P = TypeVar("P")
R = TypeVar("R")


class Topic(Message, Generic[P], frozen=True, kw_only=True):
    """A topic with a request or an answer for each of its partitions: the form of most messages."""

    name: String
    partitions: tuple[P, ...]


def partitions_of(topics: Iterable[Topic[P]]) -> list[tuple[str, P]]:
    """Return the partitions of all topics, each with its topic."""
    return [(each.name, partition) for each in topics for partition in each.partitions]


def by_topic(topics: Iterable[Topic[Any]], results: Iterable[R]) -> tuple[Topic[R], ...]:
    """Return results by topic: one for each partition of these topics, in their order."""
    left = iter(results)
    return tuple(
        Topic(name=each.name, partitions=tuple(islice(left, len(each.partitions)))) for each in topics
    )


#: Reads a value, and appends one. A list of parts would take twenty times the bytes of a large answer.
Read = Callable[[Reader], Any]
Write = Callable[[Any, bytearray], None]


class Codec(NamedTuple):
    """Reads and writes one type in one version."""

    read: Read
    write: Write


def decode(kind: type[Message], version: int, is_flexible: bool, reader: Reader) -> Any:
    """Read a message of a version."""
    return codec_of(kind, version, is_flexible).read(reader)


def encode(message: Message, version: int, is_flexible: bool) -> bytes:
    """Encode a message in a version."""
    data = bytearray()
    codec_of(type(message), version, is_flexible).write(message, data)
    return bytes(data)


@lru_cache(maxsize=1024)
def codec_of(kind: type[Message], version: int, is_flexible: bool) -> Codec:
    """Return a structure's codec, made on first use."""
    made: type[Message] = get_origin(kind) or kind
    fields: list[tuple[str, Codec]] = []
    for name, hint in get_type_hints(made, include_extras=True).items():
        if get_origin(hint) is ClassVar:
            continue
        if getattr(hint, "__parameters__", ()):  # For a generic structure such as `Topic`.
            hint = hint[get_args(kind)]
        found = _field(hint, version, is_flexible)
        if found is not None:
            fields.append((name, found))
    return _structure(made, fields, is_flexible)


def _structure(kind: type[Message], fields: Sequence[tuple[str, Codec]], is_flexible: bool) -> Codec:
    reads = [(name, codec.read) for name, codec in fields]
    writes = [(name, codec.write) for name, codec in fields]

    def read(reader: Reader) -> Any:
        values = {name: read_field(reader) for name, read_field in reads}
        if is_flexible:
            reader.skip_tags()
        return kind(**values)

    def write(message: Any, data: bytearray) -> None:
        for name, write_field in writes:
            write_field(getattr(message, name), data)
        if is_flexible:
            data += b"\0"

    return Codec(read, write)


def _field(hint: Any, version: int, is_flexible: bool) -> Codec | None:
    """Return a field's codec, or None if the version does not have the field."""
    marks: tuple[Any, ...] = ()
    if get_origin(hint) is Annotated:
        hint, *rest = get_args(hint)
        marks = tuple(rest)
    for mark in marks:
        if isinstance(mark, Versions) and not mark.first <= version <= mark.last:
            return None
    names = [mark for mark in marks if isinstance(mark, str)]
    hint, is_nullable = _without_none(hint)
    if names:
        return _primitive(names[0], is_flexible, is_nullable=is_nullable)
    if get_origin(hint) in (tuple, list):
        element = _field(get_args(hint)[0], version, is_flexible)
        assert element is not None, "an element is in every version of its array"
        return _array(element, is_flexible, is_nullable=is_nullable)
    found = codec_of(hint, version, is_flexible)
    return _nullable(found) if is_nullable else found


def _without_none(hint: Any) -> tuple[Any, bool]:
    if get_origin(hint) in (Union, UnionType):
        kinds = [kind for kind in get_args(hint) if kind is not type(None)]
        return kinds[0], len(kinds) < len(get_args(hint))
    return hint, False


_FIXED: Final[dict[str, tuple[Read, Callable[[Any], bytes]]]] = {
    "int8": (Reader.int8, encode_int8),
    "int16": (Reader.int16, encode_int16),
    "int32": (Reader.int32, encode_int32),
    "int64": (Reader.int64, encode_int64),
    "boolean": (Reader.boolean, encode_boolean),
    "uuid": (Reader.uuid, encode_uuid),
}


def _primitive(name: str, is_flexible: bool, *, is_nullable: bool) -> Codec:
    if name in _FIXED:
        read_fixed, encode_fixed = _FIXED[name]
        return Codec(read_fixed, lambda value, data: data.extend(encode_fixed(value)))
    is_text = name in ("string", "remark")
    read_length = Reader.int16 if is_text else Reader.int32
    encode_length = encode_int16 if is_text else encode_int32

    def read(reader: Reader) -> Any:
        length = reader.uvarint() - 1 if is_flexible else read_length(reader)
        if length == -1:
            return _null(name, is_nullable=is_nullable)
        return reader.text(length) if is_text else reader.raw(length)

    def write(value: Any, data: bytearray) -> None:
        if value is None:
            if not is_nullable:
                raise LocalProtocolError(f"a {name} of this message cannot be null")
            data += b"\0" if is_flexible else encode_length(-1)
            return
        if name == "remark":
            value = value[:REMARK_CHARACTERS_MAX]
        content = value.encode() if is_text else value
        data += encode_uvarint(len(content) + 1) if is_flexible else encode_length(len(content))
        data += content

    return Codec(read, write)


def _array(element: Codec, is_flexible: bool, *, is_nullable: bool) -> Codec:
    read_element, write_element = element

    def read(reader: Reader) -> Any:
        length = reader.uvarint() - 1 if is_flexible else reader.int32()
        if length == -1:
            return _null("array", is_nullable=is_nullable)
        return tuple([read_element(reader) for _ in range(reader.count(length))])

    def write(values: Any, data: bytearray) -> None:
        if values is None:
            data += b"\0" if is_flexible else encode_int32(-1)
            return
        data += encode_uvarint(len(values) + 1) if is_flexible else encode_int32(len(values))
        for value in values:
            write_element(value, data)

    return Codec(read, write)


def _nullable(structure: Codec) -> Codec:
    """Return the codec of a nullable structure, whose first byte says whether it is null (KIP-893)."""
    read_content, write_content = structure

    def read(reader: Reader) -> Any:
        return None if reader.int8() < 0 else read_content(reader)

    def write(value: Any, data: bytearray) -> None:
        data += encode_int8(-1 if value is None else 1)
        if value is not None:
            write_content(value, data)

    return Codec(read, write)


def _null(name: str, *, is_nullable: bool) -> None:
    if not is_nullable:
        raise RemoteProtocolError(f"a {name} that cannot be null is null")
