"""Tests of the parts of balanced_sticky: flow, levels, keeping, ownership, and the group."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.balance.balanced_sticky import Level, Taker, keep_most, levels
from libramq.balance.flow import FlowNetwork
from libramq.balance.group import Group, Member, Ownership, counts, holdings, ownership
from libramq.message.queue import MessageQueue
from tests.balance.examples import group, queues


def test_a_flow_takes_the_cheapest_path_first():
    """Of two units from 0 to 3 one goes over 1 at no cost, the other over 2 at a cost of 5."""
    network = FlowNetwork(4)
    cheap = [network.add(0, 1, 1), network.add(1, 3, 9)]
    dear = [network.add(0, 2, 9, 2), network.add(2, 3, 9, 3)]
    excess = [2, 0, 0, -2]
    network.send(excess)
    assert excess == [0, 0, 0, 0]
    assert [network.flow(arc) for arc in cheap + dear] == [1, 1, 1, 1]


def test_a_flow_reroutes_what_stands_in_its_way():
    """Node 0 can reach 2 only, and 1 can reach both: what 1 sent to 2 must go to 3."""
    network = FlowNetwork(4)
    first = network.add(1, 2, 1, flow=1)
    second = network.add(1, 3, 1)
    third = network.add(0, 2, 1)
    full = network.add(2, 3, 0)
    excess = [1, 0, 0, -1]
    network.send(excess)
    assert excess == [0, 0, 0, 0]
    assert [network.flow(arc) for arc in (first, second, third, full)] == [0, 1, 1, 0]


def test_a_flow_beyond_the_capacity_shows_the_cut():
    """Three units meet a capacity of one: the bottleneck is behind 1."""
    network = FlowNetwork(3)
    network.add(0, 1, 5)
    network.add(1, 2, 1)
    excess = [3, 0, -3]
    network.send(excess)
    assert excess == [2, 0, -2]
    assert network.reached(excess) == {0, 1}


@given(st.data())
def test_a_flow_has_the_least_cost(data):
    """In assignments of up to five to five no permutation costs less."""
    from itertools import permutations

    n = data.draw(st.integers(1, 5))
    price = [[data.draw(st.integers(0, 6)) for _ in range(n)] for _ in range(n)]
    network = FlowNetwork(2 * n)
    arcs = {(a, b): network.add(a, n + b, 1, price[a][b]) for a in range(n) for b in range(n)}
    network.send([1] * n + [-1] * n)
    total = sum(price[a][b] for (a, b), arc in arcs.items() if network.flow(arc))
    assert sum(network.flow(arc) for arc in arcs.values()) == n
    assert total == min(sum(price[a][b] for a, b in enumerate(order)) for order in permutations(range(n)))


def test_members_have_the_levels_of_the_drawn_example():
    """A member that subscribes to both has enough with B; if there is less of B, it takes some of A."""
    assert levels([8, 9], [2, 1], [(0, 1), (1,)]) == [
        Level(load=9, capacity=1, sources=(1,), sinks=(1,)),
        Level(load=8, capacity=2, sources=(0,), sinks=(0,)),
    ]
    assert levels([8, 2], [2, 1], [(0, 1), (1,)]) == [
        Level(load=10, capacity=3, sources=(0, 1), sinks=(0, 1))
    ]


def test_an_unreachable_sink_gives_an_empty_level():
    """Members of topics without queues have such a level."""
    assert levels([3], [1, 4], [(0,)])[-1] == Level(load=0, capacity=4, sources=(), sinks=(1,))
    assert levels([], [2], []) == [Level(load=0, capacity=2, sources=(), sinks=(0,))]
    assert levels([], [], []) == []


def test_larger_places_go_to_members_that_hold_more():
    """There are seven queues and three members. Member b holds three and may keep them, so c and a end
    with two each.
    """
    takers = [Taker(0, {0: held}, 2, 3) for held in (1, 3, 2)]
    keeping = keep_most({0: 1}, {0: [0]}, takers)
    assert [kept[0] for kept in keeping.kept] == [1, 3, 2]
    assert list(keeping.taken) == [1, 0, 0]


def test_keeping_finds_the_chain_with_the_fewest_moves():
    """A is full, C is empty, and B is between them: A gives B a queue of a topic that both have, and B
    gives C another.
    """
    takers = [
        Taker(0, {0: 4}, 3, 3),
        Taker(1, {1: 3}, 3, 3),
        Taker(2, {1: 2}, 3, 3),
    ]
    keeping = keep_most({0: 0, 1: 0}, {0: [0, 1], 1: [1, 2]}, takers)
    assert [dict(kept) for kept in keeping.kept] == [{0: 3}, {1: 2}, {1: 2}]
    assert list(keeping.taken) == [0, 1, 1]
    assert {each: count for each, count in keeping.assigned.items() if count} == {(0, 1): 1, (1, 2): 1}


def test_the_later_epoch_owns_a_queue_claimed_twice():
    """Member b has a later epoch than a, and its claim to 0 counts; b and c have the same epoch, and
    neither claim to 1 counts.
    """
    t = queues("t", 4)
    of = group(
        {"t": 4},
        dict.fromkeys("abcd", "t"),
        {"a": t[:1], "b": t[:2], "c": t[1:3], "d": t[3:]},
        epochs={"a": 1, "b": 2, "c": 2, "d": 1},
    )
    assert ownership(of) == Ownership({t[0]: 1, t[2]: 2, t[3]: 3}, True, frozenset({t[1]}))
    assert [list(held) for held in holdings(of)] == [[], t[:1], t[2:3], t[3:]]


def test_a_third_claim_with_a_later_epoch_settles_a_dispute():
    """The highest epoch counts, whichever order the claims arrive in."""
    t = queues("t", 1)
    for epochs in ((1, 1, 2), (2, 1, 1), (1, 2, 1)):
        names = dict(zip("abc", epochs, strict=True))
        of = group({"t": 1}, dict.fromkeys(names, "t"), dict.fromkeys(names, t), epochs=names)
        assert ownership(of).owners == {t[0]: epochs.index(2)}


def test_holdings_leave_out_queues_that_do_not_exist():
    """These are a queue that no longer exists, one of a topic without a subscription, and one that is
    named twice.
    """
    t, u = queues("t", 2), queues("u", 1)
    of = group({"t": 2, "u": 1}, {"a": "t", "b": "u"}, {"a": [*t, *u, t[0], MessageQueue("t", "b", 7)]})
    assert [list(held) for held in holdings(of)] == [t, []]


def test_groups_are_sorted():
    """Members are sorted by id, queues by broker and number; topics without a subscriber are left out."""
    members = [Member(client_id=name, topics=frozenset("t")) for name in "ba"]
    of = Group.of(members, [*reversed(queues("t", 11)), *queues("u", 1)])
    assert [member.client_id for member in of.members] == ["a", "b"]
    assert of.queues == {"t": queues("t", 11)}


def test_retry_topics_add_no_load():
    """Retry topics do not count as load."""
    assert counts("orders")
    assert not counts("%RETRY%billing")
