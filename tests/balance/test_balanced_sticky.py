"""Tests of balanced_sticky against every possible assignment, against the textbook algorithm, and in groups
too large for both.
"""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.balance import Group, Member, balanced_sticky
from libramq.balance.balanced_sticky import weights
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from tests.balance.examples import check_partition, group, groups, holding, loads, moves, queues
from tests.balance.reference import by_augmenting_paths, by_brute_force, is_optimal
from tests.quick import quick


@given(groups(queues_max=8, members_max=8))
def test_the_result_is_optimal_up_to_eight_by_eight(of):
    """Loads come first, then moves, for any queues that members held and any subscriptions."""
    assignment = balanced_sticky(of)
    check_partition(of, assignment)
    assert (loads(assignment), moves(of, assignment)) == by_brute_force(of)


@given(groups(queues_max=50, members_max=14, topics_max=8))
def test_the_result_is_optimal_in_larger_groups(of):
    """Subscriptions differ; the groups are as large as the textbook's algorithm can handle."""
    assignment = balanced_sticky(of)
    check_partition(of, assignment)
    assert (loads(assignment), moves(of, assignment)) == by_augmenting_paths(of)


@given(groups(queues_max=120, members_max=25, topics_max=8, alike=True))
def test_equal_subscriptions_meet_the_lower_bound(of):
    """Loads differ by at most one. Members give up only their surplus, and those queues for which no
    larger place is left.
    """
    assignment = balanced_sticky(of)
    check_partition(of, assignment)
    after = loads(assignment)
    assert after[0] - after[-1] <= 1
    least, places = divmod(sum(after), len(after))
    wanted = of.members[0].topics
    held = [sum(queue.topic in wanted for queue in member.owned) for member in of.members]
    above = sum(count > least for count in held)
    assert moves(of, assignment) == sum(max(0, count - least) for count in held) - min(above, places)


def large(seed, *, sets, members, topics, size):
    """Return a balanced group with several sets of topics."""
    rng = random.Random(seed)
    names = [f"t{number:02}" for number in range(topics)]
    choices = [frozenset(rng.sample(names, rng.randint(1, topics))) for _ in range(sets)]
    of = group(
        {name: rng.randint(1, 2 * size) for name in names},
        {f"m{number:03}": rng.choice(choices) for number in range(members)},
    )
    before = balanced_sticky(of)
    return rng, choices, of, holding(of, before)


@pytest.mark.parametrize("seed", quick(range(8), 3))
def test_no_chain_of_displacements_improves_a_large_group(seed):
    """It has 2,000 queues, 100 members and 8 different subscriptions; members join, leave and change their
    subscriptions.
    """
    rng, choices, of, members = large(seed, sets=8, members=100, topics=30, size=60)
    kept = rng.sample(members, 95)
    changed = [
        Member(client_id=m.client_id, topics=rng.choice(choices), owned=m.owned, epoch=1) for m in kept[:3]
    ]
    joined = [Member(client_id=f"new{number}", topics=rng.choice(choices)) for number in range(4)]
    everything = [queue for some in of.queues.values() for queue in some]
    after = Group.of([*kept[3:], *changed, *joined], everything)
    assignment = balanced_sticky(after)
    check_partition(after, assignment)
    assert is_optimal(after, assignment)


def test_the_proof_of_optimality_sees_a_needless_move_and_a_load_too_many():
    """It is checked with two assignments that are not optimal, and with an optimal one."""
    of = group({"t": 4, "u": 1}, {"a": "t", "b": "tu"}, {"a": queues("t", 3), "b": queues("t", 4)[3:]})
    t, u = queues("t", 4), queues("u", 1)
    assert is_optimal(of, {"a": t[:3], "b": [t[3], *u]})
    assert not is_optimal(of, {"a": [*t[:2], t[3]], "b": [t[2], *u]})
    assert not is_optimal(of, {"a": t[:1], "b": [*t[1:], *u]})


@given(groups(queues_max=40, members_max=12, topics_max=6))
def test_a_balanced_assignment_stays(of):
    """The second assignment equals the first, queue by queue."""
    first = balanced_sticky(of)
    second = balanced_sticky(Group.of(holding(of, first), [q for some in of.queues.values() for q in some]))
    assert {name: set(share) for name, share in second.items()} == {
        name: set(share) for name, share in first.items()
    }


