"""Tests of recorded histories and costs, with handmade events."""

from itertools import count
from typing import Any

import pytest

from libramq.groups.rebalance_event import QueueMove, RebalanceEvent
from libramq.groups.rebalance_history import BrokerEvent, rebalances
from libramq.lab.cost import COSTS, HANDOVER, Cost, RecordedMove, measured_costs, recorded_moves
from libramq.lab.entrant import Allocator
from libramq.lab.histories import Departure
from libramq.lab.recorded import recorded_history

SEQUENCE = count(1)


def told(at_ms: int, kind: str, *, broker: str = "x", **fields: Any) -> BrokerEvent:
    """Return an event. A broker numbers its events, here all by one sequence."""
    seq = next(SEQUENCE)
    return BrokerEvent(
        broker, RebalanceEvent(v=1, group="G", epoch=at_ms, seq=seq, at_ms=at_ms, kind=kind, **fields)
    )


def started(at_ms: int, reason: str, who: str, members: str = "", *, broker: str = "x") -> BrokerEvent:
    return told(at_ms, "started", broker=broker, reason=reason, who=who, members=[*members])


def moved(at_ms: int, *moves: tuple[int, str | None, str, int], broker: str = "x") -> BrokerEvent:
    """Return moves of T's queues, each as (queue, from, to, pause)."""
    made = [
        QueueMove(
            topic="T", broker=broker, queue=queue, from_=from_, to=to, redelivered=3,
            stopped_ms=None if from_ is None else 100, resumed_ms=100 + pause_ms,
        )
        for queue, from_, to, pause_ms in moves
    ]  # fmt: skip
    return told(at_ms, "moved", broker=broker, moves=made)


EVENTS = [
    started(1_000, "member_joined", "a", "a"),
    moved(1_100, (0, None, "a", 0), (1, None, "a", 0), (2, None, "a", 0)),
    told(1_100, "settled", member_count=1, moved=3),
    started(5_000, "member_joined", "b", "ab"),
    started(5_010, "member_joined", "c", "abc"),
    started(5_015, "member_joined", "c", "ac", broker="y"),  # Another broker, which has not heard of b yet.
    moved(5_100, (1, "a", "b", 10), (2, "a", "c", 30)),
    told(5_100, "settled", member_count=3, moved=2),
    told(5_200, "settled", member_count=3, moved=0, broker="y"),
    started(9_000, "connection_closed", "c", "ab"),
    moved(9_200, (2, "c", "a", 150), (1, "b", "a", 20)),
    told(9_200, "settled", member_count=2, moved=2),
    started(9_900, "session_expired", "b", "a"),
]


def test_events_become_steps_of_a_history():
    history = recorded_history("G", EVENTS)
    assert history is not None
    assert [queue.queue_id for queue in history.queues["T"]] == [0, 1, 2]
    assert set(history.members) == {"a"}
    assert [(each.at_ms, dict(each.gone), sorted(each.joined)) for each in history.steps] == [
        (4_000, {}, ["b", "c"]),
        (8_000, {"c": Departure.CRASHED}, []),
        (8_900, {"b": Departure.LOST}, []),
    ]
    assert history.steps[1].what == "connection_closed"


@pytest.mark.parametrize("known", [1, 3])
def test_events_without_a_history_are_refused(known: int):
    """After the first event no member joined or left."""
    assert recorded_history("G", EVENTS[:known]) is None
    assert recorded_history("G", []) is None


def test_moves_are_counted_by_the_fate_of_the_former_owner():
    assert recorded_moves(rebalances(EVENTS, wall_ms=10_000)) == [
        RecordedMove(HANDOVER, 10, 3),
        RecordedMove(HANDOVER, 30, 3),
        RecordedMove("crashed", 150, 3),
        RecordedMove(HANDOVER, 20, 3),
    ]


def test_measured_costs_outrank_the_defaults():
    costs = measured_costs({HANDOVER: 20, Departure.LEFT.value: 40}, {HANDOVER: 3})
    assert {costs[allocator, HANDOVER] for allocator in Allocator} == {Cost(20, 3)}
    assert costs[Allocator.COORDINATOR, "crashed"] == COSTS[Allocator.COORDINATOR, "crashed"]
