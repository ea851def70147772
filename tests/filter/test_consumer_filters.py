"""The bits of a group and topic in Apache's bloom filter."""

import pytest

from libramq.filter.consumer_filters import BITS, FUNCTIONS, bloom_filter_data, murmur3


@pytest.mark.parametrize(
    ("text", "code"),
    [
        (b"", 0),
        (b"hello", 0xCBD8A7B341BD9B02),
        (b"The quick brown fox jumps over the lazy dog", 0xE34BBC7BBC071B6C),
    ],
)
def test_murmur3_has_the_published_values(text, code):
    """The first half of MurmurHash3_x64_128 with seed 0, as computed by its reference implementation."""
    assert murmur3(text) == code


@pytest.mark.parametrize("length", range(1, 40))
def test_bits_lie_within_the_filter(length):
    data = bloom_filter_data("g" * length, "T")
    assert len(data.bit_pos) == FUNCTIONS
    assert all(0 <= bit < BITS == data.bit_num for bit in data.bit_pos)
