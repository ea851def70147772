"""The record and the batch item: vectors, round trips, and invalid data from peers."""

import contextlib
import random
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import BodyDamaged, InvalidMessage, RemoteProtocolError, StoreCorrupt
from libramq.message import (
    BatchItem,
    decode_batch,
    decode_record,
    decode_records,
    encode_batch,
    encode_record,
)
from libramq.message import sys_flag as flags
from libramq.message.compression import DECOMPRESSED_BYTES_MAX, compress_body, decompress_body
from libramq.message.ids import encode_host
from libramq.message.properties import decode_properties, encode_properties, find_property
from libramq.message.record import (
    ALIKE_CHECKED_MIN,
    ALIKE_MIN,
    GROUP,
    STRIDES_MIN,
    damaged_places,
    decode_alike,
    encode_message,
    has_good_crc,
    has_whole_frame,
    peek_record,
    record_size,
)

# store.md §24, computed there from the rules of MessageDecoder.java.
RECORD = bytes.fromhex(
    "00000068 daa320a7 3610a686 00000003 00000000 0000000000000007 00000000000003e8 00000000"
    "0000018bcfe56800 7f00000100001388 0000018bcfe56801 7f00000100002a9f 00000000 0000000000000000"
    "00000005 68656c6c6f 01 54 0007 54414753014102"
)
ITEM = bytes.fromhex("0000001f000000000000000000000000000000026869000754414753014102")

names = st.text(string.ascii_letters + string.digits + "%|_-", min_size=1, max_size=200)
texts = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x00\x01\x02"), min_size=1, max_size=20
)
i32 = st.integers(-(1 << 31), (1 << 31) - 1)
i64 = st.integers(-(1 << 63), (1 << 63) - 1)
hosts = st.tuples(st.ip_addresses().map(str), st.integers(0, 65535))
records = st.fixed_dictionaries(
    {
        "topic": names,
        "queue_id": i32,
        "queue_offset": i64,
        "physical_offset": i64,
        "body": st.binary(max_size=300),
        "properties": st.dictionaries(texts, texts, max_size=4).map(encode_properties),
        "flag": i32,
        "sys_flag": st.sampled_from([0, 2, 4, 8, 0xC, 0xC0]),
        "born_timestamp_ms": i64,
        "born_host": hosts.map(encode_host),
        "store_timestamp_ms": i64,
        "store_host": hosts.map(encode_host),
        "reconsume_times": i32,
        "prepared_transaction_offset": i64,
    }
)


def test_the_vector_is_read_and_written():
    decoded = decode_record(RECORD)
    assert decoded is not None
    message, end = decoded
    assert end == 104
    assert (message.topic, message.queue_id, message.queue_offset) == ("T", 3, 7)
    assert (message.physical_offset, message.store_size, message.body) == (1000, 104, b"hello")
    assert message.born_host == ("127.0.0.1", 5000)
    assert message.store_host == ("127.0.0.1", 10911)
    assert (message.born_timestamp_ms, message.store_timestamp_ms) == (1700000000000, 1700000000001)
    assert message.body_crc == 907060870
    assert message.tags == "A"
    assert message.message_id == "7F00000100002A9F00000000000003E8"
    assert encode_message(message) == RECORD


@given(records)
def test_records_round_trip(fields):
    """Both topic lengths, both host lengths, any numbers."""
    data = encode_record(**fields)
    decoded = decode_record(data + b"\0\0\0", 0, check_crc=True)
    assert decoded is not None
    message, end = decoded
    assert end == len(data) == message.store_size
    assert len(data) == record_size(
        fields["topic"], len(fields["body"]), len(fields["properties"]), message.sys_flag
    )
    for name in ("topic", "queue_id", "queue_offset", "physical_offset", "body", "flag", "reconsume_times"):
        assert getattr(message, name) == fields[name], name
    assert encode_host(message.born_host) == fields["born_host"]
    assert message.properties == decode_properties(fields["properties"])
    assert encode_message(message) == data
    head = peek_record(data)
    assert head is not None
    assert has_good_crc(data, head)
    assert head[3:8] == (
        message.queue_id, message.queue_offset, message.physical_offset, message.sys_flag,
        message.store_timestamp_ms,
    )  # fmt: skip
    assert (head.topic, head.properties) == (fields["topic"], fields["properties"])


