"""Records that were read from a disk: whole ones pass, and damaged ones are found among them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.message.record import (
    ALIKE_CHECKED_MIN,
    STRIDES_MIN,
    damaged_places,
    encode_record,
    has_whole_frame,
)

V6 = bytes(range(16)) + (10911).to_bytes(4)
START = 4096
ALIKE = [{}] * ALIKE_CHECKED_MIN
MANY = [{}] * (STRIDES_MIN + 4)
FORMS = ({}, {"born_host": V6}, {"topic": "t" * 128}, {"body": b""}, {"properties": b""})


def log_of(forms):
    """The bytes of neighbouring records, and their places."""
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
    """The short ways for records that are alike or of the common form, and the long one, find the same."""
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
    """What is left for its properties is more than their length can say."""
    data, places = log_of([{"body": bytes(70_000)}] * len(ALIKE))
    length_at = places[number][0] - START + 84
    changed = data[:length_at] + bytes(4) + data[length_at + 4 :]
    assert damaged(changed, places) == {places[number]}


def test_records_of_one_size_may_differ_in_their_parts():
    """The longer body of one makes up for its shorter properties."""
    data, places = log_of([*ALIKE, {"body": b"bodies", "properties": b"A\x02"}])
    assert len({size for _, size in places}) == 1
    assert damaged(data, places) == set()
