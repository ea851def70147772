"""The rebalance page's part from clients' traces: redeliveries, and the delay of messages."""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

from markupsafe import Markup

from libramq.report import svg
from libramq.report.page import html_table, note, section, tiles
from libramq.spark.pipeline.rebalances.hours import HOURS_MAX, by_hour

Row = Mapping[str, Any]

#: Ours, each: as much as a person can look at.
GROUPS_MAX: Final = svg.COLOURS
CLIENTS_MAX: Final = 40
EFFECTS_MAX: Final = 12
CAUSES: Final = (("a rebalance", "by_rebalance"), ("a retry", "by_retry"), ("not known", "unknown"))


def trace_sections(tables: Mapping[str, Sequence[Row]]) -> list[Markup]:
    """Return the sections of these tables; none without traces."""
    hours, effects = tables["deliveries"], tables["effects"]
    if not hours:
        return []
    names = [name for name, _ in CAUSES]
    return [
        section("What clients traced", "Each call of a listener with a message.", tiles(_facts(hours))),
        section(
            "Redelivered messages",
            "Deliveries of messages that their group had been given before, each hour, by why they came "
            "again. Those of a rebalance began during it or soon after.",
            svg.bars(*by_hour(hours, names, _of_causes), label="Redelivered messages each hour by cause")
            if _sum(hours, "duplicates")
            else note("None."),
            *([svg.legend(names)] if _sum(hours, "duplicates") else []),
        ),
        section(
            "How late messages were",
            "From when a message was made until a consumer began with it: in each hour the 95th percentile "
            "in ms, of one hour also median and longest.",
            _late(hours),
        ),
        *_effects(effects),
        section(
            "What clients were given",
            "In the last hour of each group. Shares that differ much: queues differ, or are shared badly.",
            _clients(tables["clients"]),
        ),
    ]


def _facts(hours: Sequence[Row]) -> list[tuple[str, str]]:
    return [
        (f"{_sum(hours, 'deliveries'):,}", "deliveries traced"),
        (f"{_sum(hours, 'duplicates'):,}", "messages redelivered"),
        (f"{_sum(hours, 'by_rebalance'):,}", "because of rebalances"),
        (f"{_sum(hours, 'by_retry'):,}", "because they had failed"),
        (f"{_sum(hours, 'succeeded_twice'):,}", "succeeded twice"),
    ]


def _of_causes(row: Row) -> Iterable[tuple[int, float]]:
    return enumerate(row[column] for _, column in CAUSES)


def _late(hours: Sequence[Row]) -> Markup:
    """Return a line for each group with enough hours, else bars with the quantiles."""
    known = [row for row in hours if row["delay_p95_ms"] is not None]
    if not known:
        return note("Not known: no message has an id that says when it was made.")
    last = max(row["hour"] for row in known)
    by_group: dict[str, list[Row]] = {}
    for row in known:
        if row["hour"] > last - timedelta(hours=HOURS_MAX):
            by_group.setdefault(row["group"], []).append(row)
    names = sorted(by_group, key=lambda name: (-_sum(by_group[name], "deliveries"), name))[:GROUPS_MAX]
    if len({row["hour"] for row in known}) == 1:
        marks = [
            svg.Span(
                row=name, middle=row["delay_p50_ms"], most=row["delay_p95_ms"], greatest=row["delay_max_ms"]
            )
            for name in names
            for row in by_group[name]
        ]
        return svg.spans(marks, unit="ms", label="How late messages were by group")
    series = [(name, [(row["hour"], row["delay_p95_ms"]) for row in by_group[name]]) for name in names]
    return svg.lines(series, label="How late messages were each hour by group") + svg.legend(names)


def _effects(effects: Sequence[Row]) -> list[Markup]:
    """Return the rebalances with the most redeliveries, or the longest delays."""
    known = [
        row for row in effects if row["after_max_ms"] is not None or row["duplicates"] or row["lag_peak"]
    ]
    if not known:
        return []
    worst = sorted(known, key=lambda row: (-(row["duplicates"] or 0), -(row["after_max_ms"] or 0), row["at"]))
    has_lag = any(row["lag_peak"] is not None for row in known)
    return [section(
        "What rebalances did",
        "Delays in the minute before and in the five minutes after; normal is when nothing was later than "
        "the latest before.",
        html_table(
            (
                "when (UTC)", "group", "why", "redelivered", "succeeded twice", "before: p50 / max",
                "after: p50 / max", "normal after",
                *(("lag before", "peak", "back after") if has_lag else ()),
            ),
            [
                (
                    f"{row['at']:%d %b %H:%M:%S}",
                    row["group"],
                    row["reason"],
                    row["duplicates"],
                    row["succeeded_twice"],
                    _both(row["before_p50_ms"], row["before_max_ms"]),
                    _both(row["after_p50_ms"], row["after_max_ms"]),
                    _millis(row["back_to_normal_ms"]),
                    *((row["lag_before"], row["lag_peak"], _millis(row["lag_back_ms"])) if has_lag else ()),
                )
                for row in worst[:EFFECTS_MAX]
            ],
        ),
    )]  # fmt: skip


def _clients(clients: Sequence[Row]) -> Markup:
    last: dict[str, datetime] = {}
    for row in clients:
        last[row["group"]] = max(row["hour"], last.get(row["group"], row["hour"]))
    rows = [row for row in clients if row["hour"] == last[row["group"]]]
    return html_table(
        ("group", "client", "from (UTC)", "to", "deliveries", "redelivered"),
        [
            (
                row["group"],
                row["client"],
                f"{row['first_at']:%Y-%m-%d %H:%M:%S}",
                f"{row['last_at']:%H:%M:%S}",
                row["deliveries"],
                row["duplicates"],
            )
            for row in sorted(rows, key=lambda row: (row["group"], -row["deliveries"]))[:CLIENTS_MAX]
        ],
    )


def _both(middle: float | None, most: float | None) -> str | None:
    return None if most is None else f"{_millis(middle)} / {_millis(most)}"


def _millis(value: float | None) -> str | None:
    if value is None:
        return None
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


def _sum(rows: Iterable[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)
