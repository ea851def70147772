"""Decoding into columns gives the same result as decoding record by record."""

import datetime
import itertools
import struct

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.columns.records import COLUMNS, Records, arrow_schema, record_starts
from libramq.errors import RemoteProtocolError
from libramq.message import sys_flag as flags
from libramq.message.compression import compress_body
from libramq.message.ids import encode_offset_id
from libramq.message.record import decode_records, encode_record

EVERYTHING = arrow_schema(COLUMNS)
EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

hosts = st.one_of(st.binary(min_size=8, max_size=8), st.binary(min_size=20, max_size=20))
words = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=9
)
pairs = st.dictionaries(st.sampled_from(["KEYS", "TAGS", "UNIQ_KEY", "a", "KEYS2", "TAG"]) | words, words)
millis = st.integers(0, 4_000_000_000_000)


@st.composite
def property_texts(draw: st.DrawFn) -> bytes:
    """Return a strategy for texts of properties: what brokers store, what old ones stored (no last
    separator), and what none should have stored.
    """
    kind = draw(st.integers(0, 3))
    if kind == 3:
        return draw(st.text(st.sampled_from("\x01\x02ab"), max_size=20)).encode()
    text = "".join(f"{name}\x01{value}\x02" for name, value in draw(pairs).items())
    return (text[:-1] if kind == 2 else text).encode()


@st.composite
def records(draw: st.DrawFn) -> bytes:
    body = draw(st.binary(max_size=40))
    way = draw(st.sampled_from([None, None, None, flags.COMPRESSION_ZLIB, flags.COMPRESSION_UNNAMED]))
    return encode_record(
        topic=draw(st.sampled_from(["T", "Flights", "日本", "x" * 127, "x" * 128, "%RETRY%" + "g" * 200])),
        queue_id=draw(st.integers(0, 2**31 - 1)),
        queue_offset=draw(st.integers(0, 2**63 - 1)),
        physical_offset=draw(st.integers(0, 2**63 - 1)),
        body=body if way is None else compress_body(body, way),
        properties=draw(property_texts()),
        flag=draw(st.integers(-(2**31), 2**31 - 1)),
        sys_flag=0 if way is None else flags.COMPRESSED | way,
        born_timestamp_ms=draw(millis),
        born_host=draw(hosts),
        store_timestamp_ms=draw(millis),
        store_host=draw(hosts),
        reconsume_times=draw(st.integers(0, 2**31 - 1)),
    )


def test_no_records_make_an_empty_batch():
    batch = Records(b"").batch([], EVERYTHING)
    assert batch.num_rows == 0
    assert batch.schema == EVERYTHING


@given(st.lists(records(), min_size=1, max_size=8))
def test_columns_equal_the_decoded_messages(stored: list[bytes]):
    data = b"".join(stored)
    batch = Records(data).batch([("broker-a", len(data))], EVERYTHING)
    batch.validate(full=True)
    assert batch.schema == EVERYTHING
    messages = decode_records(data)
    store_hosts = [
        record[start : start + (20 if message.sys_flag & flags.STORE_HOST_V6 else 8)]
        for record, message in zip(stored, messages, strict=True)
        for start in [76 if message.sys_flag & flags.BORN_HOST_V6 else 64]
    ]
    rows = batch.to_pylist()
    for row, message, store_host in zip(rows, messages, store_hosts, strict=True):
        row["properties"] = dict(row["properties"])
        assert row == {
            "topic": message.topic,
            "broker": "broker-a",
            "queueId": message.queue_id,
            "offset": message.queue_offset,
            "timestamp": EPOCH + datetime.timedelta(milliseconds=message.store_timestamp_ms),
            "bornTimestamp": EPOCH + datetime.timedelta(milliseconds=message.born_timestamp_ms),
            "key": message.properties.get("KEYS"),
            "tag": message.properties.get("TAGS"),
            "msgId": message.properties.get("UNIQ_KEY")
            or encode_offset_id(store_host, message.physical_offset),
            "body": message.body,
            "reconsumeTimes": message.reconsume_times,
            "properties": dict(message.properties),
        }