def test_one_queue_moves_when_a_member_joins():
    """When a third member joins two that share five queues, one queue moves."""
    of = group({"t": 5}, {"a": "t", "b": "t", "c": "t"}, {"a": queues("t", 3), "b": queues("t", 5)[3:]})
    assignment = balanced_sticky(of)
    assert loads(assignment) == [2, 2, 1]
    assert moves(of, assignment) == 1


def test_loads_are_even_across_topics():
    """AVG gives the first member one queue of each topic; here the loads over all topics differ by at most
    one.
    """
    topics = {f"t{number}": 1 for number in range(9)}
    of = group(topics, {"a": topics, "b": topics, "c": topics})
    assert loads(balanced_sticky(of)) == [3, 3, 3]


def test_from_scratch_every_member_gets_queues_of_every_topic():
    """Neighbouring queues go to different members, so that a busy topic is spread."""
    of = group({"t": 4, "u": 4}, {name: ["t", "u"] for name in "abcd"})
    for share in balanced_sticky(of).values():
        assert {queue.topic for queue in share} == {"t", "u"}


def test_retry_queues_add_no_load_and_stay():
    """Member a holds all retry queues and keeps them; one without a holder goes to the member with the
    fewest.
    """
    of = group({"t": 2, "%RETRY%g": 3}, {name: ["t", "%RETRY%g"] for name in "ab"},
               {"a": queues("%RETRY%g", 2)})  # fmt: skip
    assignment = balanced_sticky(of)
    check_partition(of, assignment)
    assert [len([q for q in assignment[name] if q.topic == "t"]) for name in "ab"] == [1, 1]
    assert set(queues("%RETRY%g", 2)) <= set(assignment["a"])
    assert queues("%RETRY%g", 3)[2] in assignment["b"]


def test_capacities_share_in_proportion():
    """A member with twice the capacity gets twice the queues, rounded down or up."""
    of = group({"t": 12}, {"a": "t", "b": "t", "c": "t"}, capacities={"a": 2, "b": 1, "c": 1})
    assert {n: len(s) for n, s in balanced_sticky(of).items()} == {"a": 4, "b": 4, "c": 4}
    weighted = balanced_sticky(of, by_capacity=True)
    assert {n: len(s) for n, s in weighted.items()} == {"a": 6, "b": 3, "c": 3}


@given(groups(queues_max=60, members_max=10, alike=True))
def test_capacities_are_kept_to_within_one(of):
    """Each has its share, rounded; a second assignment moves nothing."""
    members = [
        Member(client_id=m.client_id, topics=m.topics, owned=m.owned, capacity=1 + n % 4)
        for n, m in enumerate(of.members)
    ]
    of = Group(members=members, queues=of.queues)
    assignment = balanced_sticky(of, by_capacity=True)
    check_partition(of, assignment)
    whole, capacity = sum(loads(assignment)), sum(member.capacity for member in members)
    for member in members:
        assert abs(len(assignment[member.client_id]) - whole * member.capacity / capacity) < 1
    again = balanced_sticky(Group(members=holding(of, assignment), queues=of.queues), by_capacity=True)
    assert {n: set(s) for n, s in again.items()} == {n: set(s) for n, s in assignment.items()}


@given(groups(queues_max=40, members_max=8))
def test_capacities_hold_under_different_subscriptions(of):
    """Every queue has an owner, and a factor that is common to all members changes nothing."""
    members = [
        Member(client_id=m.client_id, topics=m.topics, owned=m.owned, capacity=1 + n % 3)
        for n, m in enumerate(of.members)
    ]
    check_partition(of, balanced_sticky(Group(members=members, queues=of.queues), by_capacity=True))
    same = [Member(client_id=m.client_id, topics=m.topics, owned=m.owned, capacity=7) for m in of.members]
    assert balanced_sticky(Group(members=same, queues=of.queues), by_capacity=True) == balanced_sticky(of)


def test_the_later_of_two_claims_to_a_queue_counts():
    """Member a is a zombie of epoch 1. Of two claims with the same epoch neither counts."""
    both = {"a": queues("t", 1), "b": queues("t", 1)}
    of = group({"t": 2}, {"a": "t", "b": "t"}, both, epochs={"a": 1, "b": 2})
    assert queues("t", 1)[0] in balanced_sticky(of)["b"]
    check_partition(of, balanced_sticky(of))
    of = group({"t": 2}, {"a": "t", "b": "t"}, both, epochs={"a": 2, "b": 2})
    check_partition(of, balanced_sticky(of))


