"""Events of several brokers become rebalances, and rebalances become lines."""

from msgspec.structs import replace

from libramq.cli.groups.history import as_json, duration, timeline
from libramq.groups.rebalance import SETTLE_MS_MAX
from libramq.groups.rebalance_event import QueueMove, RebalanceEvent
from libramq.groups.rebalance_history import BrokerEvent, Cause, RebalanceState, rebalances


def told(broker, at_ms, kind, *, group="G", epoch=1, seq=None, **fields):
    """Return an event. Its sequence number equals its time unless the test needs another one."""
    seq = at_ms if seq is None else seq
    return BrokerEvent(
        broker, RebalanceEvent(v=1, group=group, epoch=epoch, seq=seq, at_ms=at_ms, kind=kind, **fields)
    )


def started(broker, at_ms, who="bob", *, reason="member_joined", **fields):
    return told(broker, at_ms, "started", reason=reason, who=who, member_count=2, **fields)


def settled(broker, at_ms, *, moved=2, pause=30, **fields):
    return told(
        broker,
        at_ms,
        "settled",
        moved=moved,
        minimum=2,
        member_count=2,
        time_to_stable_ms=200,
        worst_pause_ms=pause,
        redelivered_upper_bound=1,
        unowned=0,
        loads={"alice": 2, "bob": 2},
        **fields,
    )


def move(broker, queue, pause):
    return QueueMove(
        topic="T", broker=broker, queue=queue, from_="alice", to="bob", stopped_ms=1_000,
        resumed_ms=1_000 + pause, redelivered=0,
    )  # fmt: skip


TWO_BROKERS = [
    started("a", 1_000),
    started("b", 1_100),
    told("a", 2_299, "moved", moves=[move("a", 0, 10), move("a", 1, 30)]),
    told("b", 2_349, "moved", moves=[move("b", 0, 20)]),
    settled("a", 2_300),
    settled("b", 2_350, moved=3, pause=20),
]


def test_simultaneous_events_of_brokers_are_one_rebalance():
    (found,) = rebalances(TWO_BROKERS, wall_ms=10_000)
    assert found.state is RebalanceState.SETTLED
    assert found.causes == (Cause("member_joined", "bob"),)
    assert found.brokers == ("a", "b")
    assert (found.moved, found.minimum, found.redelivered_upper_bound) == (5, 4, 2)
    assert (found.worst_pause_ms, found.time_to_stable_ms) == (30, 300)
    assert found.loads == {"alice": 4, "bob": 4}
    assert [(one["queueId"], one["pauseMs"]) for one in as_json(found)["moves"]] == [
        (0, 10),
        (1, 30),
        (0, 20),
    ]


def test_a_static_members_restart_at_two_brokers_is_one_line_of_the_history():
    """The restart is no interrupted rebalance, and ends none in progress."""

    def restarted(broker, at_ms, pause):
        return told(
            broker, at_ms, "restarted", reason="static_member_restarted", who="till", member_count=2, moved=0,
            minimum=0, worst_pause_ms=pause, time_to_stable_ms=pause, unowned=0, redelivered_upper_bound=0,
        )  # fmt: skip

    events = [
        started("a", 1_000),
        restarted("a", 9_000, 500),
        settled("a", 9_100),
        restarted("a", 60_000, 700),
        restarted("b", 60_010, 650),
    ]
    first, second = rebalances(events, wall_ms=100_000)
    assert (first.state, first.causes) == (
        RebalanceState.SETTLED,
        (Cause("member_joined", "bob"), Cause("static_member_restarted", "till")),
    )
    assert (second.at_ms, second.state, second.brokers) == (59_300, RebalanceState.SETTLED, ("a", "b"))
    assert (second.worst_pause_ms, second.time_to_stable_ms, second.moved) == (700, 710, 0)
    assert timeline(second)[1].strip() == (
        "0/0 queues moved (actual/minimum), stable after 710 ms, worst pause 700 ms, "
        "no message was redelivered"
    )


def test_rebalances_are_printed_as_lines():
    (found,) = rebalances(TWO_BROKERS, wall_ms=10_000)
    first, *rest = timeline(found)
    assert first.endswith("  member_joined bob  (a, b)")
    assert [line.strip() for line in rest] == [
        "5/4 queues moved (actual/minimum), stable after 300 ms, worst pause 30 ms, "
        "at most 2 messages redelivered",
        "alice → bob: 3 queues, paused for 10–30 ms",
        "loads: alice 4, bob 4",
    ]


