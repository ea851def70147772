"""The columns of a batch's messages equal decoding them one by one, for even runs and any others."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import RemoteProtocolError
from libramq.message.batch import (
    EVEN_ITEMS_MIN,
    BatchItem,
    decode_columns,
    decode_items,
    encode_batch,
    encode_batch_item,
)

MANY = 10_000
BYTES = 1 << 30


def columns_of(data, count_max=MANY, bytes_max=BYTES, start=0):
    """Return the items as decoded by columns, and where the next one begins."""
    columns, end = decode_columns(data, start, count_max, bytes_max)
    return list(zip(*columns, strict=True)), end


def all_of(data):
    """Return all items of a batch, decoded by columns."""
    found, start = [], 0
    while start < len(data):
        some, start = columns_of(data, start=start)
        found += some
    return found


even = st.tuples(st.integers(0, 60), st.integers(0, 9), st.integers(1, 60)).flatmap(
    lambda sizes: st.lists(
        st.builds(
            BatchItem,
            st.just(7),
            st.binary(min_size=sizes[0], max_size=sizes[0]),
            st.binary(min_size=sizes[1], max_size=sizes[1]),
        ),
        min_size=sizes[2],
        max_size=sizes[2],
    )
)
any_items = st.lists(st.builds(BatchItem, st.integers(0, 2), st.binary(max_size=3), st.binary(max_size=2)))


@given(even, any_items, st.integers(1, 70))
def test_columns_have_the_items_of_a_batch(items, others, count_max):
    data = encode_batch([*items, *others])
    found, start = [], 0
    while start < len(data):
        some, start = columns_of(data, count_max, start=start)
        assert 0 < len(some) <= count_max
        found += some
    assert found == [*items, *others]


@given(even, st.integers(0, 10_000), st.integers(0, 255))
def test_a_changed_byte_has_the_same_effect_as_on_items_one_by_one(items, at, value):
    data = bytearray(encode_batch(items))
    data[at % len(data)] = value
    try:
        expected = decode_items(bytes(data), 0, MANY)
    except RemoteProtocolError as error:
        with pytest.raises(RemoteProtocolError, match=str(error)):
            all_of(bytes(data))
    else:
        assert all_of(bytes(data)) == expected[0]


@pytest.mark.parametrize("last", [b"body", b"longer"])
def test_no_more_bytes_than_wanted_are_decoded_at_once(last):
    item = encode_batch_item(0, b"body", b"")
    data = item * 100 + encode_batch_item(0, last, b"")
    found, end = columns_of(data, bytes_max=30 * len(item))
    assert len(found) == 30
    assert end == 30 * len(item)


def test_the_last_item_of_an_even_run_may_be_cut_off():
    data = encode_batch_item(0, b"body", b"k\x01v\x02") * (EVEN_ITEMS_MIN + 1)
    _, end = columns_of(data[:-1])
    with pytest.raises(RemoteProtocolError, match="cut off"):
        columns_of(data[:-1], start=end)


def test_an_even_run_does_not_have_properties_of_more_bytes_than_a_batch_can_state():
    item = encode_batch_item(0, b"", b"v" * 4)
    longer = (len(item) + 0x10000).to_bytes(4) + item[4:] + bytes(0x10000)
    with pytest.raises(RemoteProtocolError, match="do not add up"):
        columns_of(longer * EVEN_ITEMS_MIN)