def test_empty_groups_and_idle_members_are_valid():
    """Idle members get nothing; groups without members, without queues or with unknown topics are no
    error.
    """
    of = group({"t": 1}, {"a": "t", "b": "t"})
    assert loads(balanced_sticky(of)) == [1, 0]
    assert balanced_sticky(group({"t": 3}, {})) == {}
    assert balanced_sticky(group({}, {"a": "t"})) == {"a": []}
    gone = group({"t": 1}, {"a": "t"}, {"a": [MessageQueue("u", "b", 0), MessageQueue("t", "b", 9)]})
    assert balanced_sticky(gone) == {"a": queues("t", 1)}


def test_a_capacity_is_at_least_one():
    """A lower bound of one avoids a division by zero."""
    with pytest.raises(ConfigError, match="capacity"):
        Member(client_id="a", topics=frozenset("t"), capacity=0)


def test_a_queue_weighs_one_more_for_every_mean_lag():
    """The mean of 0, 1,000, 8,000 is 3,000."""
    t = queues("t", 3)
    assert weights(t, dict(zip(t, (0, 1_000, 8_000), strict=True))) == dict(zip(t, (1, 1, 3), strict=True))


def test_small_and_negative_lags_weigh_nothing():
    """Below 1,000 messages a queue counts as up to date; an offset ahead of its queue counts as no lag."""
    t = queues("t", 3)
    assert set(weights(t, {t[0]: 999, t[1]: -50}).values()) == {1}
    assert weights([], {}) == {}


def test_the_owner_of_a_lagging_queue_gets_fewer_queues():
    """One of nine queues has the whole backlog and weighs 10, the others 1."""
    t = queues("t", 9)
    of = group({"t": 9}, {"a": "t", "b": "t", "c": "t"}, lag={t[4]: 90_000})
    shares = balanced_sticky(of, by_lag=True)
    check_partition(of, shares)
    (busy,) = [share for share in shares.values() if t[4] in share]
    assert busy == [t[4]]
    assert sorted(map(len, shares.values())) == [1, 4, 4]


def test_a_growing_backlog_moves_only_queues_that_help():
    """Members a and b hold four each. Two of a's lag, and one of them goes to b."""
    t = queues("t", 8)
    of = group({"t": 8}, {"a": "t", "b": "t"}, {"a": t[:4], "b": t[4:]}, lag={t[0]: 50_000, t[1]: 50_000})
    shares = balanced_sticky(of, by_lag=True)
    assert {t[0] in shares["a"], t[1] in shares["a"]} == {True, False}
    assert moves(of, shares) <= 3


def test_without_lag_it_equals_balanced_sticky():
    """Every weight is one then."""
    of = group({"t": 7, "u": 4}, {"a": "t", "b": "tu", "c": "u"}, {"a": queues("t", 6)})
    assert balanced_sticky(of, by_lag=True) == balanced_sticky(of)


def test_capacities_weigh():
    """A member with twice the capacity carries twice the weight."""
    t = queues("t", 6)
    of = group({"t": 6}, {"a": "t", "b": "t"}, lag=dict.fromkeys(t, 10_000), capacities={"a": 2})
    shares = balanced_sticky(of, by_lag=True, by_capacity=True)
    assert (len(shares["a"]), len(shares["b"])) == (4, 2)


@given(groups(queues_max=40, members_max=8), st.integers(0, 1000))
def test_no_single_move_evens_out_two_members(of, seed):
    """Every queue has an owner. A queue whose move would even out two members has moved; after that none
    moves.
    """
    rng = random.Random(seed)
    everything = [queue for some in of.queues.values() for queue in some]
    lag = {queue: rng.choice((0, 0, 5_000, 100_000)) for queue in everything}
    of = Group(members=of.members, queues=of.queues, lag=lag)
    shares = balanced_sticky(of, by_lag=True)
    check_partition(of, shares)
    weight = weights(everything, lag)
    load = {name: sum(weight[queue] for queue in share) for name, share in shares.items()}
    for member in of.members:
        for name, share in shares.items():
            for queue in share:
                if queue.topic in member.topics and name != member.client_id:
                    assert load[member.client_id] + weight[queue] >= load[name]
    again = balanced_sticky(Group(members=holding(of, shares), queues=of.queues, lag=lag), by_lag=True)
    assert {name: set(share) for name, share in again.items()} == {
        name: set(share) for name, share in shares.items()
    }
