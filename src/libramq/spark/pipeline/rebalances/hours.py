"""Hours: rows of hourly tables as bars, from the first hour to the last, at most of the last week."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

#: Ours: as much as a person can look at.
HOURS_MAX: Final = 168

_HOUR: Final = timedelta(hours=1)


def by_hour(
    rows: Sequence[Mapping[str, Any]],
    names: Sequence[str],
    numbers: Callable[[Mapping[str, Any]], Iterable[tuple[int, float]]],
) -> tuple[list[datetime], list[tuple[str, list[float]]]]:
    """Return the hours, and a series per name. numbers: a row's values, each with its name's index."""
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