def plain_record(properties: bytes = b"", body: bytes = b"hello", **fields: object) -> bytes:
    return encode_record(
        topic="T",
        queue_id=0,
        queue_offset=5,
        physical_offset=0,
        body=body,
        properties=properties,
        **fields,
    )  # type: ignore[arg-type]


def test_invalid_utf8_does_not_stop_a_batch():
    data = plain_record(b"TAGS\x01\xff\xfe\x02") + plain_record(b"TAGS\x01fine\x02")
    assert Records(data).batch([("b", len(data))], arrow_schema(["tag"]))["tag"].to_pylist() == [
        "\ufffd\ufffd",
        "fine",
    ]


def test_a_body_that_cannot_be_decompressed_does_not_stop_a_stream(caplog):
    """Otherwise the batch would fail again at every start. Parsers have rules for bodies that they cannot
    parse.
    """
    data = plain_record() + plain_record(sys_flag=flags.COMPRESSED) + plain_record()
    batch = Records(data).batch([("b", len(data))], arrow_schema(["body"]))
    assert batch["body"].to_pylist() == [b"hello"] * 3
    assert "cannot be decompressed" in caplog.text


@pytest.mark.parametrize("end", [b"\x02", b""], ids=["closed", "as Java leaves them"])
def test_properties_at_equal_places_are_found(end: bytes):
    rows = [b"KEYS\x01k%d\x02TAGS\x01t%d\x02WAIT\x01true" % (row, row) + end for row in (1, 22, 333)]
    data = b"".join(plain_record(row) for row in rows)
    batch = Records(data).batch([("b", len(data))], arrow_schema(["key", "tag", "properties"]))
    assert batch["key"].to_pylist() == ["k1", "k22", "k333"]
    assert batch["tag"].to_pylist() == ["t1", "t22", "t333"]
    assert [dict(row)["WAIT"] for row in batch["properties"].to_pylist()] == ["true"] * 3


