"""Plots that compare things at two measures (scatter), or at one under several conditions (matrix)."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import hypot, log2
from typing import Final, NamedTuple

from markupsafe import Markup

from libramq.report.svg import (
    CHARACTER_WIDTH,
    RIGHT,
    WIDTH,
    Scale,
    colour_class,
    drawing,
    names_width,
    text_width,
)

#: Ours, each: what can be read on a screen.
ROW_HEIGHT: Final = 24
SCATTER_HEIGHT: Final = 380
SAME_PIXELS: Final = 13
LINE_HEIGHT: Final = 15
MARGIN: Final = 34
DOT_RADIUS: Final = 6
#: Names further than that from their point are joined to it by a line.
LEADER_FROM: Final = 14
#: The palest and the strongest cell.
OPACITY_MIN: Final = 0.06
OPACITY_MAX: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A thing at two measures. failing: it leaves queues unread, and is drawn as a red ring."""

    name: str
    x: float
    y: float
    colour: int = 0
    failing: bool = False


class _Beside(NamedTuple):
    """The place of names beside a point. x: where they begin; where they end if they stand to its left.

    nearest: the place of theirs that is nearest to the point.
    """

    x: float
    top: float
    ends: bool
    nearest: tuple[float, float]


def scatter(points: Sequence[Point], *, x_label: str, y_label: str, label: str) -> Markup:
    """Draw points on scales of log2(1 + value), with room for 0 and for many times 1."""
    x = Scale(low=0, high=_top(point.x for point in points), start=MARGIN + 20, end=WIDTH - RIGHT)
    y = Scale(low=0, high=_top(point.y for point in points), start=SCATTER_HEIGHT - 46, end=14)
    parts = [
        f'<text x="{WIDTH - RIGHT}" y="{SCATTER_HEIGHT - 4}" class="end">{escape(x_label)} →</text>',
        f'<text x="4" y="{y(y.high) - 3:.1f}">↑ {escape(y_label)}</text>',
    ]
    for tick in _ticks(x.high):
        at = x(log2(1 + tick))
        parts.append(
            f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(0):.1f}" y2="{y(y.high):.1f}" class="grid"/>'
            f'<text x="{at:.1f}" y="{y(0) + 18:.1f}" class="tick">{tick}</text>'
        )
    for tick in _ticks(y.high):
        at = y(log2(1 + tick))
        parts.append(
            f'<line x1="{x(0):.1f}" x2="{x(x.high):.1f}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
            f'<text x="{x(0) - 8:.1f}" y="{at + 4:.1f}" class="end">{tick}</text>'
        )
    placed = [(x(log2(1 + point.x)), y(log2(1 + point.y)), point) for point in points]
    lots = _neighbours(placed)
    for lot in lots:
        parts += [
            f'<circle cx="{px:.1f}" cy="{py:.1f}" r="{DOT_RADIUS}" '
            f'class="{"ring" if point.failing else colour_class(point.colour)}">'
            f"<title>{escape(point.name)}: {point.x:.2f}, {point.y:.2f}</title></circle>"
            for px, py, point in lot
        ]
    taken = [(0.0, 0.0, CHARACTER_WIDTH * (len(y_label) + 2.0), LINE_HEIGHT + 1.0)]
    taken += [(px - DOT_RADIUS, py - DOT_RADIUS, px + DOT_RADIUS, py + DOT_RADIUS) for px, py, _ in placed]
    for lot in lots:
        px, py, _ = lot[0]
        names = [f"✗ {point.name}" if point.failing else point.name for _, _, point in lot]
        beside = _free_place(px, py, names, taken)
        near_x, near_y = beside.nearest
        if hypot(near_x - px, near_y - py) > LEADER_FROM:
            parts.append(
                f'<line x1="{px:.1f}" y1="{py:.1f}" x2="{near_x:.1f}" y2="{near_y:.1f}" class="whisker"/>'
            )
        parts += [
            f'<text x="{beside.x:.1f}" y="{beside.top + LINE_HEIGHT * place + 11:.1f}"'
            f"{_class_of_name(lot[place][2].failing, beside.ends)}>{escape(name)}</text>"
            for place, name in enumerate(names)
        ]
    return drawing(parts, SCATTER_HEIGHT, label)


