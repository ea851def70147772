"""The laboratory's page: what strategies did to groups, for a person to look at."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, Final

from libramq.clock import WallMs
from libramq.lab.cost import HANDOVER, Costs
from libramq.lab.entrant import Allocator
from libramq.lab.history import Departure
from libramq.lab.ranking import COLUMNS, ranked, ranking, text, times_minimum
from libramq.lab.tables import ALL
from libramq.spark.report import svg
from libramq.spark.report.comparison import Point, matrix, scatter
from libramq.spark.report.page import html_table, page, section, tiles

Row = Mapping[str, Any]

MINIMUM: Final = "minimum"
#: Colours of a plot with lines.
LINES_MAX: Final = svg.COLOURS


def lab_page(tables: Mapping[str, Sequence[Row]], costs: Costs, wall_ms: WallMs) -> str:
    """The page of these tables."""
    summary = tables["strategies"]
    overall = ranked(summary)
    names = [row["strategy"] for row in overall]
    kinds = sorted({row["kind"] for row in summary} - {ALL})
    made = datetime.fromtimestamp(int(wall_ms) / 1000, UTC)
    return page(
        "Strategy laboratory",
        f"How allocation strategies fare when members come and go; made {made:%Y-%m-%d %H:%M} UTC.",
        [
            tiles(_facts(tables)),
            _moves_and_evenness(overall),
            *_by_history(names, kinds, summary),
            *_examples(tables["steps"], names, kinds),
            _computing(overall),
            section("In numbers", "All histories together.", html_table(COLUMNS, ranking(summary))),
            section(
                "What a move costs",
                "Of one queue, by whose it was; a queue that stays costs nothing.",
                _costs(costs),
            ),
        ],
    )


def _moves_and_evenness(overall: Iterable[Row]) -> str:
    return section(
        "Few moves, or even loads, or both",
        "To the left: fewer queues change hands, 1 being the minimum that keeps loads even. Down: "
        "the fullest member carries less, 1 being as even as can be. Red rings leave queues without "
        "any reader.",
        scatter(
            [
                Point(
                    name=row["strategy"],
                    x=times_minimum(row) or 0.0,
                    y=row["fullest_mean"] or 0.0,
                    hollow=row["unowned_most"] > 0,
                )
                for row in overall
            ],
            x_label="moves, times the minimum",
            y_label="fullest member, times the fairest share",
            label="Strategies by moves and by evenness",
        ),
    )


def _by_history(names: Sequence[str], kinds: Sequence[str], summary: Sequence[Row]) -> list[str]:
    """Return what is compared in each kind of history."""
    return [
        section(
            "Moves, times the minimum",
            "In each kind of history. Below 1 a strategy leaves loads uneven, or queues unread.",
            _matrix(names, kinds, summary, times_minimum, "Moves by history"),
        ),
        section(
            "The fullest member, times the fairest share",
            "Mean over all steps.",
            _matrix(names, kinds, summary, lambda row: row["fullest_mean"], "Evenness by history"),
        ),
        section(
            "How long a queue stood still",
            "Seconds in one history, for the mean queue: what moved, at the cost in the table below.",
            _matrix(names, kinds, summary, lambda row: row["still_s_a_queue"], "Pauses by history"),
        ),
        section(
            "Messages that came twice",
            "In all histories of a kind.",
            _matrix(names, kinds, summary, lambda row: row["repeated"], "Duplicates by history"),
        ),
    ]


def _computing(overall: Iterable[Row]) -> str:
    return section(
        "How long a strategy computes",
        "All shares of a group at once: median, 95th percentile, longest of all steps.",
        svg.spans(
            [
                svg.Span(
                    row=row["strategy"],
                    middle=row["assignor_p50_ms"],
                    most=row["assignor_p95_ms"],
                    greatest=row["assignor_max_ms"],
                )
                for row in overall
            ],
            unit="ms",
            label="Assignor time by strategy",
        ),
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


def _matrix(
    names: Sequence[str], kinds: Sequence[str], summary: Iterable[Row], value: Any, label: str
) -> str:
    values = {(row["strategy"], row["kind"]): value(row) for row in summary}
    return matrix(names, kinds, values, label=label)


def _examples(steps: Sequence[Row], names: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """One history of each kind, move by move; strategies that do the same share a line."""
    found = []
    for kind in kinds:
        group = next(row["group"] for row in steps if row["kind"] == kind)
        rows = [row for row in steps if row["kind"] == kind and row["group"] == group]
        lines: dict[tuple[float, ...], list[str]] = {}
        minimum = _summed(row["minimum"] for row in rows if row["strategy"] == rows[0]["strategy"])
        lines[tuple(minimum)] = [MINIMUM]
        for name in names:
            moved = _summed(row["moved"] for row in rows if row["strategy"] == name)
            if moved:
                lines.setdefault(tuple(moved), []).append(name)
        times = [datetime.fromtimestamp(0, UTC)]
        times += [
            datetime.fromtimestamp(row["at_ms"] / 1000, UTC)
            for row in rows
            if row["strategy"] == rows[0]["strategy"]
        ]
        shown = list(lines.items())[:LINES_MAX]
        series = [(", ".join(who), list(zip(times, [0.0, *values], strict=True))) for values, who in shown]
        found.append(
            section(
                f"One history: {kind}",
                f"Queues that have moved so far in {group}: {rows[0]['queues']:,} queues, "
                f"{rows[0]['members']:,} members after the first step."
                + (
                    ""
                    if len(shown) == len(lines)
                    else f" {len(lines) - len(shown)} more lines are not shown."
                ),
                svg.lines(series, label=f"Moves over time, {kind}"),
                svg.legend(name for name, _ in series),
            )
        )
    return found


def _summed(values: Iterable[int]) -> list[float]:
    total, sums = 0.0, []
    for value in values:
        total += value
        sums.append(total)
    return sums


def _costs(costs: Costs) -> str:
    causes = (HANDOVER, *Departure)
    return html_table(
        ("whose the queue was", "allocated by", "pause ms", "messages that come twice"),
        [
            (cause, allocator.value, text(cost.pause_ms), text(cost.repeated))
            for allocator in Allocator
            for cause, cost in ((each, costs[allocator, each]) for each in causes)
        ],
    )