def test_successive_rebalances_and_groups_are_kept_apart():
    events = [
        started("a", 1_000),
        settled("a", 2_000),
        started("a", 1_500, group="other"),
        started("a", 5_000, "carol", epoch=2, reason="connection_closed"),
        started("a", 5_100, "dave", epoch=3),
    ]
    first, other, second = rebalances(events, wall_ms=6_000)
    assert (first.group, other.group, second.group) == ("G", "other", "G")
    assert second.state is RebalanceState.MOVING
    assert second.causes == (Cause("connection_closed", "carol"), Cause("member_joined", "dave"))
    assert (second.moved, second.worst_pause_ms) == (None, None)
    assert timeline(second)[1].strip() == "still moving"


def test_a_broker_that_restarts_or_stops_reporting_interrupts_its_rebalance():
    events = [started("a", 1_000, seq=7), started("a", 5_000, seq=1), settled("a", 6_000, seq=2)]
    first, second = rebalances(events, wall_ms=7_000)
    assert (first.state, second.state) == (RebalanceState.INTERRUPTED, RebalanceState.SETTLED)
    (silent,) = rebalances([started("a", 1_000)], wall_ms=1_001 + SETTLE_MS_MAX)
    assert "interrupted" in timeline(silent)[1]


def test_an_end_without_its_beginning_is_left_out():
    assert rebalances([settled("a", 2_000)], wall_ms=3_000) == []


def test_durations_are_formatted():
    assert [duration(ms) for ms in (None, 0, 9_999, 16_600)] == ["–", "0 ms", "9999 ms", "16.6 s"]


def test_the_redelivery_of_one_broker_may_be_unknown():
    """One of two brokers was restarted: a sum of the known counts would not be an upper bound."""
    event = replace(settled("b", 2_300).event, redelivered_upper_bound=None)
    (found,) = rebalances(
        [started("a", 1_000), settled("a", 2_300), started("b", 1_000), BrokerEvent("b", event)],
        wall_ms=10_000,
    )
    assert found.redelivered_upper_bound is None
    assert as_json(found)["redeliveredUpperBound"] is None
    assert "unknown how many messages were redelivered" in timeline(found)[1]


def test_without_members_the_redelivery_is_not_known_yet():
    """A killed member's group without a successor: no member has read on."""
    event = replace(settled("a", 2_300).event, redelivered_upper_bound=None, member_count=0)
    (found,) = rebalances([started("a", 1_000), BrokerEvent("a", event)], wall_ms=10_000)
    assert "unknown how many messages will be redelivered: no member was left" in timeline(found)[1]


def test_a_known_redelivery_is_printed_without_at_most():
    """If members had committed everything they handled, the line says "no message", not "at most 0"."""
    event = replace(settled("a", 2_300).event, redelivered_upper_bound=0)
    (found,) = rebalances([started("a", 1_000), BrokerEvent("a", event)], wall_ms=10_000)
    assert "no message was redelivered" in timeline(found)[1]
    assert "at most" not in timeline(found)[1]


def test_several_reasons_under_one_epoch_are_one_rebalance():
    """A coordinator records one event per reason, all under the group's epoch; that is not a restart."""
    events = [
        started("a", 1_000, epoch=7),
        started("a", 1_001, "alice", reason="member_left", epoch=7),
        settled("a", 2_300, epoch=7),
    ]
    (found,) = rebalances(events, wall_ms=10_000)
    assert found.state is RebalanceState.SETTLED
    assert found.causes == (Cause("member_joined", "bob"), Cause("member_left", "alice"))


def test_the_minimum_of_moves_never_exceeds_the_moves():
    """A coordinator that planned twice before any queue was taken over has counted both plans."""
    (found,) = rebalances([started("a", 1_000), settled("a", 2_300, moved=1)], wall_ms=10_000)
    assert (found.moved, found.minimum) == (1, 1)


def test_double_readers_and_the_catch_up_peak_are_printed():
    both = QueueMove(
        topic="T", broker="a", queue=0, from_="alice", to="bob", stopped_ms=1_000, resumed_ms=1_000,
        redelivered=0, double_owner_ms=40,
    )  # fmt: skip
    events = [
        started("a", 1_000),
        told("a", 2_299, "moved", moves=[both]),
        settled("a", 2_300, peak_catch_up_rate=12_000, duplicates_reported=0),
    ]
    (found,) = rebalances(events, wall_ms=10_000)
    assert "    new owners read up to 12,000 messages a second to catch up" in timeline(found)
    assert "    alice → bob: 1 queue, paused for 0 ms, read by both for up to 40 ms" in timeline(found)
    assert (as_json(found)["peakCatchUpRate"], as_json(found)["moves"][0]["doubleOwnerMs"]) == (
        12_000,
        40,
    )
