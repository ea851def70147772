"""The ranking: strategies over all histories, as text rows; the page and the terminal show the same.

The best first: strategies that leave no queue unread, then by moves, then by evenness.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import itemgetter
from typing import Any, Final

from libramq.lab.tables import ALL
from libramq.report.comparison import written

Row = Mapping[str, Any]


def times_minimum(row: Row) -> float | None:
    """Return moves over the minimum; None if none were necessary."""
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
    """Return the rows over all histories, in order."""

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
