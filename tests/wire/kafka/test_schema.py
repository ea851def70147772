"""Kafka's messages are those of Kafka's own schema, in every version that is served: kio generated its
classes from it.

kio only encodes here, and decodes what we encoded. It may not read what a network brings: an array that
announces 2³¹ elements makes its decoder ask for 32 GiB at once, and that aborts the process.
"""

import importlib
import inspect
import random
import typing
from collections.abc import Iterator
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from io import BytesIO
from pkgutil import iter_modules
from types import UnionType
from typing import Any
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode as KioErrorCode
from kio.serial import entity_writer

from libramq.errors import RemoteProtocolError
from libramq.wire.kafka import apis
from libramq.wire.kafka.api import APIS
from libramq.wire.kafka.primitives import ELEMENTS_MAX, Reader, encode_uvarint, encode_varint
from libramq.wire.kafka.schema import Message, decode, encode

#: The API as kio names its module, its first and last version, and the first flexible one.
MODULES = {
    "produce": (3, 9, 9),
    "fetch": (4, 12, 12),
    "list_offsets": (1, 6, 6),
    "metadata": (0, 13, 9),
    "offset_commit": (2, 9, 8),
    "offset_fetch": (1, 9, 6),
    "find_coordinator": (0, 4, 3),
    "join_group": (0, 9, 6),
    "heartbeat": (0, 4, 4),
    "leave_group": (0, 5, 4),
    "sync_group": (0, 5, 4),
    "api_versions": (0, 4, 3),
    "create_topics": (2, 6, 5),
    "delete_topics": (1, 5, 4),
    "describe_configs": (1, 4, 4),
    "init_producer_id": (0, 5, 2),
    "describe_groups": (0, 6, 5),
    "list_groups": (0, 5, 3),
    "delete_records": (0, 2, 2),
    "alter_configs": (0, 2, 2),
    "create_partitions": (0, 3, 2),
    "delete_groups": (0, 2, 2),
    "incremental_alter_configs": (0, 1, 1),
    "offset_delete": (0, 0, 1),
    "sasl_handshake": (1, 1, 2),
    "sasl_authenticate": (0, 2, 2),
    "consumer_group_heartbeat": (0, 1, 0),
    "consumer_group_describe": (0, 1, 0),
}


def kinds() -> Iterator[Any]:
    for name, (first, last, flexible) in MODULES.items():
        for version in range(first, last + 1):
            for side in ("request", "response"):
                yield pytest.param(name, version, side, version >= flexible, id=f"{name}-{version}-{side}")


#: Every message by its name, whichever module of `apis` has it.
KINDS = {
    name: kind
    for module in iter_modules(apis.__path__)
    for name, kind in vars(importlib.import_module(f"{apis.__name__}.{module.name}")).items()
    if isinstance(kind, type) and issubclass(kind, Message)
}


def ours(module: str, side: str) -> type[Message]:
    name = "".join(part.title() for part in module.split("_")) + side.title()
    return KINDS[name]


def theirs(module: str, version: int, side: str) -> type[Any]:
    found = importlib.import_module(f"kio.schema.{module}.v{version}.{side}")
    name = "".join(part.title() for part in module.split("_")) + side.title()
    kind: type[Any] = getattr(found, name)
    return kind


def random_entity(kind: type[Any], rng: random.Random) -> Any:
    """Return a message with random values in all but its tagged fields."""
    hints = typing.get_type_hints(kind)
    return kind(
        **{
            field.name: random_value(hints[field.name], rng)
            for field in fields(kind)
            if "tag" not in field.metadata
        }
    )


