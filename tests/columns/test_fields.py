"""Byte strings are cut out of a buffer, even or not, into memory that is reused once nobody refers to it."""

import numpy as np
import pyarrow as pa
import pytest

from libramq.columns.fields import BLOCK_BYTES, EVEN_MIN, LARGE_BYTES, ColumnMemory, slices

DATA = bytes(range(256)) * 4


@pytest.mark.parametrize(
    ("starts", "sizes"),
    [
        (range(3, 1000, 50), [17] * 20),
        (range(0, 1000, 50), [50] * 20),
        (range(3, 1000, 50), [17] * 19 + [18]),
        ([*range(3, 950, 50), 950], [17] * 20),
        (range(20), [0] * 20),
        (range(EVEN_MIN - 1), [1] * (EVEN_MIN - 1)),
        ([1008], [16]),
    ],
)
def test_slices_are_the_bytes_between_their_bounds(starts, sizes):
    places = np.array(starts, dtype=np.int64)
    found = slices(pa.py_buffer(DATA), places, places + np.array(sizes))
    found.validate(full=True)
    assert found.to_pylist() == [
        DATA[start : start + size] for start, size in zip(starts, sizes, strict=True)
    ]


def bodies(content: bytes) -> pa.Array:
    """Return a column of 100 bodies cut out of a larger buffer."""
    size = LARGE_BYTES // 50
    places = np.arange(0, 100 * 2 * size, 2 * size, dtype=np.int64)
    return slices(pa.py_buffer(content * (200 * size)), places, places + size)


def test_memory_is_taken_again_when_its_last_user_is_gone():
    kept = ColumnMemory()
    first = kept.take(1_000_000)
    first[0] = 7
    column = pa.py_buffer(first)[10:20]
    del first
    second = kept.take(1_000_000)
    assert second[0] == 0
    del column
    third = kept.take(990_000)
    assert (third[0], len(third)) == (7, 990_000)


def test_a_small_column_is_not_made_in_a_much_larger_block():
    kept = ColumnMemory()
    kept.take(1_000_000)[0] = 7
    assert kept.take(100_000)[0] == 0
    assert kept.take(1_000_000)[0] == 7


def test_what_is_kept_is_bounded_and_the_oldest_is_forgotten_first():
    kept = ColumnMemory(4 * BLOCK_BYTES)
    held = [kept.take(BLOCK_BYTES) for _ in range(10)]
    assert kept.kept_bytes == 4 * BLOCK_BYTES
    kept.take(5 * BLOCK_BYTES)
    assert kept.kept_bytes == 4 * BLOCK_BYTES
    for number, memory in enumerate(held):
        memory[0] = number
    del held, memory
    assert [kept.take(BLOCK_BYTES)[0] for _ in range(4)] == [6, 7, 8, 9]


def test_a_column_in_use_keeps_its_content_and_one_that_is_not_is_replaced():
    first, part = bodies(b"a"), bodies(b"b")[40:41]
    places = set()
    for content in (b"c", b"d", b"e"):
        column = bodies(content)
        column.validate(full=True)
        assert column[99].as_py()[:1] == content
        places.add(column.buffers()[2].address)
        del column
    assert len(places) == 1
    assert first[0].as_py()[:1] == b"a"
    assert part[0].as_py()[:1] == b"b"
