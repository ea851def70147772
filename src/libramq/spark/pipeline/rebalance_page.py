"""The rebalance page, for people: the rebalances of a cluster's groups, and redeliveries and delays from
clients' traces.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from math import sqrt
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from markupsafe import Markup

from libramq.clock import WallMs
from libramq.report import svg
from libramq.report.page import html_table, note, page, section, tiles, written

Row = Mapping[str, Any]

#: Ours: groups in a plot.
GROUPS_MAX: Final = 20
#: Ours: dots in the plot of rebalances.
DOTS_MAX: Final = 3_000
#: Ours: rows in the table of the longest pauses.
WORST_MAX: Final = 12
#: Ours: one colour for each reason.
REASONS_MAX: Final = svg.COLOURS
OTHER: Final = "other"


def rebalance_page(tables: Mapping[str, Sequence[Row]], wall_ms: WallMs, remarks: Sequence[str] = ()) -> str:
    """Return the HTML page of these tables. remarks: the data they lack."""
    rebalances, clients = tables.get("rebalances", ()), tables.get("clients", ())
    times = [row["at"] for row in rebalances]
    times += [row[name] for row in clients for name in ("first_at", "last_at")]
    made = datetime.fromtimestamp(int(wall_ms) / 1000, UTC)
    if not times:
        return page("Rebalances", f"None up to {made:%Y-%m-%d %H:%M} UTC.", ())
    more = len({row["group"] for row in rebalances}) > GROUPS_MAX
    return page(
        "Rebalances",
        f"{min(times):%Y-%m-%d %H:%M} to {max(times):%Y-%m-%d %H:%M} UTC, made {made:%Y-%m-%d %H:%M}."
        + (f" Plots show the {GROUPS_MAX} groups with the most rebalances." if more else ""),
        [
            *(note(f"Missing: {remark}.") for remark in remarks),
            *(_rebalance_sections(tables) if rebalances else ()),
            *(trace_sections(tables) if "deliveries" in tables else ()),
        ],
    )


def _rebalance_sections(tables: Mapping[str, Sequence[Row]]) -> list[Markup]:
    rebalances, moves = tables["rebalances"], tables["moves"]
    names = [name for name, _ in Counter(row["group"] for row in rebalances).most_common()]
    shown = names[:GROUPS_MAX]
    reasons = _reasons(tables["reasons"])

    def of_reason(row: Row) -> Iterable[tuple[int, float]]:
        return ((_colour(reasons, row["reason"]), row["rebalances"]),)

    pauses: dict[str, list[float]] = {name: [] for name in names}
    for move in moves:
        if move["from"] is not None:
            pauses[move["group"]].append(move["pause_ms"])
    stable = {
        name: [row["time_to_stable_ms"] for row in rebalances if row["group"] == name] for name in shown
    }
    return [
        tiles(_facts(rebalances, pauses, tables["members"])),
        section(
            "When, and why",
            "Each dot is a rebalance. Its size shows how many queues moved, its colour why it began.",
            svg.dots(shown, _dots(rebalances, shown, reasons), label="Rebalances of each group over time"),
            svg.legend(reasons),
        ),
        section(
            "Each hour",
            "How many rebalances began, by their reason.",
            svg.bars(*by_hour(tables["reasons"], reasons, of_reason), label="Rebalances each hour by reason"),
        ),
        section(
            "How long queues paused",
            "Of every queue that went from one member to another: median, 95th percentile, longest.",
            _spans({name: pauses[name] for name in shown}, "Pauses of queues by group"),
        ),
        section(
            "How long until groups were stable",
            "From the first event until new owners read all queues: median, 95th percentile, longest.",
            _spans(stable, "Time to stable by group"),
        ),
        section(
            "Groups",
            "Moves beyond the minimum, and redeliveries, are needless.",
            _groups(rebalances, pauses, names),
        ),
        section("The longest pauses", "The rebalances in which a queue paused longest.", _worst(rebalances)),
        *_flapping(tables["members"]),
    ]


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated between neighbours as in Spark's percentile."""
    return float(pc.quantile(pa.array(values), q=share)[0].as_py())