@pytest.mark.parametrize(
    ("body", "sys_flag"),
    [
        (b"no zlib", flags.COMPRESSED),
        (b"no zlib", flags.COMPRESSED | flags.COMPRESSION_ZLIB),
        (compress_body(b"cut short" * 100)[:-3], flags.COMPRESSED),
        (compress_body(bytes(DECOMPRESSED_BYTES_MAX + 1)), flags.COMPRESSED),
        (b"who knows", flags.COMPRESSED | flags.COMPRESSION_MASK),
    ],
    ids=["garbage", "zlib garbage", "cut short", "a bomb", "an unknown algorithm"],
)
def test_an_invalid_compressed_body_does_not_stop_the_other_messages(caplog, body, sys_flag):
    """Any producer can send one, and no group could read its queue any more."""
    fields = {"topic": "T", "queue_id": 0, "physical_offset": 0, "properties": b""}
    broken = encode_record(**fields, queue_offset=1, body=body, sys_flag=sys_flag)
    good = encode_record(**fields, queue_offset=2, body=compress_body(b"good"), sys_flag=flags.COMPRESSED)
    messages = decode_records(RECORD + broken + good)
    assert [message.body for message in messages] == [b"hello", body, b"good"]
    assert "its body cannot be decompressed" in caplog.text


def test_a_record_is_none_until_it_is_whole():
    for end in range(len(RECORD)):
        assert decode_record(RECORD[:end]) is None
        assert peek_record(RECORD[:end]) is None
    with pytest.raises(RemoteProtocolError, match="cut off"):
        decode_records(RECORD + RECORD[:-1])
    assert len(decode_records(RECORD * 3)) == 3


@given(st.binary(max_size=200), st.data())
def test_garbage_raises_the_typed_error_and_nothing_else(garbage, data):
    """Random bytes, and valid records with a few bytes changed."""
    changed = bytearray(RECORD)
    for _ in range(data.draw(st.integers(1, 4))):
        changed[data.draw(st.integers(0, len(RECORD) - 1))] = data.draw(st.integers(0, 255))
    for candidate in (garbage, RECORD[:8] + garbage, bytes(changed)):
        for decode, error in ((decode_record, RemoteProtocolError), (peek_record, StoreCorrupt)):
            with contextlib.suppress(error):
                decode(candidate)


def test_a_flipped_byte_of_the_body_is_detected_on_request():
    changed = bytearray(RECORD)
    changed[88] ^= 1
    assert decode_record(bytes(changed)) is not None
    with pytest.raises(RemoteProtocolError, match="checksum"):
        decode_record(bytes(changed), check_crc=True)


def test_long_topics_have_two_length_bytes():
    short = encode_record(
        topic="t" * 127, queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=b""
    )
    long = encode_record(
        topic="t" * 128, queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=b""
    )
    assert short[4:8].hex() == "daa320a7"
    assert long[4:8].hex() == "daa320ab"
    assert len(long) == len(short) + 2


def test_properties_that_do_not_fit_are_refused():
    with pytest.raises(InvalidMessage, match="32768 bytes of properties"):
        encode_record(
            topic="t", queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=b"p" * 32768
        )