def random_value(hint: Any, rng: random.Random) -> Any:
    origin = typing.get_origin(hint)
    if origin in (typing.Union, UnionType):
        some = [each for each in typing.get_args(hint) if each is not type(None)]
        return None if rng.random() < 0.3 else random_value(some[0], rng)
    if origin is tuple:
        return tuple(random_value(typing.get_args(hint)[0], rng) for _ in range(rng.randrange(4)))
    hint = getattr(hint, "__supertype__", hint)
    if hint is KioErrorCode:
        return rng.choice(list(KioErrorCode))
    if inspect.isclass(hint):
        if hasattr(hint, "__dataclass_fields__"):
            return random_entity(hint, rng)
        if issubclass(hint, bool):
            return rng.random() < 0.5
        if issubclass(hint, timedelta):
            return timedelta(milliseconds=rng.randrange(1 << 30))
        if issubclass(hint, datetime):
            return datetime.fromtimestamp(rng.randrange(1 << 32), UTC)
        if issubclass(hint, UUID):
            return UUID(bytes=rng.randbytes(16), version=4)
        if issubclass(hint, str):
            return "".join(rng.choice("abcß漢") for _ in range(rng.choice((0, 1, 5, 200))))
        if issubclass(hint, bytes):
            return rng.randbytes(rng.choice((0, 1, 5, 200)))
        if issubclass(hint, int):
            bits = next(
                (bits for bits in (8, 16, 32, 64) if any(f"i{bits}" == k.__name__ for k in hint.__mro__)), 32
            )
            return hint(rng.randrange(-(1 << (bits - 1)), 1 << (bits - 1)))
    raise AssertionError(f"a type this test does not know: {hint}")


@pytest.mark.parametrize(("module", "version", "side", "is_flexible"), list(kinds()))
def test_a_message_matches_kafkas_schema(module: str, version: int, side: str, is_flexible: bool):
    """Messages encoded by another implementation are decoded, and encoded again to the same bytes."""
    kind, kio_kind = ours(module, side), theirs(module, version, side)
    rng = random.Random(f"{module} {version} {side}")
    for _ in range(10):
        entity = random_entity(kio_kind, rng)
        buffer = BytesIO()
        entity_writer(kio_kind)(buffer, entity)
        reader = Reader(buffer.getvalue())
        message = decode(kind, version, is_flexible, reader)
        reader.finish()
        assert encode(message, version, is_flexible) == buffer.getvalue()
        for field in fields(kio_kind):
            if "tag" not in field.metadata and isinstance(getattr(entity, field.name), str | bytes):
                assert getattr(message, field.name) == getattr(entity, field.name)


def test_every_served_version_is_compared():
    served = {api.request.__name__: (api.first, api.last, api.flexible) for api in APIS.values()}
    compared = {ours(module, "request").__name__: versions for module, versions in MODULES.items()}
    assert {name: compared[name] for name in served} == served


@pytest.mark.parametrize("value", [0, 1, -1, 63, 64, -64, -65, 300, 2**31 - 1, -(2**31)])
def test_a_varint_is_read_as_it_was_written(value: int):
    reader = Reader(encode_varint(value))
    assert reader.varint() == value
    reader.finish()


@pytest.mark.parametrize("value", [2**31, 2**63 - 1, -(2**63)])
def test_a_varlong_is_read_as_it_was_written(value: int):
    reader = Reader(encode_varint(value))
    assert reader.varlong() == value


@pytest.mark.parametrize(
    "data",
    [
        b"\xff\xff\xff\xff\x0f",  # 2³²-2 elements: kio aborts here.
        b"\xff" * 10,
        b"\x80" * 6,
        encode_uvarint(ELEMENTS_MAX + 2) + bytes(2 * ELEMENTS_MAX),
        b"\x02\xff\xff\xff\xff\x07ab",
        b"\x02\x03\xff\xfe\x00\x00\x00\x00\x00",
    ],
    ids=["huge array", "endless varint", "long varint", "too many elements", "huge string", "no UTF-8"],
)
def test_a_malformed_message_is_refused_without_memory_for_what_it_announces(data: bytes):
    with pytest.raises(RemoteProtocolError):
        decode(ours("metadata", "request"), 9, True, Reader(data))


def test_unknown_tagged_fields_are_skipped():
    data = b"\x02\x02T\x00\x01\x00\x00" + b"\x02\x07\x03abc\x63\x00"
    request = decode(ours("metadata", "request"), 9, True, Reader(data))
    assert [topic.name for topic in request.topics] == ["T"]
