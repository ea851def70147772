"""Byte strings are cut out of a buffer, whether they are even or not."""

import numpy as np
import pyarrow as pa
import pytest

from libramq.columns.fields import EVEN_MIN, slices

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
