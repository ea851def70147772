"""Plots as SVG text: a frame with axes, and marks in it. Colours are CSS classes of the page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from html import escape
from math import ceil, floor, log10
from typing import Final

#: Ours: a page column.
WIDTH: Final = 920
LEFT: Final = 150  # For the names of rows.
NUMBERS: Final = 64  # For numbers in their place.
FIGURES: Final = 170  # For what is written behind a span.
RIGHT: Final = 34
TICKS: Final = 6
HOURS_MIN: Final = 12  # A single hour over the whole width would look like a day.
COLOURS: Final = 8  # .c0 to .c7
NAME_CHARACTERS_MAX: Final = 22


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Values to pixels."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Where a value is drawn."""
        span = (self.high - self.low) or 1.0
        return self.start + (value - self.low) / span * (self.end - self.start)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dot:
    """A mark in a row. hint: shown under the mouse."""

    row: str
    at: datetime
    radius: float
    colour: int
    hint: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Quantiles in a row: the middle, a bar to the 95th percentile, a line to the greatest."""

    row: str
    middle: float
    most: float
    greatest: float


def dots(rows: Sequence[str], marks: Sequence[Dot], *, label: str) -> str:
    """Marks over time, a row for each name."""
    times = [mark.at.timestamp() for mark in marks]
    low, high = _padded(min(times), max(times))
    x = Scale(low=low, high=high, start=LEFT, end=WIDTH - RIGHT)
    height = 34 * len(rows) + 34
    parts = [_rows(rows, 34), *_time_axis(x, height - 28)]
    for mark in marks:
        y = 34 * rows.index(mark.row) + 17
        parts.append(
            f'<circle cx="{x(mark.at.timestamp()):.1f}" cy="{y}" r="{mark.radius:.1f}" '
            f'class="c{mark.colour % COLOURS} dot"><title>{escape(mark.hint)}</title></circle>'
        )
    return figure(parts, height, label)


def spans(marks: Sequence[Span], *, unit: str, label: str) -> str:
    """Quantiles side by side."""
    top = nice_ceiling(max((mark.greatest for mark in marks), default=1))
    x = Scale(low=0, high=top, start=LEFT, end=WIDTH - FIGURES)
    height = 30 * len(marks) + 34
    parts = [_rows([mark.row for mark in marks], 30, end=WIDTH - FIGURES), *_value_axis(x, height - 28, unit)]
    for index, mark in enumerate(marks):
        y = 30 * index + 15
        parts.append(
            f'<line x1="{x(mark.most):.1f}" x2="{x(mark.greatest):.1f}" y1="{y}" y2="{y}" class="whisker"/>'
            f'<rect x="{LEFT}" y="{y - 7}" width="{x(mark.most) - LEFT:.1f}" height="14" class="c0 soft"/>'
            f'<rect x="{x(mark.middle) - 2:.1f}" y="{y - 10}" width="4" height="20" class="c0"/>'
            f'<text class="hint" x="{x(max(mark.greatest, mark.middle)) + 9:.1f}" y="{y + 4}">'
            f"{_number(mark.middle)} · {_number(mark.most)} · {_number(mark.greatest)} {unit}</text>"
        )
    return figure(parts, height, label)


def bars(
    hours: Sequence[datetime], series: Sequence[tuple[str, Sequence[float]]], *, label: str, height: int = 200
) -> str:
    """Stacked bars, one an hour; each series has a value for each hour."""
    totals = [sum(values[index] for _, values in series) for index in range(len(hours))]
    top = nice_ceiling(max(totals, default=1))
    bottom = height - 28
    y = Scale(low=0, high=top, start=bottom, end=8)
    x = Scale(
        low=hours[0].timestamp(),
        high=(hours[0] + timedelta(hours=max(len(hours), HOURS_MIN))).timestamp(),
        start=NUMBERS,
        end=WIDTH - RIGHT,
    )
    width = max(1.5, x(x.low + 3600) - NUMBERS - 2)
    parts = [*_levels(y, top), *_time_axis(x, bottom)]
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
    return figure(parts, height, label)


def lines(
    series: Sequence[tuple[str, Sequence[tuple[datetime, float]]]], *, label: str, height: int = 240
) -> str:
    """A line for each name."""
    times = [at.timestamp() for _, points in series for at, _ in points]
    top = nice_ceiling(max((value for _, points in series for _, value in points), default=1))
    low, high = _padded(min(times), max(times))
    x = Scale(low=low, high=high, start=NUMBERS, end=WIDTH - RIGHT)
    y = Scale(low=0, high=top, start=height - 28, end=8)
    parts = [*_levels(y, top), *_time_axis(x, height - 28)]
    for colour, (name, points) in enumerate(series):
        path = " ".join(f"{x(at.timestamp()):.1f},{y(value):.1f}" for at, value in points)
        parts.append(
            f'<polyline points="{path}" class="c{colour % COLOURS} line">'
            f"<title>{escape(name)}</title></polyline>"
        )
        if len(points) == 1:  # A line needs two.
            cx, _, cy = path.partition(",")
            parts.append(f'<circle cx="{cx}" cy="{cy}" r="4" class="c{colour % COLOURS}"/>')
    return figure(parts, height, label)


def legend(names: Iterable[str]) -> str:
    """The names of colours, in their order."""
    items = "".join(
        f'<span><i class="c{index % COLOURS}"></i>{escape(name)}</span>' for index, name in enumerate(names)
    )
    return f'<p class="legend">{items}</p>'


def nice_ceiling(value: float) -> float:
    """A round number at or above, whose half and quarters are round enough."""
    if value <= 0:
        return 1.0
    power = 10.0 ** floor(log10(value))
    return next(
        (step * power for step in (1, 1.2, 1.6, 2, 3, 4, 5, 6, 8, 10) if step * power >= value), 10 * power
    )


def figure(parts: Sequence[str], height: int, label: str) -> str:
    """The drawing of these parts; label: what it shows, for who cannot see it."""
    return (
        f'<div class="scroll"><svg viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(label, quote=True)}" xmlns="http://www.w3.org/2000/svg">'
        f"{''.join(parts)}</svg></div>"
    )


def _rows(names: Sequence[str], height: int, *, end: int = WIDTH - RIGHT) -> str:
    return "".join(
        f'<line x1="{LEFT}" x2="{end}" y1="{height * index + height / 2}" '
        f'y2="{height * index + height / 2}" class="grid"/>'
        f'<text x="{LEFT - 10}" y="{height * index + height / 2 + 4}" class="name">{escape(_short(name))}'
        f"<title>{escape(name)}</title></text>"
        for index, name in enumerate(names)
    )


def _levels(y: Scale, top: float) -> list[str]:
    return [
        f'<line x1="{NUMBERS}" x2="{WIDTH - RIGHT}" y1="{y(value):.1f}" y2="{y(value):.1f}" class="grid"/>'
        f'<text x="{NUMBERS - 10}" y="{y(value) + 4:.1f}" class="name">{value:,.6g}</text>'
        for value in (0.0, top / 2, top)
        if value == int(value) or top < 1  # Half a message is none.
    ]


def _value_axis(x: Scale, y: float, unit: str) -> list[str]:
    return [
        f'<text x="{x(value):.1f}" y="{y + 20}" class="tick">{value:,.6g} {unit}</text>'
        for value in (0.0, x.high / 4, x.high / 2, 3 * x.high / 4, x.high)
    ]


def _time_axis(x: Scale, y: float) -> list[str]:
    """Ticks at round times."""
    steps = (1, 2, 5, 10, 30, 60, 120, 300, 600, 1800, 3600, 7200, 21_600, 43_200, 86_400)
    wanted = (x.high - x.low) / TICKS
    step = next((step for step in steps if step >= wanted), 86_400 * ceil(wanted / 86_400))
    written = "%H:%M:%S" if step < 60 else "%H:%M" if step < 43_200 else "%d %b"
    if x.high - x.low > 86_400 > step:
        written = "%d %b %H:%M"
    first = ceil(x.low / step) * step
    ticks = [first + step * index for index in range(int((x.high - first) // step) + 1)]
    return [
        f'<line x1="{x(at):.1f}" x2="{x(at):.1f}" y1="{y:.1f}" y2="{y + 5:.1f}" class="grid"/>'
        f'<text x="{x(at):.1f}" y="{y + 20:.1f}" class="tick">'
        f"{datetime.fromtimestamp(at, UTC):{written}}</text>"
        for at in ticks
    ]


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:.2g}"


def _padded(low: float, high: float) -> tuple[float, float]:
    room = max((high - low) * 0.03, 5.0)
    return low - room, high + room


def _short(name: str) -> str:
    return name if len(name) <= NAME_CHARACTERS_MAX else f"{name[: NAME_CHARACTERS_MAX - 1]}…"