@pytest.mark.parametrize(
    "compression",
    [flags.COMPRESSION_UNNAMED, flags.COMPRESSION_ZLIB, flags.COMPRESSION_LZ4, flags.COMPRESSION_ZSTD],
)
def test_a_compressed_body_round_trips(compression):
    if compression == flags.COMPRESSION_LZ4:
        pytest.importorskip("lz4")
    if compression == flags.COMPRESSION_ZSTD:
        pytest.importorskip("zstandard")
    body = b"flight " * 1000
    packed = compress_body(body, compression)
    assert len(packed) < len(body)
    sys_flag = flags.COMPRESSED | compression
    data = encode_record(
        topic="t",
        queue_id=0,
        queue_offset=0,
        physical_offset=0,
        body=packed,
        properties=b"",
        sys_flag=sys_flag,
    )
    decoded = decode_record(data)
    raw = decode_record(data, decompress=False)
    assert decoded is not None
    assert raw is not None
    assert (decoded[0].body, raw[0].body) == (body, packed)
    with pytest.raises(RemoteProtocolError, match="unpacks to more"):
        decompress_body(packed, sys_flag, bytes_max=6999)
    assert decompress_body(packed, sys_flag, bytes_max=7000) == body
    for broken in (packed[:-5], b"nonsense"):
        if compression == flags.COMPRESSION_ZSTD and broken != b"nonsense":
            continue  # Its reader takes an early end for the end of the data.
        with pytest.raises(RemoteProtocolError):
            decompress_body(broken, sys_flag)


def test_the_batch_vector_is_read_and_written():
    item = BatchItem(0, b"hi", b"TAGS\x01A\x02")
    assert encode_batch([item]) == ITEM
    assert decode_batch(ITEM * 2) == [item, item]
    for end in range(1, len(ITEM)):
        for cut_off in (ITEM[:end], ITEM + ITEM[:end]):
            with pytest.raises(RemoteProtocolError):
                decode_batch(cut_off)


@given(st.lists(st.tuples(i32, st.binary(max_size=50), st.binary(max_size=50)).map(lambda t: BatchItem(*t))))
def test_batches_round_trip(items):
    assert decode_batch(encode_batch(items)) == items


@given(st.binary(max_size=100))
def test_garbage_for_a_batch_raises_the_typed_error_and_nothing_else(garbage):
    with contextlib.suppress(RemoteProtocolError):
        decode_batch(garbage)


@given(st.dictionaries(texts, texts, max_size=6))
def test_properties_round_trip_and_are_found_singly(properties):
    data = encode_properties(properties)
    assert decode_properties(data) == properties
    assert decode_properties(data.removesuffix(b"\x02")) == properties
    for name, value in properties.items():
        assert find_property(data, name.encode()) == value.encode()


def test_pairs_with_an_empty_half_vanish():
    assert decode_properties(b"a\x01\x02b\x01c\x02\x01d\x02e\x02f\x01g\x01h") == {"b": "c", "f": "g\x01h"}
    assert encode_properties({"a": "", "b": "c"}) == b"b\x01c\x02"
    assert find_property(b"ab\x011\x02b\x012\x02", b"b") == b"2"
    assert find_property(b"ab\x011\x02", b"b") is None


def test_random_seeded_records_survive_being_fed_in_pieces():
    rng = random.Random(7)
    stream = b"".join(
        encode_record(
            topic="t" * rng.randint(1, 140), queue_id=i, queue_offset=i, physical_offset=i,
            body=rng.randbytes(rng.randint(0, 80)), properties=b"",
        )
        for i in range(40)
    )  # fmt: skip
    buffer, seen = b"", []
    for position in range(len(stream)):
        buffer += stream[position : position + 1]
        if (decoded := decode_record(buffer)) is not None:
            seen.append(decoded[0].queue_id)
            buffer = buffer[decoded[1] :]
    assert seen == list(range(40))
    assert not buffer


