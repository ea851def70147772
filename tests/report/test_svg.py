"""Tests of plots: no label is cut off, no plot is empty, and axes of counts have no halves."""

import re
from datetime import UTC, datetime, timedelta

from libramq.report import svg

NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)


def texts(drawing: str, kind: str) -> list[tuple[float, float, str]]:
    """Return the texts of a class, each with its x and y."""
    found = re.findall(
        rf'<text (?:class="{kind}" )?x="([\d.]+)" y="([\d.]+)"(?: class="{kind}")?>([^<]*)', drawing
    )
    return [(float(x), float(y), text) for x, y, text in found]


def test_figures_of_spans_are_inside_the_drawing():
    """This is tested with the first row and with the longest one."""
    marks = [
        svg.Span(row="a", middle=1, most=2, greatest=3),
        svg.Span(row="b", middle=1_000, most=2_000, greatest=3_000),
    ]
    first, second = (
        place for place in texts(svg.spans(marks, unit="ms", label="l"), "hint") if "·" in place[2]
    )
    assert first[2] == "1 · 2 · 3 ms"
    assert first[1] > 11  # The height of a letter.
    assert second[0] + 6.5 * len(second[2]) < svg.WIDTH


def test_a_single_sample_is_a_point():
    assert "<circle" in svg.lines([("a", [(NOON, 5.0)])], label="l")
    assert "<circle" not in svg.lines([("a", [(NOON, 5.0), (NOON + timedelta(seconds=5), 6.0)])], label="l")


def test_a_single_hour_is_not_drawn_as_a_day():
    drawing = svg.bars([NOON], [("why", [3.0])], label="l")
    (width,) = re.findall(r'width="([\d.]+)" height', drawing)
    assert float(width) < svg.WIDTH / svg.HOURS_MIN


def test_axes_end_where_data_ends():
    """A time axis has no room on either side, and an hour is not drawn as a day."""
    points = [(NOON + timedelta(minutes=minute), 1.0) for minute in range(61)]
    drawing = svg.lines([("a", points)], label="l")
    (path,) = re.findall(r'points="([^"]*)"', drawing)
    ends = [float(point.partition(",")[0]) for point in path.split()]
    assert (ends[0], ends[-1]) == (svg.NUMBERS, svg.WIDTH - svg.RIGHT)
    hour = svg.bars([NOON], [("why", [3.0])], label="l")
    assert max(float(x) for x in re.findall(r'x2="([\d.]+)"', hour)) < svg.WIDTH / 4


def test_axes_of_counts_have_whole_numbers():
    def levels(top: float) -> list[str]:
        drawing = svg.bars([NOON], [("why", [top])], label="l")
        return [text for _, _, text in texts(drawing, "name")]

    assert levels(1) == ["0", "1"]
    assert levels(4) == ["0", "2", "4"]
