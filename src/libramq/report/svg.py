"""Plots as SVG elements, with axes: marks, quantiles, bars and lines, points by two measures (scatter), and
values under several conditions (matrix). Colours are CSS classes of the page.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from math import ceil, floor, hypot, log2, log10
from typing import Final, NamedTuple

from markupsafe import Markup

from libramq.report.page import figure
from libramq.report.page import legend as legend_of

#: Ours: the width of a page column.
WIDTH: Final = 920
LEFT_MIN: Final = 90  # Room for row names, which are never truncated.
CHARACTER_WIDTH: Final = 7  # An upper bound for the page's font.
CAPITAL_WIDTH: Final = 9.5
NUMBERS: Final = 64  # Room for numbers instead of names.
FIGURES: Final = 170  # Room for the text after a span.
RIGHT: Final = 34
TICKS: Final = 6
HOURS_MIN: Final = 12  # A single hour over the whole width would look like a day.
COLOURS: Final = 8  # .c0 to .c7
#: Possible ends of axes: a little above the data, and round enough for their halves to be readable.
_ROUND: Final = (1, 1.2, 1.4, 1.6, 1.8, 2, 2.4, 3, 3.6, 4, 5, 6, 7, 8, 9, 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Maps values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the position of a value."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A mark in a row. hint: its tooltip."""

    row: str
    at: datetime
    radius: float
    colour: int
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Quantiles in a row: the median, a bar to the 95th percentile, a line to the maximum."""

    row: str
    middle: float
    most: float
    greatest: float
    colour: int = 0


def colour_class(index: int) -> str:
    """Return the class of a colour; after the eighth the colours repeat, with dashed lines."""
    return f"c{index % COLOURS}{' again' if index >= COLOURS else ''}"


def dots(rows: Sequence[str], marks: Sequence[Dot], *, label: str) -> Markup:
    """Draw marks over time, in a row for each name."""
    times = [mark.at.timestamp() for mark in marks]
    low, high = _not_empty(min(times), max(times))
    left, room = names_width(rows), max(mark.radius for mark in marks)
    x = Scale(low=low, high=high, start=left + room, end=WIDTH - RIGHT - room)
    height = 34 * len(rows) + 34
    parts = [_rows(rows, 34, left), *_time_axis(x, height - 28)]
    for mark in marks:
        y = 34 * rows.index(mark.row) + 17
        parts.append(
            f'<circle cx="{x(mark.at.timestamp()):.1f}" cy="{y}" r="{mark.radius:.1f}" '
            f'class="c{mark.colour % COLOURS} dot"><title>{escape(mark.hint)}</title></circle>'
        )
    return drawing(parts, height, label)


def spans(marks: Sequence[Span], *, unit: str, label: str, failing: Collection[str] = ()) -> Markup:
    """Draw quantiles side by side."""
    left = names_width([f"✗ {mark.row}" for mark in marks])
    top = nice_ceiling(max((mark.greatest for mark in marks), default=1))
    x = Scale(low=0, high=top, start=left, end=WIDTH - FIGURES)
    height = 30 * len(marks) + 34
    parts = [
        _rows([mark.row for mark in marks], 30, left, end=WIDTH - FIGURES, failing=failing),
        *_value_axis(x, height - 28, unit),
    ]
    for index, mark in enumerate(marks):
        y = 30 * index + 15
        parts.append(
            f'<line x1="{x(mark.most):.1f}" x2="{x(mark.greatest):.1f}" y1="{y}" y2="{y}" class="whisker"/>'
            f'<rect x="{left}" y="{y - 7}" width="{x(mark.most) - left:.1f}" height="14" '
            f'class="{colour_class(mark.colour)} soft"/>'
            f'<rect x="{x(mark.middle) - 2:.1f}" y="{y - 10}" width="4" height="20" '
            f'class="{colour_class(mark.colour)}"/>'
            f'<text class="hint" x="{x(max(mark.greatest, mark.middle)) + 9:.1f}" y="{y + 4}">'
            f"{_number(mark.middle)} · {_number(mark.most)} · {_number(mark.greatest)} {unit}</text>"
        )
    return drawing(parts, height, label)


def bars(
    hours: Sequence[datetime], series: Sequence[tuple[str, Sequence[float]]], *, label: str, height: int = 200
) -> Markup:
    """Draw one stacked bar per hour, from a value in each series; few hours do not fill the width."""
    totals = [sum(values[index] for _, values in series) for index in range(len(hours))]
    top = nice_ceiling(max(totals, default=1))
    bottom = height - 28
    y = Scale(low=0, high=top, start=bottom, end=8)
    part = min(1.0, len(hours) / HOURS_MIN)
    x = Scale(
        low=hours[0].timestamp(),
        high=(hours[0] + timedelta(hours=len(hours))).timestamp(),
        start=NUMBERS,
        end=NUMBERS + part * (WIDTH - RIGHT - NUMBERS),
    )
    width = max(1.5, x(x.low + 3600) - NUMBERS - 2)
    parts = [*_levels(y, top, x.end), *_time_axis(x, bottom, ticks=max(1, round(TICKS * part)))]
    for index, hour in enumerate(hours):
        base = 0.0
        for colour, (name, values) in enumerate(series):
            if not values[index]:
                continue
            upper = y(base + values[index])
            parts.append(
                f'<rect x="{x(hour.timestamp()) + 1:.1f}" y="{upper:.1f}" width="{width:.1f}" '
                f'height="{y(base) - upper:.1f}" class="c{colour % COLOURS}">'
                f"<title>{escape(name)}: {values[index]:g} at {hour:%d %b %H:%M}</title></rect>"
            )
            base += values[index]
    return drawing(parts, height, label)


def lines(
    series: Sequence[tuple[str, Sequence[tuple[datetime, float]]]],
    *,
    label: str,
    height: int = 240,
    colours: Sequence[int] | None = None,
) -> Markup:
    """Draw a line for each name. colours: their colours' indexes; by default their order."""
    times = [at.timestamp() for _, points in series for at, _ in points]
    top = nice_ceiling(max((value for _, points in series for _, value in points), default=1))
    low, high = _not_empty(min(times), max(times))
    x = Scale(low=low, high=high, start=NUMBERS, end=WIDTH - RIGHT)
    y = Scale(low=0, high=top, start=height - 28, end=8)
    parts = [*_levels(y, top, x.end), *_time_axis(x, height - 28)]
    for colour, (name, points) in zip(colours or range(len(series)), series, strict=True):
        path = " ".join(f"{x(at.timestamp()):.1f},{y(value):.1f}" for at, value in points)
        parts.append(
            f'<polyline points="{path}" class="{colour_class(colour)} line">'
            f"<title>{escape(name)}</title></polyline>"
        )
        if len(points) == 1:  # A line needs two points.
            cx, _, cy = path.partition(",")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="4" class="c{colour % COLOURS}"/>')
    return drawing(parts, height, label)


