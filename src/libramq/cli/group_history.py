"""The group history: rebalances told as a timeline, and as JSON."""

import time
from collections.abc import Sequence
from itertools import groupby
from typing import Any, Final

from libramq.groups.rebalance_event import QueueMove
from libramq.groups.rebalance_history import Rebalance, State

#: How many members, or pairs of members, a line of the timeline names.
NAMED_MAX: Final = 8


def timeline(rebalance: Rebalance) -> list[str]:
    """A rebalance as lines for people; the first begins with its time."""
    when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(rebalance.at_ms / 1000))
    lines = [f"{when}  {causes(rebalance)}  ({', '.join(rebalance.brokers)})"]
    if rebalance.moved is None:
        lines.append(
            "moving" if rebalance.state is State.MOVING else "interrupted: the broker never said how it ended"
        )
    else:
        unowned = f", {_count(rebalance.unowned, 'queue')} without an owner" if rebalance.unowned else ""
        also = "" if rebalance.state is State.SETTLED else f"; {rebalance.state} at some brokers"
        lines += [
            f"{moved(rebalance)} queues moved (actual/minimum), stable after "
            f"{duration(rebalance.time_to_stable_ms)}, worst pause {duration(rebalance.worst_pause_ms)}, "
            f"at most {_count(rebalance.redelivered_upper_bound, 'message')} came again{unowned}{also}",
            *_catching_up(rebalance.peak_catch_up_rate),
            *_moves(rebalance.moves),
            _loads(rebalance.member_count, rebalance.loads),
        ]
    return [lines[0], *(f"    {line}" for line in lines[1:])]


def causes(rebalance: Rebalance) -> str:
    """Why, and who: `member_joined a, b; connection_closed c`."""
    return "; ".join(
        " ".join([reason, _named([cause.who for cause in lot if cause.who])]).rstrip()
        for reason, lot in groupby(rebalance.causes, key=lambda cause: cause.reason)
    )


def moved(rebalance: Rebalance) -> str:
    """Moves against the minimum; a dash before they are known."""
    return "–" if rebalance.moved is None else f"{rebalance.moved}/{rebalance.minimum}"


def duration(milliseconds: int | None) -> str:
    """A time span for people."""
    if milliseconds is None:
        return "–"
    return f"{milliseconds} ms" if milliseconds < 10_000 else f"{milliseconds / 1000:.1f} s"


def as_json(rebalance: Rebalance) -> dict[str, Any]:
    """A rebalance for programs, under the names of the events."""
    return {
        "group": rebalance.group,
        "at_ms": rebalance.at_ms,
        "state": rebalance.state.value,
        "causes": [cause._asdict() for cause in rebalance.causes],
        "brokers": list(rebalance.brokers),
        "member_count": rebalance.member_count,
        "moved": rebalance.moved,
        "minimum": rebalance.minimum,
        "time_to_stable_ms": rebalance.time_to_stable_ms,
        "worst_pause_ms": rebalance.worst_pause_ms,
        "redelivered_upper_bound": rebalance.redelivered_upper_bound,
        "duplicates_reported": rebalance.duplicates_reported,
        "peak_catch_up_rate": rebalance.peak_catch_up_rate,
        "unowned": rebalance.unowned,
        "loads": rebalance.loads,
        "moves": [
            {
                "topic": move.topic,
                "broker": move.broker,
                "queue": move.queue,
                "from": move.from_,
                "to": move.to,
                "pause_ms": move.pause_ms,
                "redelivered": move.redelivered,
                "double_owner_ms": move.double_owner_ms,
            }
            for move in rebalance.moves
        ],
    }


def _catching_up(rate: int | None) -> list[str]:
    return [f"new owners read up to {_count(rate, 'message')} a second to catch up"] if rate else []


def _moves(moves: Sequence[QueueMove]) -> list[str]:
    """A line for each pair of members."""
    pairs: dict[tuple[str, str], list[QueueMove]] = {}
    for move in moves:
        pairs.setdefault((move.from_ or "nobody", move.to), []).append(move)
    lines = [
        f"{giver} → {taker}: {_count(len(lot), 'queue')}"
        + ("" if giver == "nobody" else f", still for {_range([move.pause_ms for move in lot])} ms")
        + (f", read by both for up to {both} ms" if (both := max(m.double_owner_ms for m in lot)) else "")
        for (giver, taker), lot in list(pairs.items())[:NAMED_MAX]
    ]
    return lines + ([f"and {len(pairs) - NAMED_MAX} more pairs"] if len(pairs) > NAMED_MAX else [])


def _loads(member_count: int, loads: dict[str, int]) -> str:
    if not loads:
        return "no members"
    if len(loads) > NAMED_MAX:
        return f"{member_count} members with {_range(list(loads.values()))} queues each"
    return "loads: " + ", ".join(f"{member} {load}" for member, load in loads.items())


def _named(names: Sequence[str]) -> str:
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    return ", ".join(names[:NAMED_MAX]) + more


def _range(numbers: Sequence[int]) -> str:
    low, high = min(numbers), max(numbers)
    return str(low) if low == high else f"{low}–{high}"


def _count(number: int | None, noun: str) -> str:
    return f"{number or 0} {noun}{'' if number == 1 else 's'}"
