"""Plots that compare: names cover nothing, and numbers have as many digits as one wants to read."""

import re
from itertools import combinations

import pytest

from libramq.spark.report.comparison import CHARACTER_WIDTH, Point, matrix, scatter, written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1.0, "1"), (0.004, "0.004"), (1.354, "1.35"), (12.34, "12.3"), (345.6, "346"),
        (78_518, "78,518"),
    ],
)  # fmt: skip
def test_numbers(value: float, text: str):
    assert written(value) == text


def test_names_of_points_do_not_cover_each_other():
    """Two at one place share a label; a crowd finds room around."""
    points = [Point(name=f"strategy-{n}", x=1 + n % 3 * 0.35, y=1 + n // 3 * 0.2) for n in range(9)]
    drawn = scatter([*points, Point(name="the same", x=1, y=1)], x_label="x", y_label="y", label="l")
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)">(strategy-\d|the same)</text>', drawn)
    assert len(found) == 10
    boxes = [(float(x), float(y), float(x) + CHARACTER_WIDTH * len(name)) for x, y, name in found]
    for one, other in combinations(boxes, 2):
        assert abs(one[1] - other[1]) >= 14 or one[2] <= other[0] or other[2] <= one[0]
    (same,) = [box for box, (*_, name) in zip(boxes, found, strict=True) if name == "the same"]
    assert any(box[0] == same[0] and abs(box[1] - same[1]) == 15 for box in boxes)


def test_a_cell_that_is_missing_is_left_empty():
    drawn = matrix(["a", "b"], ["x"], {("a", "x"): 2.0, ("b", "x"): None}, label="l")
    assert drawn.count("<rect") == 1
    assert ">2</text>" in drawn
    assert "<script>" not in matrix(["<script>"], ["x"], {}, label="l")