@pytest.mark.parametrize("queue_id", [0, 7, 70_000, -1])
def test_the_queue_of_a_message_is_read_without_decoding_its_head(queue_id):
    """Simple consumers read it for every message; decoding the head takes half a kilobyte more."""
    record = encode_record(
        topic="T", queue_id=queue_id, queue_offset=1, physical_offset=2, body=b"x", properties=b""
    )
    (message,) = decode_records(record)
    assert message.queue_id == queue_id
    assert message.as_stored() is not None
    assert message.flag == 0
    assert message.queue_id == queue_id


def test_records_of_several_topics_are_read_as_each_alone():
    """Records whose topic and properties have the same total size differ in how that is divided."""
    records = [
        encode_record(
            topic=topic, queue_id=1, queue_offset=number, physical_offset=number, body=bytes(number),
            properties=properties,
        )
        for number, (topic, properties) in enumerate([("Ab", b"k\x01vvv\x02"), ("Abc", b"k\x01vv\x02")] * 2)
    ]  # fmt: skip
    assert decode_records(b"".join(records)) == [decode_record(each)[0] for each in records]
    damaged = bytearray(records[2])
    damaged[-len(b"k\x01vvv\x02") - 1] += 1
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        decode_records(b"".join([records[0], bytes(damaged)]))


COUNTS = (ALIKE_MIN, GROUP, GROUP + 1, 3 * GROUP + 5)
#: Positions in a head at which similar records agree.
MAGIC, SYS_FLAG, BODY_BYTES = 4, 36, 84


PROPERTIES = b"TAGS\x01A\x02"


def one(offset: int, *, topic: str = "T", body_bytes: int = 40, properties: bytes = PROPERTIES) -> bytes:
    return encode_record(
        topic=topic, queue_id=3, queue_offset=offset, physical_offset=offset * 1_000,
        body=bytes([offset % 256]) * body_bytes, properties=properties, reconsume_times=offset % 5,
        born_timestamp_ms=offset,
    )  # fmt: skip


def one_by_one(data: bytes) -> list:
    messages, start = [], 0
    while start < len(data):
        message, start = decode_record(data, start)
        messages.append(message)
    return messages


def alike(data: bytes) -> list | None:
    first, _ = decode_record(data)
    between = bytes([len(first.topic)]) + first.topic.encode() + len(PROPERTIES).to_bytes(2)
    added = {"MIN_OFFSET": "0"}
    return decode_alike(data, len(first.body), (between, first.topic), "b", added, check_crc=True)


@pytest.mark.parametrize("count", COUNTS)
def test_similar_records_decode_as_they_do_one_by_one(count):
    data = b"".join([one(1 << 33 | number) for number in range(count)])
    together, wanted = alike(data), one_by_one(data)
    assert decode_records(data, check_crc=True) == wanted
    for message in wanted:
        message.broker_name = "b"
        message.add_properties({"MIN_OFFSET": "0"})
    assert together == wanted
    as_stored = [each.as_stored() for each in one_by_one(data)]
    assert [each.as_stored() for each in decode_records(data)] == as_stored


@pytest.mark.parametrize(
    "other",
    [
        one(7, topic="U"),
        one(7, topic="UV", body_bytes=39),
        one(7, body_bytes=41, properties=b"TAG\x01A\x02"),
        one(7, body_bytes=39, properties=b"TAGSS\x01A\x02"),
    ],
    ids=["topic", "longer topic", "longer body", "longer properties"],
)
@pytest.mark.parametrize("place", [1, GROUP, 2 * GROUP])
def test_one_record_of_the_same_size_that_differs_is_not_alike(other, place):
    records = [one(number) for number in range(2 * GROUP + 1)]
    records[place] = other
    data = b"".join(records)
    assert len(other) == len(records[0])
    assert alike(data) is None
    assert decode_records(data, check_crc=True) == one_by_one(data)


