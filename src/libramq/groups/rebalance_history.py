"""The rebalance history: merges the events of several brokers into rebalances, for `libra groups history` and
reports.

Each broker records its own observations of a group; reports that overlap in time form one rebalance.

    broker-a  started ─ started ──── moved ─ settled
    broker-b      started ────── settled               ──►  one rebalance: two causes, sums, the worst pause
"""

import contextlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

import msgspec

from libramq.clock import WallMs
from libramq.groups.rebalance import SETTLE_MS_MAX
from libramq.groups.rebalance_event import QueueMove, RebalanceEvent, decode_event
from libramq.groups.unsettled import sum_bounds


class RebalanceState(StrEnum):
    """The state of a rebalance. Interrupted: its broker never reported the end."""

    MOVING = "moving"
    SETTLED = "settled"
    INTERRUPTED = "interrupted"


class BrokerEvent(NamedTuple):
    """An event and the broker that recorded it."""

    broker_name: str
    event: RebalanceEvent


def broker_events(bodies: Iterable[tuple[str, bytes]]) -> Iterator[BrokerEvent]:
    """Decode the events of brokers, given with their names; events of later versions are skipped."""
    for broker_name, body in bodies:
        with contextlib.suppress(msgspec.DecodeError):
            yield BrokerEvent(broker_name, decode_event(body))


class Cause(NamedTuple):
    """The reason for a rebalance, and the member that caused it."""

    reason: str
    who: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebalance:
    """One rebalance of a group, across all brokers. Fields known only at its end are None before.

    redelivered_upper_bound: also None if one of the brokers does not know it.
    """

    group: str
    at_ms: int
    state: RebalanceState
    causes: tuple[Cause, ...]
    brokers: tuple[str, ...]
    member_count: int
    moves: tuple[QueueMove, ...]
    moved: int | None
    minimum: int | None
    time_to_stable_ms: int | None
    worst_pause_ms: int | None
    redelivered_upper_bound: int | None
    duplicates_reported: int | None
    peak_catch_up_rate: int | None
    unowned: int | None
    loads: dict[str, int]


@dataclass(slots=True)
class _Part:
    """One broker's report of a rebalance."""

    broker_name: str
    started: list[RebalanceEvent]
    moves: list[QueueMove] = field(default_factory=list)
    settled: RebalanceEvent | None = None
    was_interrupted: bool = False
    last_seq: int = 0

    @property
    def start_ms(self) -> int:
        first = self.started[0]
        return first.at_ms - (first.worst_pause_ms or 0) if first.kind == "restarted" else first.at_ms

    @property
    def end_ms(self) -> int:
        if self.settled is not None:
            return self.settled.at_ms
        return self.started[-1].at_ms + (0 if self.was_interrupted else SETTLE_MS_MAX)


def rebalances(events: Iterable[BrokerEvent], *, wall_ms: WallMs) -> list[Rebalance]:
    """Return the rebalances of all groups in the events, by time. Each broker's events must be in order."""
    by_group: dict[str, dict[str, list[RebalanceEvent]]] = {}
    for broker_name, event in events:
        by_group.setdefault(event.group, {}).setdefault(broker_name, []).append(event)
    found = [
        _together(group, overlapping, wall_ms)
        for group, brokers in by_group.items()
        for overlapping in _overlapping(
            [part for name, reported in brokers.items() for part in _parts(name, reported)]
        )
    ]
    return sorted(found, key=lambda rebalance: rebalance.at_ms)


def _parts(broker_name: str, events: Iterable[RebalanceEvent]) -> list[_Part]:
    """Return one broker's rebalances. An end without a beginning is skipped."""
    parts: list[_Part] = []
    current: _Part | None = None
    for event in events:
        if current is not None and event.seq <= current.last_seq:
            current.was_interrupted, current = True, None  # Restarted: the broker counts from 0 again.
        if event.kind == "started":
            if current is None:
                current = _Part(broker_name, [event])
                parts.append(current)
            else:
                current.started.append(event)
        elif event.kind == "restarted":
            parts.append(_Part(broker_name, [event], settled=event))
        elif current is not None and event.kind == "moved":
            current.moves += event.moves or ()
        elif current is not None and event.kind == "settled":
            current.settled, current = event, None
        if current is not None:
            current.last_seq = event.seq
    return parts


def _overlapping(parts: list[_Part]) -> list[list[_Part]]:
    """Group parts that touch in time."""
    lots: list[list[_Part]] = []
    end_ms = 0
    for part in sorted(parts, key=lambda part: part.start_ms):
        if lots and part.start_ms <= end_ms:
            lots[-1].append(part)
            end_ms = max(end_ms, part.end_ms)
        else:
            lots.append([part])
            end_ms = part.end_ms
    return lots


def _together(group: str, parts: Sequence[_Part], wall_ms: WallMs) -> Rebalance:
    started = sorted((event for part in parts for event in part.started), key=lambda event: event.at_ms)
    settled = [part.settled for part in parts if part.settled is not None]
    at_ms = min(part.start_ms for part in parts)
    loads: Counter[str] = Counter()
    for event in settled:
        loads.update(event.loads or {})
    is_open = len(settled) < len(parts)
    if not is_open:
        state = RebalanceState.SETTLED
    elif any(not p.settled and not p.was_interrupted and int(wall_ms) <= p.end_ms for p in parts):
        state = RebalanceState.MOVING
    else:
        state = RebalanceState.INTERRUPTED
    return Rebalance(
        group=group,
        at_ms=at_ms,
        state=state,
        causes=tuple(dict.fromkeys(Cause(event.reason or "unknown", event.who) for event in started)),
        brokers=tuple(sorted({part.broker_name for part in parts})),
        member_count=max(settled or started, key=lambda event: event.at_ms).member_count or 0,
        moves=tuple(move for part in parts for move in part.moves),
        moved=_sum(event.moved for event in settled),
        minimum=_minimum(settled, is_whole=not is_open),
        time_to_stable_ms=max(
            (p.start_ms + (p.settled.time_to_stable_ms or 0) - at_ms for p in parts if p.settled),
            default=None,
        ),
        worst_pause_ms=max((event.worst_pause_ms or 0 for event in settled), default=None),
        redelivered_upper_bound=None
        if is_open
        else sum_bounds(event.redelivered_upper_bound for event in settled),
        duplicates_reported=_sum(event.duplicates_reported for event in settled),
        peak_catch_up_rate=max(
            (event.peak_catch_up_rate for event in settled if event.peak_catch_up_rate is not None),
            default=None,
        ),
        unowned=_sum(event.unowned for event in settled),
        loads=dict(sorted(loads.items())),
    )


def _minimum(settled: Sequence[RebalanceEvent], *, is_whole: bool) -> int | None:
    """Return the number of queues that had to move; once all have settled, at most the number that did.

    A coordinator may have planned twice before a member opened its new queues, and counted both.
    """
    minimum, moved = _sum(event.minimum for event in settled), _sum(event.moved for event in settled)
    return min(minimum, moved) if is_whole and minimum is not None and moved is not None else minimum


def _sum(counts: Iterable[int | None]) -> int | None:
    known = [count for count in counts if count is not None]
    return sum(known) if known else None
