"""Tests of what a step costs: each figure is compared with one worked out by hand, or by the coordinator
itself.
"""

from collections.abc import Sequence

import pytest

from libramq.balance import Group, GroupStrategy, Member, TopicRule, TopicStrategy, balanced_sticky
from libramq.groups.coordinator.state import MemberProfile
from libramq.groups.coordinator.target_assignment import fewest_moves
from libramq.lab.cost import COSTS
from libramq.lab.entrant import Allocator, Entrant, entrant
from libramq.lab.histories import KINDS, Departure, History, Size, synthetic
from libramq.lab.replay import StepOutcome, StrategyFailed, replay
from libramq.message.queue import MessageQueue

from .histories import clock, history, played, step


def test_a_member_joins():
    """With 12 queues and three members, the fourth gets three; AVG moves all queues but the first and the
    last.
    """
    given = history("abc", step(joined="d"))
    (sticky,) = played(given, "balanced_sticky")
    assert (sticky.member_count, sticky.moved, sticky.least, sticky.most) == (4, 3, 3, 3)
    assert (sticky.still_ms, sticky.worst_pause_ms, sticky.repeated) == (3 * 6, 6, 0)
    (avg,) = played(given, "AVG")
    assert avg.moved == 1 + 2 + 3
    assert (avg.still_ms, avg.worst_pause_ms) == (6 * 1_153, 1_153)


@pytest.mark.parametrize(
    ("departure", "pause_ms", "repeated"),
    [
        (Departure.LEFT, 26, 0),
        (Departure.CRASHED, 177, 4 * 14 / 8),
        (Departure.LOST, 9_834, 4 * 22 / 8),
    ],
)
def test_a_member_leaves(departure: Departure, pause_ms: int, repeated: float):
    """Its four queues are not read for as long as such a departure takes."""
    (outcome,) = played(history("abc", step(gone={"b": departure})), "balanced_sticky")
    assert (outcome.moved, outcome.still_ms, outcome.repeated) == (4, 4 * pause_ms, repeated)


def test_a_queue_handed_over_costs_less_than_one_of_a_crashed_member():
    """AVG gives b's four queues to a and c, and moves two of a's neighbours' besides."""
    (outcome,) = played(history("abcd", step(gone={"a": Departure.CRASHED})), "AVG")
    # 3 of a's to b; b, c give 2 and 1 on: b had 3-5 and has 0-3, c had 6-8 and has 4-7.
    assert outcome.moved == 3 + 3
    assert outcome.still_ms == 3 * 530 + 3 * 1_153
    assert outcome.worst_pause_ms == 1_153


def test_a_group_may_be_empty_for_a_while():
    """Queues without a member are unread until the next step; a member that takes them then counts as no
    move.
    """
    given = history("a", step(gone={"a": Departure.LOST}), step(5_000, joined="b"))
    empty, full = played(given, "sticky")
    assert (empty.member_count, empty.unowned, empty.idle_ms) == (0, 12, 12 * 4_000)
    assert (full.unowned, full.moved, full.most) == (0, 0, 12)


def test_cooperative_sticky_takes_two_rounds():
    """The first round withholds the queues that move; the time of both counts."""
    (outcome,) = played(history("abc", step(joined="d")), "cooperative-sticky")
    assert (outcome.rounds, outcome.moved, outcome.unowned) == (2, 3, 0)
    assert outcome.assignor_ms == 2
    assert outcome.worst_pause_ms == 6 + 20
    assert played(history("abc", step(joined="d")), "sticky")[0].assignor_ms == 1


def test_differing_subscriptions_leave_queues_unread_under_client_allocation():
    """Each client allocates among all members of the group; a coordinator knows each member's topics."""
    other = frozenset({"U"})
    given = history("abc", step(c=other))
    assert played(given, "AVG")[0].unowned == 4
    assert played(given, "AVG@coordinator")[0].unowned == 0
    assert played(given, "balanced_sticky@clients")[0].unowned == 4


def test_a_sticky_rule_moves_fewer_queues_under_a_coordinator():
    """Clients cannot be sticky, because they do not know which queues the others hold."""
    given = history("bcd", step(joined="a"))
    assert played(given, "balanced_sticky")[0].moved == 3
    assert played(given, "balanced_sticky@clients")[0].moved > 3
    assert played(given, "AVG")[0].moved == played(given, "AVG@coordinator")[0].moved


@pytest.mark.parametrize("kind", KINDS)
def test_the_minimum_of_moves_is_the_one_a_coordinator_reports(kind: str):
    given = synthetic(kind, "g", Size(members=13, queues=70, topics=4), 5)
    members = dict(given.members)
    queues = [queue for lot in given.queues.values() for queue in lot]

    def owners(held: dict[str, Sequence[MessageQueue]]) -> dict[MessageQueue, str]:
        group = Group.of(
            (Member(client_id=c, topics=t, owned=held.get(c, ())) for c, t in members.items()), queues
        )
        return {queue: who for who, share in balanced_sticky(group).items() for queue in share}

    holders = owners({})
    minimum = []
    for each in given.steps:
        members = {c: t for c, t in members.items() if c not in each.gone} | dict(each.joined)
        members |= each.resubscribed
        profiles = [
            MemberProfile(member=c, client_id=c, session_ms=10_000, subscriptions=dict.fromkeys(t, "*"))
            for c, t in members.items()
        ]
        minimum.append(fewest_moves("g", profiles, queues, holders))
        held: dict[str, list[MessageQueue]] = {}
        for queue, who in holders.items():
            held.setdefault(who, []).append(queue)
        holders = owners({who: share for who, share in held.items() if who in members})
    assert [outcome.moved for outcome in played(given, "balanced_sticky")] == minimum


def test_a_queue_assigned_twice_is_reported():
    def greedy(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> Sequence[MessageQueue]:
        return queues

    assert one(history("ab", step(joined="c")), greedy).doubled == 24


def test_a_strategy_that_raises_is_named():
    def broken(group: Group) -> dict[str, list[MessageQueue]]:
        raise KeyError("x")

    failing = Entrant(
        name="mine:broken",
        rule="mine:broken",
        allocator=Allocator.COORDINATOR,
        strategy=GroupStrategy(broken),
    )
    with pytest.raises(StrategyFailed, match=r"the strategy mine:broken failed in a group of 2 members"):
        replay(history("ab", step(joined="c")), failing, COSTS, clock())


def test_queues_that_do_not_exist_are_refused():
    def dreaming(
        client_id: str, queues: Sequence[MessageQueue], client_ids: Sequence[str]
    ) -> list[MessageQueue]:
        return [MessageQueue("T", "nowhere", 0)]

    with pytest.raises(StrategyFailed, match="assigns queues that do not exist"):
        one(history("ab", step(joined="c")), dreaming)


def one(given: History, rule: TopicRule) -> StepOutcome:
    made = Entrant(name="mine", rule="mine:rule", allocator=Allocator.CLIENTS, strategy=TopicStrategy(rule))
    outcomes = replay(given, made, COSTS, clock())
    assert outcomes is not None
    return outcomes[0]


def test_a_strategy_that_needs_unknown_facts_is_left_out():
    """The machine rooms of synthetic members only are known."""
    assert replay(history("ab", step(joined="c")), entrant("MACHINE_ROOM"), COSTS, clock()) is None
