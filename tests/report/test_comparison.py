"""Tests of plots that compare: labels do not overlap, and numbers have no more digits than are useful."""

import re
from itertools import combinations

import pytest

from libramq.report.svg import CHARACTER_WIDTH, Point, matrix, scatter, written


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"), (1.0, "1"), (0.004, "0.004"), (1.354, "1.35"), (12.34, "12.3"), (345.6, "346"),
        (78_518, "78,518"),
    ],
)  # fmt: skip
def test_numbers_are_formatted(value: float, text: str):
    assert written(value) == text


def test_labels_of_points_do_not_overlap():
    """Two points at one place share a label; the labels of a crowd are placed around it."""
    points = [Point(name=f"strategy-{n}", x=1 + n % 3 * 0.35, y=1 + n // 3 * 0.2) for n in range(9)]
    drawn = scatter([*points, Point(name="the same", x=1, y=1)], x_label="x", y_label="y", label="l")
    found = re.findall(r'<text x="([\d.]+)" y="([\d.]+)"( class="end")?>(strategy-\d|the same)</text>', drawn)
    assert len(found) == 10
    boxes = [_box(float(x), float(y), CHARACTER_WIDTH * len(name), bool(ends)) for x, y, ends, name in found]
    for one, other in combinations(boxes, 2):
        assert abs(one[1] - other[1]) >= 14 or one[2] <= other[0] or other[2] <= one[0]
    (same,) = [box for box, (*_, name) in zip(boxes, found, strict=True) if name == "the same"]
    assert any(box[0] == same[0] and abs(box[1] - same[1]) == pytest.approx(15) for box in boxes)


def test_a_label_left_of_its_point_ends_there():
    points = [Point(name="near", x=0, y=1), Point(name="far to the right", x=30, y=1, failing=True)]
    drawn = scatter(points, x_label="x", y_label="y", label="l")
    (at,) = re.findall(r'<circle cx="([\d.]+)"[^>]* class="ring"', drawn)
    (end,) = re.findall(r'<text x="([\d.]+)" y="[\d.]+" class="end failing">✗ far to the right', drawn)
    assert float(at) - float(end) == pytest.approx(11)


def test_a_label_without_room_is_joined_to_its_point_by_a_line():
    alone = scatter([Point(name="alone", x=1, y=1)], x_label="x", y_label="y", label="l")
    assert 'class="whisker"' not in alone
    crowd = [Point(name=f"a strategy with a long name {n}", x=1 + n * 0.1, y=1) for n in range(6)]
    assert 'class="whisker"' in scatter(crowd, x_label="x", y_label="y", label="l")


def _box(x: float, y: float, width: float, ends: bool) -> tuple[float, float, float]:
    return (x - width, y, x) if ends else (x, y, x + width)


def test_a_missing_cell_is_left_empty():
    drawn = matrix(["a", "b"], ["x"], {("a", "x"): 2.0, ("b", "x"): None}, label="l")
    assert drawn.count("<rect") == 1
    assert ">2</text>" in drawn
    assert "<script>" not in matrix(["<script>"], ["x"], {}, label="l")
