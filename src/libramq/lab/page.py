"""The laboratory's page, for people: the strategies' effects on groups, and their ranking, best first, which
the terminal also shows.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from operator import itemgetter
from typing import Any, Final

from markupsafe import Markup

from libramq.clock import WallMs
from libramq.lab.cost import HANDOVER, Costs
from libramq.lab.entrant import Allocator
from libramq.lab.histories import Departure
from libramq.lab.tables import ALL
from libramq.report import svg
from libramq.report.page import html_table, page, section, tiles
from libramq.report.svg import Point, matrix, scatter, written

Row = Mapping[str, Any]


def times_minimum(row: Row) -> float | None:
    """Return moves divided by the minimum; None if no moves were necessary."""
    return row["moved"] / row["minimum"] if row["minimum"] else None


_VALUES: Final[Mapping[str, Callable[[Row], float | None]]] = {
    "moves / minimum": times_minimum,
    "fullest member / fair": itemgetter("fullest_mean"),
    "worst": itemgetter("fullest_worst"),
    "unread at most": itemgetter("unowned_most"),
    "a queue's pause, s": itemgetter("still_s_a_queue"),
    "worst pause, ms": itemgetter("worst_pause_ms"),
    "came twice": itemgetter("repeated"),
    "assignor, ms": itemgetter("assignor_p50_ms"),
}
COLUMNS: Final = ("strategy", "computed by", *_VALUES)


def ranked(strategies: Iterable[Row]) -> list[Row]:
    """Return the rows over all histories, those without unread queues first, then by moves and evenness."""

    def order(row: Row) -> tuple[bool, float, float, str]:
        unread, uneven = row["unowned_most"] > 0, row["fullest_mean"] or 0.0
        return unread, times_minimum(row) or 0.0, uneven, row["strategy"]

    return sorted((row for row in strategies if row["kind"] == ALL), key=order)


def ranking(strategies: Iterable[Row]) -> list[Sequence[str]]:
    """Return the rows under COLUMNS."""
    return [
        (row["strategy"], row["allocator"], *(text(value(row)) for value in _VALUES.values()))
        for row in ranked(strategies)
    ]


def text(value: float | None) -> str:
    """Format a number for people; a dash if there is none."""
    return "–" if value is None else written(value)


MINIMUM: Final = "minimum"


def lab_page(tables: Mapping[str, Sequence[Row]], costs: Costs, wall_ms: WallMs) -> str:
    """Return the HTML page of these tables."""
    ranked_rows = ranked(tables["strategies"])
    made = datetime.fromtimestamp(int(wall_ms) / 1000, UTC)
    kinds = sorted({row["kind"] for row in tables["steps"]})
    strategies = Strategies(
        names=[row["strategy"] for row in ranked_rows],
        failing=frozenset(row["strategy"] for row in ranked_rows if row["unowned_most"] > 0),
    )
    return page(
        "Strategy laboratory",
        f"How allocation strategies fare when members come and go; made {made:%Y-%m-%d %H:%M} UTC.",
        [
            tiles(_facts(tables)),
            _overview(ranked_rows, strategies),
            *_by_history(tables["strategies"], strategies),
            *(_example(tables["steps"], kind, strategies) for kind in kinds),
            _computing(ranked_rows, strategies),
            section(
                "In numbers",
                "All histories together.",
                html_table(COLUMNS, ranking(tables["strategies"])),
            ),
            section(
                "What a move costs",
                "For one queue, by who owned it; a queue that stays costs nothing.",
                _costs(costs),
            ),
        ],
    )


@dataclass(frozen=True, slots=True)
class Strategies:
    """The strategies of a page, best first. failing: strategies that leave queues without a reader."""

    names: Sequence[str]
    failing: frozenset[str]

    def colour(self, name: str) -> int:
        """Return a strategy's colour, the same in every plot of the page."""
        return self.names.index(name)

    def marked(self, name: str) -> str:
        """Return a strategy's name, with a mark where it fails."""
        return f"✗ {name}" if name in self.failing else name


def _overview(ranked_rows: Sequence[Row], strategies: Strategies) -> Markup:
    points = [
        Point(
            name=row["strategy"],
            x=times_minimum(row) or 0.0,
            y=row["fullest_mean"] or 0.0,
            colour=strategies.colour(row["strategy"]),
            failing=row["strategy"] in strategies.failing,
        )
        for row in ranked_rows
    ]
    return section(
        "Few moves, even loads, or both",
        "Further left, fewer queues change hands; 1 is the minimum that keeps loads even. Further down, the "
        "fullest member carries less; 1 is as even as possible. A red ring and ✗ mark strategies that fail: "
        "they leave queues without a reader.",
        scatter(
            points,
            x_label="moves, times the minimum",
            y_label="fullest member, times the fairest share",
            label="Strategies by moves and by evenness",
        ),
    )


