"""Plain JSON: the same text as the dialect's writer makes of the same document, member by member."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from libramq.formats import fastjson
from libramq.formats.document import Document, encode_body
from libramq.formats.fastjson import encode_plain
from libramq.formats.route import BrokerData, TopicRouteData

#: Texts that look like members, within and at the ends of texts.
TEXTS = st.text() | st.lists(
    st.sampled_from(['"', "\\", ",", "{", "}", ":null", "null", "name", ",", "\x7f", "\u2028", "é"])
).map("".join)


class Inner(Document, frozen=True):
    name: str | None = None
    last_name: str | None = None
    count: int = 0


class Outer(Document, frozen=True):
    zone: str | None = None
    inner: Inner | None = None
    table: Mapping[str, Inner | None] = {}
    texts: Sequence[str] = ()
    is_good: bool | None = None
    first: Inner | None = None


class Numbered(Document, frozen=True):
    addresses: Mapping[int, str]
    zone: str | None = None


class Loose(Document, frozen=True):
    share: float


INNER = st.builds(
    Inner, name=st.none() | TEXTS, last_name=st.none() | TEXTS, count=st.integers(-(2**63), 2**63 - 1)
)
OUTER = st.builds(
    Outer,
    zone=st.none() | TEXTS,
    inner=st.none() | INNER,
    table=st.dictionaries(TEXTS, st.none() | INNER, max_size=3),
    texts=st.lists(TEXTS, max_size=3),
    is_good=st.none() | st.booleans(),
    first=st.none() | INNER,
)


def expected(value: msgspec.Struct, *, ascii_only: bool = False) -> bytes:
    """Return what the standard library makes of a document without its nulls."""
    plain = without_nulls(msgspec.to_builtins(value, str_keys=True))
    return json.dumps(plain, sort_keys=True, separators=(",", ":"), ensure_ascii=ascii_only).encode()


def without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_nulls(member) for key, member in value.items() if member is not None}
    return [without_nulls(each) for each in value] if isinstance(value, list | tuple) else value


@given(OUTER)
def test_documents_are_the_standard_librarys_without_nulls(value: Outer) -> None:
    """A plain document equals the standard library's, in the dialect and as standard JSON."""
    assert encode_body(value) == expected(value)
    assert fastjson.dumps_standard(value) == expected(value, ascii_only=True)


def test_null_members_are_left_out_wherever_they_are() -> None:
    """The first, the last, all of them: no comma is left over."""
    assert encode_plain(Inner()) == b'{"count":0}'
    assert encode_body(Outer(texts=("null", ":null"))) == b'{"table":{},"texts":["null",":null"]}'
    assert encode_plain(Outer(inner=Inner(name="{"), first=Inner(last_name=","))) == (
        b'{"first":{"count":0,"lastName":","},"inner":{"count":0,"name":"{"},"table":{},"texts":[]}'
    )


def test_a_null_member_whose_name_has_a_quote_is_left_out_whole() -> None:
    """What follows the quote looks like a name of its own."""
    assert encode_body(Outer(table={'a"name': None, 'b,"name': None})) == b'{"table":{},"texts":[]}'


def test_what_is_not_plain_is_left_to_the_dialects_writer() -> None:
    """Whole numbers as keys are unquoted in the dialect, and fractions are written as Python does."""
    assert encode_plain(Numbered(addresses={0: "a"})) is None
    assert encode_body(Numbered(addresses={0: "a"})) == b'{"addresses":{0:"a"}}'
    assert (
        fastjson.dumps_standard(Numbered(addresses={10: "b", 9: "a"})) == b'{"addresses":{"10":"b","9":"a"}}'
    )
    assert encode_plain(Loose(share=1e16)) is None
    assert encode_body(Loose(share=1e16)) == b'{"share":1e+16}'


def test_a_route_is_standard_json_in_one_go() -> None:
    """A name server's most frequent answer is plain once its keys are texts, whatever its mappings are."""
    broker = BrokerData(cluster="c", broker_name="b", broker_addrs={0: "a:1", 1: "b:1"})
    route = TopicRouteData(
        broker_datas=[broker], topic_queue_mapping_by_broker={"b": {"epoch": 1, "x": None}}
    )
    assert encode_plain(msgspec.to_builtins(route, str_keys=True), TopicRouteData) == expected(route)
    assert fastjson.dumps_standard(route) == expected(route)