@pytest.mark.parametrize(
    ("rows", "tags"),
    [
        ([b"KEYS\x01a\x02TAGS\x01b\x02", b"TAGS\x01c\x02KEYS\x01d\x02"], ["b", "c"]),
        ([b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS\x01c\x02KEYS\x01d\x02"], ["b", "c"]),
        ([b"TAGS\x01a\x02TAGS\x01b\x02", b"TAGS\x01c\x02TAGS\x01d\x02"], ["b", "d"]),
        ([b"TAGS\x01a\x02LONGER\x01b\x02", b"TAGS\x01c\x02TAGS\x01d\x02"], ["a", "d"]),
        ([b"TAGS\x01a\x02X\x01b\x02Y\x01c\x02", b"TAGS\x01d\x02"], ["a", "d"]),
        ([b"TAGS\x01a\x02X\x01b", b"X\x01c\x02TAGS\x01d\x02"], ["a", "d"]),
        ([b"KEYS\x01a\x02", b"KEYS\x01b\x02"], [None, None]),
    ],
)
def test_properties_at_different_places_are_found(rows: list[bytes], tags: list[str | None]):
    data = b"".join(plain_record(row) for row in rows)
    batch = Records(data).batch([("b", len(data))], arrow_schema(["tag"]))
    assert batch["tag"].to_pylist() == tags


def test_any_born_timestamp_is_read():
    data = plain_record(born_timestamp_ms=2**63 - 1)
    column = Records(data).batch([("b", len(data))], arrow_schema(["bornTimestamp"]))["bornTimestamp"]
    assert column.cast(pa.int64()).to_pylist()[0] > 0


def test_records_of_several_brokers_are_decoded():
    data = plain_record() * 3
    ends = [("a", len(data) // 3), ("b", len(data) // 3), ("c", len(data))]
    assert Records(data).batch(ends, arrow_schema(["broker"]))["broker"].to_pylist() == ["a", "c", "c"]


def test_only_the_columns_of_the_schema_are_made():
    batch = Records(plain_record()).batch([], arrow_schema(["offset", "body"]))
    assert batch.to_pylist() == [{"offset": 5, "body": b"hello"}]


@pytest.mark.parametrize("cut", [1, 3, 50, 90])
def test_a_torn_tail_is_refused(cut: int):
    data = plain_record() * 2
    with pytest.raises(RemoteProtocolError):
        Records(data[:-cut])


@pytest.mark.parametrize("size", [0, 8, 90, 2**31, 2**32 - 1])
def test_an_impossible_size_is_refused(size: int):
    record = plain_record()
    with pytest.raises(RemoteProtocolError):
        Records(record + struct.pack(">I", size) + record[4:] + record)


def test_an_inner_batch_is_refused():
    with pytest.raises(RemoteProtocolError, match="BatchCQ"):
        Records(plain_record(sys_flag=flags.INNER_BATCH))


@given(st.integers(0, 109), st.integers(0, 255))
def test_a_flipped_byte_is_refused_or_read_but_never_read_outside(place: int, value: int):
    record = plain_record(b"KEYS\x01k\x02TAGS\x01t\x02")
    data = bytearray(record * 3)
    data[len(record) + place % len(record)] = value
    try:
        batch = Records(bytes(data)).batch([("b", len(data))], EVERYTHING)
    except RemoteProtocolError:
        return
    batch.validate(full=True)


def test_starts_are_the_running_sum_of_the_sizes():
    stored = [plain_record(b"a\x01" + b"v" * count + b"\x02") for count in range(1, 20)]
    sizes = [len(record) for record in stored]
    assert record_starts(b"".join(stored)).tolist() == [0, *itertools.accumulate(sizes)][:-1]


@pytest.mark.parametrize("properties", [b"", bytes(1_000)])
def test_records_of_one_size_are_found_by_dividing(properties: bytes, monkeypatch):
    """Following the sizes of 1 MiB takes a tenth of a consumer's time."""
    data = plain_record(properties) * 20
    for other in ("_marked_starts", "_followed_starts"):
        monkeypatch.setattr(f"libramq.columns.records.{other}", None)
    assert record_starts(data).tolist() == list(range(0, len(data), len(data) // 20))


def test_bodies_that_look_like_records_are_not_records():
    """A body may contain the magic number of a record, or even a whole record."""
    inner = plain_record(b"")
    stored = [
        encode_record(topic="T", queue_id=0, queue_offset=n, physical_offset=n, body=body, properties=b"")
        for n, body in enumerate([inner[4:8], inner, inner * 3, b"x"])
    ]
    data = b"".join(stored)
    sizes = [len(record) for record in stored]
    assert record_starts(data).tolist() == [0, *itertools.accumulate(sizes)][:-1]
    bodies = Records(data).batch([("b", len(data))], arrow_schema(["body"])).column("body").to_pylist()
    assert bodies == [inner[4:8], inner, inner * 3, b"x"]


@pytest.mark.parametrize("cut", [1, 3, 50])
def test_bytes_that_end_inside_a_record_are_refused(cut: int):
    data = plain_record(b"") * 3
    with pytest.raises(RemoteProtocolError, match=r"ends inside a record|bytes at"):
        record_starts(data[:-cut])


@given(
    st.binary(max_size=6),
    st.binary(max_size=6),
    st.integers(0, 20),
    st.binary(min_size=1, max_size=1),
    st.booleans(),
)
def test_records_that_differ_in_one_byte_of_their_properties_are_decoded_as_alone(
    name: bytes, value: bytes, place: int, other: bytes, has_longer_body: bool
):
    """Texts of one size may differ inside a value, in a name, or by a separator."""
    text = b"TAGS\x01" + value + b"\x02" + name + b"\x01KEYS\x02KEYS\x01x\x02"
    changed = text[: place % len(text)] + other + text[place % len(text) + 1 :]
    stored = [plain_record(each) for each in [text] * 5 + [changed] + [text] * 5]
    if has_longer_body:
        stored[3] = plain_record(text, b"longer than others")
    columns = arrow_schema(["tag", "key", "properties"])
    alone = [Records(each).batch([("b", len(each))], columns) for each in stored]
    data = b"".join(stored)
    together = Records(data).batch([("b", len(data))], columns)
    together.validate(full=True)
    assert together.to_pylist() == pa.Table.from_batches(alone).to_pylist()
