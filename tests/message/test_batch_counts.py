"""Counting the messages of a batch by their sizes alone."""

import pytest

from libramq.errors import RemoteProtocolError
from libramq.message.batch import (
    BATCH_ITEMS_MAX,
    BatchItem,
    encode_batch,
    has_more_items,
    iterate_item_counts,
)


@pytest.mark.parametrize("count", [0, 1, 7, 8, 9])
def test_the_first_items_show_whether_a_batch_has_more(count):
    data = encode_batch([BatchItem(0, b"body", b"")] * count)
    assert [has_more_items(data, number) for number in (7, 8)] == [count > 7, count > 8]
    assert has_more_items(data + b"\0\0", count)


def test_items_are_counted_in_slices_up_to_the_limit():
    item = encode_batch([BatchItem(0, b"", b"")])
    assert list(iterate_item_counts(item * BATCH_ITEMS_MAX, 4_096)) == [4_096, 8_192, 12_288, 16_384]
    counts = iterate_item_counts(item * 190_650, 4_096)
    with pytest.raises(RemoteProtocolError, match=str(BATCH_ITEMS_MAX)):
        list(counts)
