"""The ranking: strategies over all histories, as text rows; the page and the terminal show the same.

The best first: strategies that leave no queue unread, then by moves, then by evenness.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from libramq.lab.tables import ALL
from libramq.report.comparison import written

Row = Mapping[str, Any]

COLUMNS: Final = (
    "strategy",
    "computed by",
    "moves / minimum",
    "fullest member / fair",
    "worst",
    "unread at most",
    "a queue's pause, s",
    "worst pause, ms",
    "came twice",
    "assignor, ms",
)


def ranked(strategies: Iterable[Row]) -> list[Row]:
    """Return the rows over all histories, in order."""
    return sorted((row for row in strategies if row["kind"] == ALL), key=_order)


def ranking(strategies: Iterable[Row]) -> list[Sequence[str]]:
    """Return the rows under COLUMNS."""
    return [
        (
            row["strategy"],
            row["allocator"],
            text(times_minimum(row)),
            text(row["fullest_mean"]),
            text(row["fullest_worst"]),
            text(row["unowned_most"]),
            text(row["still_s_a_queue"]),
            text(row["worst_pause_ms"]),
            text(row["repeated"]),
            text(row["assignor_p50_ms"]),
        )
        for row in ranked(strategies)
    ]


def times_minimum(row: Row) -> float | None:
    """Return moves over the minimum; None if none were necessary."""
    return row["moved"] / row["minimum"] if row["minimum"] else None


def text(value: float | None) -> str:
    """Format a number for people; a dash if there is none."""
    return "–" if value is None else written(value)


def _order(row: Row) -> tuple[bool, float, float, str]:
    return (row["unowned_most"] > 0, times_minimum(row) or 0.0, row["fullest_mean"] or 0.0, row["strategy"])