@pytest.mark.parametrize("at", [0, MAGIC + 3, SYS_FLAG + 3, BODY_BYTES + 3, BODY_BYTES + 4 + 40])
@pytest.mark.parametrize("place", [1, GROUP, 2 * GROUP])
def test_a_record_that_is_broken_is_found_as_one_by_one(at, place):
    record = len(one(0))
    data = bytearray(b"".join([one(number) for number in range(2 * GROUP + 1)]))
    data[place * record + at] ^= 0x10
    assert alike(bytes(data)) is None
    with pytest.raises(RemoteProtocolError) as together:
        decode_records(bytes(data))
    with pytest.raises(RemoteProtocolError) as by_one:
        decode_records(bytes(data[place * record :]))
    assert type(together.value) is type(by_one.value)


@pytest.mark.parametrize("place", [0, 1, GROUP, 2 * GROUP])
def test_the_damaged_body_is_named(place):
    record = len(one(0))
    data = bytearray(b"".join([one(number) for number in range(2 * GROUP + 1)]))
    data[place * record + BODY_BYTES + 4] ^= 1
    with pytest.raises(BodyDamaged, match=f"offset {place} "):
        decode_records(bytes(data), check_crc=True)
    assert len(decode_records(bytes(data))) == 2 * GROUP + 1


V6 = bytes(range(16)) + (10911).to_bytes(4)
START = 4096
ALIKE = [{}] * ALIKE_CHECKED_MIN
MANY = [{}] * (STRIDES_MIN + 4)
FORMS = ({}, {"born_host": V6}, {"topic": "t" * 128}, {"body": b""}, {"properties": b""})


def log_of(forms):
    """Return the bytes of adjacent records, and their places."""
    data, places = b"", []
    for number, form in enumerate(forms):
        offset = START + len(data)
        fields = {"topic": "T", "body": b"body", "properties": b"A\x01b\x02"} | form
        record = encode_record(queue_id=0, queue_offset=number, physical_offset=offset, **fields)
        places.append((offset, len(record)))
        data += record
    return data, places


def damaged(data, places):
    offsets, sizes = zip(*places, strict=True)
    return damaged_places(data, offsets, sizes)


@pytest.mark.parametrize("forms", [FORMS, ALIKE, MANY, *([form] * ALIKE_CHECKED_MIN for form in FORMS)])
def test_whole_records_of_every_form_pass(forms):
    data, places = log_of(forms)
    assert damaged(data, places) == set()


def test_a_record_that_is_cut_off_or_elsewhere_is_damaged():
    for forms in (FORMS, ALIKE, MANY):
        data, places = log_of(forms)
        assert damaged(data[:-1], places) == {places[-1]}
        assert damaged(data, places[1:]) == set(places[1:])


@pytest.mark.parametrize("forms", [*([form, {}, form] for form in FORMS), ALIKE, MANY])
@given(place=st.integers(0, 8_000), value=st.integers(0, 255))
def test_a_changed_byte_is_judged_as_for_a_single_record(forms, place, value):
    """The fast paths, for similar records or the common form, and the slow path find the same damage."""
    data, places = log_of(forms)
    changed = bytearray(data)
    changed[place % len(data)] = value
    alone = {
        (offset, size)
        for offset, size in places
        if not has_whole_frame(bytes(changed), offset - START, size, offset)
    }
    assert damaged(bytes(changed), places) == alone


@pytest.mark.parametrize("number", [0, 1, len(ALIKE) - 1])
def test_a_large_record_whose_body_is_said_to_be_short_is_damaged(number):
    """The rest that remains for its properties exceeds the maximum of their length field."""
    data, places = log_of([{"body": bytes(70_000)}] * len(ALIKE))
    length_at = places[number][0] - START + 84
    changed = data[:length_at] + bytes(4) + data[length_at + 4 :]
    assert damaged(changed, places) == {places[number]}


def test_records_of_one_size_may_differ_in_their_parts():
    """A record's longer body makes up for its shorter properties."""
    data, places = log_of([*ALIKE, {"body": b"bodies", "properties": b"A\x02"}])
    assert len({size for _, size in places}) == 1
    assert damaged(data, places) == set()
