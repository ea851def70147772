"""Hours: rows of hourly tables as bars, every hour from the first to the last, of the last week at most."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

#: Ours: what a person can still look at.
HOURS_MAX: Final = 168

_HOUR: Final = timedelta(hours=1)


def by_hour(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    numbers: Callable[[Mapping[str, Any]], Iterable[tuple[int, float]]],
) -> tuple[list[datetime], list[tuple[str, list[float]]]]:
    """The hours, and a series for each name. numbers: what a row adds, each with the index of its name."""
    last = max(row["hour"] for row in rows)
    first = max(min(row["hour"] for row in rows), last - (HOURS_MAX - 1) * _HOUR)
    count = (last - first) // _HOUR + 1
    values = [[0.0] * count for _ in names]
    for row in rows:
        index = (row["hour"] - first) // _HOUR
        if index >= 0:
            for series, number in numbers(row):
                values[series][index] += number
    return [first + index * _HOUR for index in range(count)], list(zip(names, values, strict=True))
