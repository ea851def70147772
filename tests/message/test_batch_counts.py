"""Counting the messages of a batch by their sizes alone."""

import pytest

from libramq.errors import RemoteProtocolError
from libramq.message.batch import (
    BATCH_ITEMS_MAX,
    BatchItem,
    count_items,
    encode_batch,
    has_more_items,
)


def counted(data, step):
    """Return how many items were counted, and after how many pauses."""
    counting, pauses = count_items(data, step), 0
    while True:
        try:
            next(counting)
        except StopIteration as end:
            return end.value, pauses
        pauses += 1


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_the_first_items_show_whether_a_batch_has_more(count):
    data = encode_batch([BatchItem(0, b"body", b"")] * count)
    assert [has_more_items(data, number) for number in (7, 8)] == [count > 7, count > 8]
    assert has_more_items(data + b"\0\0", count)


def test_items_are_counted_in_slices_up_to_the_limit():
    item = encode_batch([BatchItem(0, b"", b"")])
    assert counted(item * BATCH_ITEMS_MAX, 4_096) == (BATCH_ITEMS_MAX, 3)
    assert counted(item * 5, 2) == (5, 2)
    assert counted(b"", 2) == (0, 0)
    with pytest.raises(RemoteProtocolError, match=str(BATCH_ITEMS_MAX)):
        counted(item * 190_650, 4_096)


@pytest.mark.parametrize("size", [b"", b"\0", b"\0\0\0\0", b"\xff\xff\xff\xff"])
def test_sizes_that_are_cut_off_or_too_small_still_end_the_count(size):
    """The decoder refuses such a batch; counting it first must not take forever."""
    item = encode_batch([BatchItem(0, b"", b"")])
    assert counted(item + size, 8) == (2 if size else 1, 0)
    assert counted(size + bytes(18) + item, 8)[0] >= 1