def legend(names: Iterable[str], colours: Sequence[int] | None = None) -> Markup:
    """Return a legend. colours: the indexes of the names' colours; by default their order."""
    names = list(names)
    numbers = colours or range(len(names))
    return legend_of((name, colour_class(colour)) for name, colour in zip(names, numbers, strict=True))


def names_width(names: Iterable[str]) -> float:
    """Return the width that names need at the left of a plot."""
    return max(LEFT_MIN, max(map(text_width, names), default=0) + 14)


def text_width(text: str) -> float:
    """Estimate the width of a text; capitals are wider."""
    return sum(CAPITAL_WIDTH if letter.isupper() else CHARACTER_WIDTH for letter in text)


def nice_ceiling(value: float) -> float:
    """Return a round number at or above a value, with a round half and round quarters."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next((step * power for step in _ROUND if step * power >= value), 10 * power)


def drawing(parts: Sequence[str], height: int, label: str) -> Markup:
    """Return a drawing of these elements. label: describes it for screen readers."""
    return figure("".join(parts), WIDTH, height, label)


def _rows(
    names: Sequence[str],
    height: int,
    left: float,
    *,
    end: int = WIDTH - RIGHT,
    failing: Collection[str] = (),
) -> str:
    return "".join(
        f'<line x1="{left}" x2="{end}" y1="{height * index + height / 2}" '
        f'y2="{height * index + height / 2}" class="grid"/>'
        f"{_row_name(name, left, height * index + height / 2 + 4, failing)}"
        for index, name in enumerate(names)
    )


def _row_name(name: str, left: float, y: float, failing: Collection[str]) -> str:
    return (
        f'<text x="{left - 10}" y="{y}" class="name{" failing" if name in failing else ""}">'
        f"{'✗ ' if name in failing else ''}{escape(name)}</text>"
    )


def _levels(y: Scale, top: float, end: float) -> list[str]:
    return [
        f'<line x1="{NUMBERS}" x2="{end:.1f}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        f'<text x="{NUMBERS - 10}" y="{y(value) + 4:.1f}" class="name">{value:,.6g}</text>'
        for value in (0.0, top / 2, top)
        if value == int(value) or top < 1  # There are no half messages.
    ]


def _value_axis(x: Scale, y: float, unit: str) -> list[str]:
    return [
        f'<text x="{x(value):.1f}" y="{y + 20}" class="tick">{value:,.6g} {unit}</text>'
        for value in (0.0, x.high / 4, x.high / 2, 3 * x.high / 4, x.high)
    ]


def _time_axis(x: Scale, y: float, *, ticks: int = TICKS) -> list[str]:
    """Draw about this many ticks, at round times."""
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
    wanted = (x.high - x.low) / ticks
    step = next((step for step in steps if step >= wanted), 86_400 * ceil(wanted / 86_400))
    written = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%d %b"
    if x.high - x.low > 86_400 > step:
        written = "%d %b %H:%M"
    first = ceil(x.low / step) * step
    times = [first + step * index for index in range(int((x.high - first) // step) + 1)]
    return [
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y:.1f}" y2="{y + 5:.1f}" class="grid"/>'
        f'<text x="{x(at):.1f}" y="{y + 20:.1f}" class="tick">'
        f"{datetime.fromtimestamp(at, UTC):{written}}</text>"
        for at in times
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _not_empty(low: float, high: float) -> tuple[float, float]:
    """Widen an empty range to some seconds around its moment; otherwise axes end with the data."""
    return (low, high) if high > low else (low - 5, high + 5)


# Ours: sizes that are readable on a screen.
ROW_HEIGHT: Final = 24
SCATTER_HEIGHT: Final = 380
#: Points closer than this share their names' place.
SAME_PIXELS: Final = 13
LINE_HEIGHT: Final = 15
MARGIN: Final = 34
DOT_RADIUS: Final = 6
#: A line joins a point to names further away than this.
LEADER_FROM: Final = 14
#: The opacity of the palest cell.
OPACITY_MIN: Final = 0.06
#: The opacity of the strongest cell.
OPACITY_MAX: Final = 0.75


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point by two measures. failing: the strategy leaves queues unread; drawn as a red ring."""

    name: str
    x: float
    y: float
    colour: int = 0
    failing: bool = False


