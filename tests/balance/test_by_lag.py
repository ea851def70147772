"""Tests of weights by lag: what a queue weighs, and how weights are balanced."""

import random

from hypothesis import given
from hypothesis import strategies as st

from libramq.balance import Group, balanced_sticky
from libramq.balance.balanced_sticky import weights
from tests.balance.examples import check_partition, group, groups, holding, moves, queues


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