def matrix(
    names: Sequence[str],
    columns: Sequence[str],
    values: Mapping[tuple[str, str], float | None],
    *,
    label: str,
    failing: Collection[str] = (),
) -> Markup:
    """Draw a cell for each thing and condition, the stronger the larger its value."""
    left = names_width([f"✗ {name}" for name in names])
    top = log2(1 + max((value for value in values.values() if value is not None), default=1))
    width = (WIDTH - left - RIGHT) / len(columns)
    parts = [
        f'<text x="{left + width * (place + 0.5):.1f}" y="14" class="tick">{escape(name)}</text>'
        for place, name in enumerate(columns)
    ]
    for line, name in enumerate(names):
        y = 22 + ROW_HEIGHT * line
        is_failing = name in failing
        parts.append(
            f'<text x="{left - 10}" y="{y + 16}" class="name{" failing" if is_failing else ""}">'
            f"{'✗ ' if is_failing else ''}{escape(name)}</text>"
        )
        for place, column in enumerate(columns):
            value = values.get((name, column))
            if value is None:
                continue
            x = left + width * place
            strength = OPACITY_MIN + (OPACITY_MAX - OPACITY_MIN) * log2(1 + value) / (top or 1)
            parts.append(
                f'<rect x="{x + 1:.1f}" y="{y + 1}" width="{width - 2:.1f}" height="{ROW_HEIGHT - 2}" rx="3" '
                f'class="c1" opacity="{strength:.2f}"/>'
                f'<text x="{x + width / 2:.1f}" y="{y + 16}" class="cell">{written(value)}</text>'
            )
    return drawing(parts, 22 + ROW_HEIGHT * len(names) + 6, label)


def written(value: float) -> str:
    """Format a number with as many digits as are useful."""
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    if value < 0.01:
        return f"{value:.1g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _class_of_name(is_failing: bool, ends: bool) -> str:
    classes = [name for name, applies in (("end", ends), ("failing", is_failing)) if applies]
    return f' class="{" ".join(classes)}"' if classes else ""


def _ticks(high: float) -> list[int]:
    ticks = [0, 1, 2, 4]
    while log2(1 + 2 * ticks[-1]) <= high:
        ticks.append(2 * ticks[-1])
    return [tick for tick in ticks if log2(1 + tick) <= high]


def _top(values: Iterable[float]) -> float:
    return log2(1 + max(values, default=1)) * 1.04 + 0.05


def _free_place(
    px: float, py: float, names: Sequence[str], taken: list[tuple[float, float, float, float]]
) -> _Beside:
    """Take the place nearest to a point where names cover nothing."""
    width = max(map(text_width, names))
    height = LINE_HEIGHT * len(names)
    free = []
    for away in range(-SCATTER_HEIGHT, SCATTER_HEIGHT, LINE_HEIGHT // 2):
        for place, left in enumerate((px + 11, px - 11 - width, px - width / 2)):
            box = (left, py + away - height / 2, left + width, py + away + height / 2)
            is_inside = box[0] >= MARGIN and box[2] <= WIDTH and box[1] >= 0 and box[3] <= SCATTER_HEIGHT - 48
            if is_inside and not any(_overlap(box, other) for other in taken):
                across = max(box[0] - px, 0.0, px - box[2])
                free.append(
                    (
                        across**2 + max(box[1] - py, 0.0, py - box[3]) ** 2 + abs(away) + 50 * place,
                        box,
                        place == 1,
                    )
                )
    _, box, ends = min(free, default=(0.0, (px, py, px, py), False))
    taken.append(box)
    nearest = min(max(px, box[0]), box[2]), min(max(py, box[1]), box[3])
    return _Beside(box[2] if ends else box[0], box[1], ends, nearest)


def _overlap(one: tuple[float, ...], other: tuple[float, ...]) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _neighbours(
    placed: Sequence[tuple[float, float, Point]],
) -> list[list[tuple[float, float, Point]]]:
    """Group points that cannot be distinguished."""
    lots: list[list[tuple[float, float, Point]]] = []
    for each in sorted(placed, key=lambda one: (one[0], one[1])):
        for lot in lots:
            if abs(lot[0][0] - each[0]) < SAME_PIXELS and abs(lot[0][1] - each[1]) < SAME_PIXELS:
                lot.append(each)
                break
        else:
            lots.append([each])
    return lots