def _facts(
    rebalances: Sequence[Row], pauses: Mapping[str, Sequence[float]], members: Sequence[Row]
) -> list[tuple[str, str]]:
    all_pauses = [pause for of_group in pauses.values() for pause in of_group]
    stable = [row["time_to_stable_ms"] for row in rebalances if row["time_to_stable_ms"] is not None]
    flapping = {(row["group"], row["member"]) for row in members if row["is_flapping"]}
    return [
        (f"{len(rebalances):,}", f"rebalances of {len(pauses)} groups"),
        (f"{_sum(rebalances, 'moved'):,} / {_sum(rebalances, 'minimum'):,}", "queues moved / minimum"),
        (_millis(quantile(all_pauses, 0.5) if all_pauses else None), "median pause of a queue"),
        (_millis(max(all_pauses, default=None)), "longest pause"),
        (_millis(quantile(stable, 0.5) if stable else None), "median time to stable"),
        (written(_redelivered(rebalances)), "messages redelivered at most"),
        (f"{len(flapping):,}", "members left again and again"),
    ]


def _reasons(rows: Sequence[Row]) -> list[str]:
    """Return the reasons that get a colour, the most frequent first."""
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row["reason"]] += row["rebalances"]
    names = [name for name, _ in counts.most_common()]
    return names if len(names) <= REASONS_MAX else [*names[: REASONS_MAX - 1], OTHER]


def _colour(reasons: Sequence[str], reason: str) -> int:
    return reasons.index(reason) if reason in reasons else len(reasons) - 1


def _dots(rebalances: Sequence[Row], shown: Sequence[str], reasons: Sequence[str]) -> list[svg.Dot]:
    rows = [row for row in rebalances if row["group"] in shown]
    return [
        svg.Dot(
            row=row["group"],
            at=row["at"],
            radius=min(14.0, 4 + sqrt(row["moved"] or 0)),
            colour=_colour(reasons, row["reason"]),
            hint=f"{row['at']:%d %b %H:%M:%S} {row['reason']}: {_moved(row)} moved, worst pause "
            f"{_millis(row['worst_pause_ms'])}, stable after {_millis(row['time_to_stable_ms'])}",
        )
        for row in rows[-DOTS_MAX:]
    ]


def _spans(values: Mapping[str, Sequence[float | None]], label: str) -> Markup:
    marks = []
    for name, sample in values.items():
        known = [value for value in sample if value is not None]
        if known:
            marks.append(
                svg.Span(
                    row=name, middle=quantile(known, 0.5), most=quantile(known, 0.95), greatest=max(known)
                )
            )
    return svg.spans(marks, unit="ms", label=label) if marks else note("No queue changed its owner.")


def _groups(rebalances: Sequence[Row], pauses: Mapping[str, Sequence[float]], names: Sequence[str]) -> Markup:
    by_group: dict[str, list[Row]] = {name: [] for name in names}
    for row in rebalances:
        by_group[row["group"]].append(row)
    return html_table(
        (
            "group", "rebalances", "moved", "minimum", "median pause ms", "p95 pause ms", "redelivered ≤",
            "reported twice", "unevenness", "catching up /s", "interrupted",
        ),
        [
            (
                name,
                len(rows),
                _sum(rows, "moved"),
                _sum(rows, "minimum"),
                quantile(pauses[name], 0.5) if pauses[name] else None,
                quantile(pauses[name], 0.95) if pauses[name] else None,
                _redelivered(rows),
                _sum(rows, "duplicates_reported"),
                _most(row["most_load"] - row["least_load"] for row in rows if row["most_load"] is not None),
                _most(row["peak_catch_up_rate"] or 0 for row in rows),
                sum(row["state"] == "interrupted" for row in rows),
            )
            for name, rows in by_group.items()
        ],
    )  # fmt: skip


def _worst(rebalances: Sequence[Row]) -> Markup:
    worst = sorted(rebalances, key=lambda row: (-(row["worst_pause_ms"] or 0), row["at"]))[:WORST_MAX]
    return html_table(
        ("when (UTC)", "group", "why", "who", "moved/min", "worst pause ms", "stable ms", "redelivered ≤"),
        [
            (
                f"{row['at']:%Y-%m-%d %H:%M:%S}",
                row["group"],
                row["reason"],
                ", ".join(dict.fromkeys(cause["who"] for cause in row["causes"] if cause["who"])) or None,
                _moved(row),
                row["worst_pause_ms"],
                row["time_to_stable_ms"],
                _redelivered([row]),
            )
            for row in worst
        ],
    )


def _flapping(members: Sequence[Row]) -> list[Markup]:
    rows = [row for row in members if row["is_flapping"]]
    if not rows:
        return []
    table = html_table(
        ("hour (UTC)", "group", "member", "joined", "gone"),
        [
            (f"{row['hour']:%Y-%m-%d %H:%M}", row["group"], row["member"], row["joined"], row["gone"])
            for row in sorted(rows, key=lambda row: (-row["gone"], row["hour"], row["member"]))
        ],
    )
    about = "They left several times within one hour; their group rebalanced at each leave and each return."
    return [section("Members that left again and again", about, table)]


