"""Records that were read from a disk: whole ones pass, and damaged ones are found among them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.message.record import encode_record
from libramq.message.whole_frame import damaged_places, has_whole_frame

V6 = bytes(range(16)) + (10911).to_bytes(4)
START = 4096
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


def test_whole_records_of_every_form_pass():
    data, places = log_of(FORMS)
    assert damaged_places(data, places) == set()


def test_a_record_that_is_cut_off_or_elsewhere_is_damaged():
    data, places = log_of(FORMS)
    assert damaged_places(data[:-1], places) == {places[-1]}
    assert damaged_places(data, places[1:]) == set(places[1:])


@pytest.mark.parametrize("form", FORMS)
@given(place=st.integers(0, 400), value=st.integers(0, 255))
def test_a_changed_byte_is_judged_as_for_a_single_record(form, place, value):
    """The short way for records of the common form, and the long one, find the same."""
    data, places = log_of([form, {}, form])
    changed = bytearray(data)
    changed[place % len(data)] = value
    alone = {
        (offset, size)
        for offset, size in places
        if not has_whole_frame(bytes(changed), offset - START, size, offset)
    }
    assert damaged_places(bytes(changed), places) == alone
