"""Records that are all alike are decoded together, to what they are one by one; others are left to that."""

import pytest

from libramq.errors import BodyDamaged, RemoteProtocolError
from libramq.message import decode_record, decode_records, encode_record
from libramq.message.record import ALIKE_MIN, GROUP, decode_alike

COUNTS = (ALIKE_MIN, GROUP, GROUP + 1, 3 * GROUP + 5)
#: Where a head has what alike records agree in.
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
def test_alike_records_are_what_they_are_one_by_one(count):
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