def _by_history(summary: Sequence[Row], strategies: Strategies) -> list[Markup]:
    """Return each strategy's results in each kind of history."""
    kinds = sorted({row["kind"] for row in summary} - {ALL})

    def compared(title: str, about: str, value: Callable[[Row], float | None], label: str) -> Markup:
        values = {(row["strategy"], row["kind"]): value(row) for row in summary}
        drawing = matrix(strategies.names, kinds, values, label=label, failing=strategies.failing)
        return section(title, about, drawing)

    return [
        compared(
            "Moves, times the minimum",
            "In each kind of history. Below 1, a strategy leaves loads uneven or queues unread.",
            times_minimum,
            "Moves by history",
        ),
        compared(
            "The fullest member, times the fairest share",
            "Mean over all steps.",
            lambda row: row["fullest_mean"],
            "Evenness by history",
        ),
        compared(
            "How long a queue paused",
            "Seconds in one history, mean over queues, from the moves and the costs in the table below.",
            lambda row: row["still_s_a_queue"],
            "Pauses by history",
        ),
        compared(
            "Messages that came twice",
            "In all histories of a kind.",
            lambda row: row["repeated"],
            "Duplicates by history",
        ),
    ]


def _computing(ranked_rows: Sequence[Row], strategies: Strategies) -> Markup:
    marks = [
        svg.Span(
            row=row["strategy"],
            middle=row["assignor_p50_ms"],
            most=row["assignor_p95_ms"],
            greatest=row["assignor_max_ms"],
            colour=strategies.colour(row["strategy"]),
        )
        for row in ranked_rows
    ]
    return section(
        "Computation time",
        "One assignment of a whole group: median, 95th percentile and longest of all steps.",
        svg.spans(marks, unit="ms", label="Assignor time by strategy", failing=strategies.failing),
    )


def _facts(tables: Mapping[str, Sequence[Row]]) -> list[tuple[str, str]]:
    groups = {(row["kind"], row["group"]): row for row in tables["histories"]}.values()
    steps = {(row["kind"], row["group"], row["step"]) for row in tables["steps"]}
    return [
        (f"{len(groups):,}", "groups, a history each"),
        (f"{sum(row['members_most'] for row in groups):,}", "members"),
        (f"{sum(row['queues'] for row in groups):,}", "queues"),
        (f"{len(steps):,}", "steps"),
        (f"{len({row['strategy'] for row in tables['histories']})}", "strategies"),
    ]


def _example(steps: Sequence[Row], kind: str, strategies: Strategies) -> Markup:
    """Return the moves in the first history of a kind; strategies with equal moves share a line."""
    group = next(row["group"] for row in steps if row["kind"] == kind)
    rows = [row for row in steps if (row["kind"], row["group"]) == (kind, group)]
    first = [row for row in rows if row["strategy"] == rows[0]["strategy"]]
    lines: dict[tuple[float, ...], list[str]] = {tuple(_summed(row["minimum"] for row in first)): []}
    for name in strategies.names:
        moved = _summed(row["moved"] for row in rows if row["strategy"] == name)
        if moved:
            lines.setdefault(tuple(moved), []).append(name)
    times = [datetime.fromtimestamp(at_ms / 1000, UTC) for at_ms in (0, *(row["at_ms"] for row in first))]
    series: list[tuple[str, list[tuple[datetime, float]]]] = []
    colours: list[int] = []
    for values, names in lines.items():
        is_minimum = not series
        shown = [*([MINIMUM] if is_minimum else []), *map(strategies.marked, names)]
        series.append((", ".join(shown), list(zip(times, [0.0, *values], strict=True))))
        colours.append(strategies.colour(names[0]) if names else len(strategies.names))
    return section(
        f"One history: {kind}",
        f"Queues moved so far in {group}, which has {rows[0]['queues']:,} queues and, after the first step, "
        f"{rows[0]['members']:,} members.",
        svg.lines(series, label=f"Moves over time, {kind}", colours=colours),
        svg.legend((name for name, _ in series), colours),
    )


def _summed(values: Iterable[int]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums


def _costs(costs: Costs) -> Markup:
    causes = (HANDOVER, *Departure)
    return html_table(
        ("owner of the queue", "allocated by", "pause ms", "messages that come twice"),
        [
            (cause, allocator.value, text(cost.pause_ms), text(cost.repeated))
            for allocator in Allocator
            for cause, cost in ((each, costs[allocator, each]) for each in causes)
        ],
    )