def _moved(row: Row) -> str:
    return "–" if row["moved"] is None else f"{row['moved']}/{row['minimum']}"


def _most(values: Iterable[int]) -> int | None:
    return max(values, default=None)


def _sum(rows: Sequence[Row], name: str) -> int:
    return sum(row[name] or 0 for row in rows)


def _redelivered(rows: Sequence[Row]) -> int | str:
    """Return an upper bound of the redelivered messages, with `?` if it is unknown for some."""
    bounds: list[int | None] = [row["redelivered_upper_bound"] for row in rows]
    known = [bound for bound in bounds if bound is not None]
    if len(known) == len(rows):
        return sum(known)
    return f"{sum(known):,} + ?" if known else "?"


def _millis(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:,.0f} ms" if value < 10_000 else f"{value / 1000:,.1f} s"


#: Ours: one week.
HOURS_MAX: Final = 168

_HOUR: Final = timedelta(hours=1)


def by_hour(
    rows: Sequence[Row], names: Sequence[str], numbers: Callable[[Row], Iterable[tuple[int, float]]]
) -> tuple[list[datetime], list[tuple[str, list[float]]]]:
    """Return the hours, and a series per name. numbers: a row's values, each with the index of its name."""
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


#: Ours: one colour for each group.
TRACED_GROUPS_MAX: Final = svg.COLOURS
#: Ours: rows in the table of clients.
CLIENTS_MAX: Final = 40
#: Ours: rows in the table of rebalances' effects.
EFFECTS_MAX: Final = 12
CAUSES: Final = (("a rebalance", "by_rebalance"), ("a retry", "by_retry"), ("not known", "unknown"))


def trace_sections(tables: Mapping[str, Sequence[Row]]) -> list[Markup]:
    """Return the sections of these tables; none without traces."""
    hours, effects = tables["deliveries"], tables["effects"]
    if not hours:
        return []
    names = [name for name, _ in CAUSES]

    def of_causes(row: Row) -> Iterable[tuple[int, float]]:
        return enumerate(row[column] for _, column in CAUSES)

    return [
        section("What clients traced", "Each call of a listener with a message.", tiles(_trace_facts(hours))),
        section(
            "Redelivered messages",
            "Deliveries of messages that their group had already received, each hour, by the cause of the "
            "redelivery. Those of a rebalance began during it or soon after.",
            svg.bars(*by_hour(hours, names, of_causes), label="Redelivered messages each hour by cause")
            if _sum(hours, "duplicates")
            else note("None."),
            *([svg.legend(names)] if _sum(hours, "duplicates") else []),
        ),
        section(
            "How late messages were",
            "From a message's creation until a consumer began to handle it: the 95th percentile of each hour "
            "in ms; for a single hour also median and maximum.",
            _late(hours),
        ),
        *_effects(effects),
        section(
            "What clients received",
            "In the last hour of each group. Very different shares: queues differ, or are assigned badly.",
            _clients(tables["clients"]),
        ),
    ]


def _trace_facts(hours: Sequence[Row]) -> list[tuple[str, str]]:
    return [
        (f"{_sum(hours, 'deliveries'):,}", "deliveries traced"),
        (f"{_sum(hours, 'duplicates'):,}", "messages redelivered"),
        (f"{_sum(hours, 'by_rebalance'):,}", "because of rebalances"),
        (f"{_sum(hours, 'by_retry'):,}", "because they had failed"),
        (f"{_sum(hours, 'succeeded_twice'):,}", "succeeded twice"),
    ]


def _late(hours: Sequence[Row]) -> Markup:
    """Return a line per group if there are enough hours, else bars with the quantiles."""
    known = [row for row in hours if row["delay_p95_ms"] is not None]
    if not known:
        return note("Unknown: no message has an id with its creation time.")
    last = max(row["hour"] for row in known)
    by_group: dict[str, list[Row]] = {}
    for row in known:
        if row["hour"] > last - timedelta(hours=HOURS_MAX):
            by_group.setdefault(row["group"], []).append(row)
    names = sorted(by_group, key=lambda name: (-_sum(by_group[name], "deliveries"), name))[:TRACED_GROUPS_MAX]
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
        "Delays in the minute before and in the five minutes after; normal is when no delay exceeds the "
        "longest before.",
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
