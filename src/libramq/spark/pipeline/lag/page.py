"""The lag page: the lag of groups over time, for people; how many groups and points it shows."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from markupsafe import Markup

from libramq.report import svg
from libramq.report.page import html_table, note, page, section, tiles

Row = Mapping[str, Any]

#: Ours, each: as much as a person can look at.
LINES_MAX: Final = svg.COLOURS
POINTS_MAX: Final = 600
QUEUES_MAX: Final = 20


def lag_page(tables: Mapping[str, Sequence[Row]]) -> str:
    """Return the page of these tables; neither is empty."""
    groups = tables["groups"]
    first, last = groups[0]["at"], groups[-1]["at"]
    now = [row for row in groups if row["at"] == last]
    return page(
        "Lag",
        f"{first:%Y-%m-%d %H:%M:%S} to {last:%Y-%m-%d %H:%M:%S} UTC. Figures are of the end.",
        [
            tiles(_facts(now)),
            _over_time(groups),
            section(
                "Groups and topics",
                "Caught up: at the rates of the last two samples. A dash: not at these rates.",
                _groups(now),
            ),
            section(
                "Queues that are furthest behind",
                "One far behind the others has a slow member, or a key that many messages share.",
                _queues([row for row in tables["lag"] if row["at"] == last and row["lag"]]),
            ),
        ],
    )


def _facts(now: Sequence[Row]) -> list[tuple[str, str]]:
    return [
        (f"{sum(row['lag'] for row in now):,}", "messages are behind"),
        (f"{len({row['group'] for row in now}):,}", "groups"),
        (f"{sum(_produced(now).values()):,.0f}", "produced a second"),
        (f"{sum(row['consumed_per_s'] or 0 for row in now):,.0f}", "consumed a second"),
    ]


def _over_time(groups: Sequence[Row]) -> Markup:
    series = _series(groups)
    more = f" The {LINES_MAX} with the most are shown." if len(_names(groups)) > LINES_MAX else ""
    return section(
        "Lag over time",
        f"Messages that are stored and not yet committed, by group and topic.{more}",
        svg.lines(series, label="Lag of each group and topic over time"),
        svg.legend(name for name, _ in series),
    )


def _groups(now: Sequence[Row]) -> Markup:
    return html_table(
        ("group", "topic", "queues", "lag", "produced /s", "consumed /s", "caught up in"),
        [
            (
                row["group"],
                row["topic"],
                row["queues"],
                row["lag"],
                row["produced_per_s"],
                row["consumed_per_s"],
                _duration(row["caught_up_in_s"]),
            )
            for row in sorted(now, key=lambda row: (-row["lag"], row["group"], row["topic"]))
        ],
    )


def _queues(behind: Sequence[Row]) -> Markup:
    if not behind:
        return note("None.")
    ordered = sorted(
        behind, key=lambda row: (-row["lag"], row["group"], row["topic"], row["broker"], row["queueId"])
    )
    return html_table(
        ("group", "topic", "broker", "queue", "lag", "consumed /s", "caught up in"),
        [
            (
                row["group"],
                row["topic"],
                row["broker"],
                str(row["queueId"]),
                row["lag"],
                row["consumed_per_s"],
                _duration(row["caught_up_in_s"]),
            )
            for row in ordered[:QUEUES_MAX]
        ],
    )


def _produced(groups: Sequence[Row]) -> dict[str, float]:
    """Return the messages produced to each topic, however many groups read it."""
    rates: dict[str, float] = {}
    for row in groups:
        rates[row["topic"]] = max(rates.get(row["topic"], 0), row["produced_per_s"] or 0)
    return rates


def _names(groups: Sequence[Row]) -> list[tuple[str, str]]:
    """Return groups and topics, the largest lag first."""
    most: dict[tuple[str, str], int] = {}
    for row in groups:
        name = (row["group"], row["topic"])
        most[name] = max(most.get(name, 0), row["lag"])
    return sorted(most, key=lambda name: (-most[name], name))


def _series(groups: Sequence[Row]) -> list[tuple[str, list[tuple[datetime, float]]]]:
    """Return a line for each group and topic, with every n-th point if there are many."""
    found = []
    for group, topic in _names(groups)[:LINES_MAX]:
        points = [(row["at"], row["lag"]) for row in groups if (row["group"], row["topic"]) == (group, topic)]
        found.append((f"{group} · {topic}", points[:: -(-len(points) // POINTS_MAX)]))
    return found


def _duration(seconds: float | None) -> str | None:
    if seconds is None:
        return None
    if seconds < 120:
        return f"{seconds:,.0f} s"
    return f"{seconds / 60:,.0f} min" if seconds < 7200 else f"{seconds / 3600:,.1f} h"