class _Beside(NamedTuple):
    """The place of names beside a point. x: their left edge, or their right edge if they end there (`ends`).

    nearest: the nearest position to the point.
    """

    x: float
    top: float
    ends: bool
    nearest: tuple[float, float]


def scatter(points: Sequence[Point], *, x_label: str, y_label: str, label: str) -> Markup:
    """Draw points on scales of log2(1 + value), which show 0 as well as large multiples of 1."""
    x = Scale(low=0, high=_top(point.x for point in points), start=MARGIN + 20, end=WIDTH - RIGHT)
    y = Scale(low=0, high=_top(point.y for point in points), start=SCATTER_HEIGHT - 46, end=14)
    parts = [
        f'<text x="{WIDTH - RIGHT}" y="{SCATTER_HEIGHT - 4}" class="end">{escape(x_label)} →</text>',
        f'<text x="4" y="{y(y.high) - 3:.1f}">↑ {escape(y_label)}</text>',
    ]
    parts += [
        f'<line x1="{at:.1f}" x2="{at:.1f}" y1="{y(0):.1f}" y2="{y(y.high):.1f}" class="grid"/>'
        f'<text x="{at:.1f}" y="{y(0) + 18:.1f}" class="tick">{tick}</text>'
        for tick, at in _ticks(x)
    ]
    parts += [
        f'<line x1="{x(0):.1f}" x2="{x(x.high):.1f}" y1="{at:.1f}" y2="{at:.1f}" class="grid"/>'
        f'<text x="{x(0) - 8:.1f}" y="{at + 4:.1f}" class="end">{tick}</text>'
        for tick, at in _ticks(y)
    ]
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
    """Draw a cell for each row and condition; larger values have stronger colours."""
    left = names_width([f"✗ {name}" for name in names])
    top = log2(1 + max((value for value in values.values() if value is not None), default=1))
    width = (WIDTH - left - RIGHT) / len(columns)
    parts = [
        f'<text x="{left + width * (place + 0.5):.1f}" y="14" class="tick">{escape(name)}</text>'
        for place, name in enumerate(columns)
    ]
    for line, name in enumerate(names):
        y = 22 + ROW_HEIGHT * line
        parts.append(_row_name(name, left, y + 16, failing))
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
    """Format a number with a useful number of digits."""
    if value == int(value) or value >= 100:
        return f"{value:,.0f}"
    if value < 0.01:
        return f"{value:.1g}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _class_of_name(is_failing: bool, ends: bool) -> str:
    classes = [name for name, applies in (("end", ends), ("failing", is_failing)) if applies]
    return f' class="{" ".join(classes)}"' if classes else ""


def _ticks(scale: Scale) -> list[tuple[int, float]]:
    """Return 0 and the powers of two with their positions on a scale of log2(1 + value)."""
    ticks = (0, *(1 << power for power in range(ceil(scale.high) + 1)))
    return [(tick, scale(log2(1 + tick))) for tick in ticks if log2(1 + tick) <= scale.high]


def _top(values: Iterable[float]) -> float:
    return log2(1 + max(values, default=1)) * 1.04 + 0.05


def _free_place(
    px: float, py: float, names: Sequence[str], taken: list[tuple[float, float, float, float]]
) -> _Beside:
    """Reserve the free place nearest to a point for its names."""
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
    """Group points too close to distinguish."""
    lots: list[list[tuple[float, float, Point]]] = []
    for each in sorted(placed, key=lambda one: (one[0], one[1])):
        for lot in lots:
            if abs(lot[0][0] - each[0]) < SAME_PIXELS and abs(lot[0][1] - each[1]) < SAME_PIXELS:
                lot.append(each)
                break
        else:
            lots.append([each])
    return lots
