"""Tests of Kafka's four assignors by the examples in its documentation (tests/interop compares them with
its classes).
"""

from hypothesis import given

from libramq.balance import Group, Member, cooperative_sticky, kafka_range, round_robin, sticky
from tests.balance.examples import check_partition, group, groups, loads, moves, queues
from tests.balance.reference import by_brute_force

TWO_TOPICS = group({"t0": 3, "t1": 3}, {"C0": ["t0", "t1"], "C1": ["t0", "t1"]})
THREE_TOPICS = {"t0": 1, "t1": 2, "t2": 3}
GROWING = {"C0": ["t0"], "C1": ["t0", "t1"], "C2": ["t0", "t1", "t2"]}


def text(assignment):
    """Return an assignment in the notation of Kafka's documentation."""
    return {
        name: sorted(f"{queue.topic}p{queue.queue_id}" for queue in share)
        for name, share in assignment.items()
    }


def named(*names):
    return [queues(name[:2], 9)[int(name[3])] for name in names]


def test_range_gives_the_first_member_each_topics_remainder():
    """This is the example of RangeAssignor.java."""
    assert text(kafka_range(TWO_TOPICS)) == {
        "C0": ["t0p0", "t0p1", "t1p0", "t1p1"],
        "C1": ["t0p2", "t1p2"],
    }


def test_round_robin_deals_partitions_in_turn():
    """These are the examples of RoundRobinAssignor.java, with equal and with different subscriptions."""
    assert text(round_robin(TWO_TOPICS)) == {
        "C0": ["t0p0", "t0p2", "t1p1"],
        "C1": ["t0p1", "t1p0", "t1p2"],
    }
    assert text(round_robin(group(THREE_TOPICS, GROWING))) == {
        "C0": ["t0p0"],
        "C1": ["t1p0"],
        "C2": ["t1p1", "t2p0", "t2p1", "t2p2"],
    }


def test_static_members_come_first_by_their_names():
    """A member's id changes when it restarts, its name does not."""
    members = [
        Member(client_id="a", topics=frozenset({"t0"})),
        Member(client_id="b", topics=frozenset({"t0"}), instance_id="two"),
        Member(client_id="c", topics=frozenset({"t0"}), instance_id="one"),
    ]
    of = Group.of(members, queues("t0", 4))
    assert text(kafka_range(of)) == {"c": ["t0p0", "t0p1"], "b": ["t0p2"], "a": ["t0p3"]}
    assert text(round_robin(of)) == {"c": ["t0p0", "t0p3"], "b": ["t0p1"], "a": ["t0p2"]}


def test_sticky_keeps_partitions_when_a_member_leaves():
    """This is the first example of StickyAssignor.java: three members, then C1 leaves."""
    topics = {f"t{number}": 2 for number in range(4)}
    before = sticky(group(topics, dict.fromkeys(("C0", "C1", "C2"), topics)))
    assert text(before) == {
        "C0": ["t0p0", "t1p1", "t3p0"],
        "C1": ["t0p1", "t2p0", "t3p1"],
        "C2": ["t1p0", "t2p1"],
    }
    after = sticky(group(topics, dict.fromkeys(("C0", "C2"), topics), before))
    assert len(after["C0"]) == len(after["C2"]) == 4
    assert set(before["C0"]) <= set(after["C0"])
    assert set(before["C2"]) <= set(after["C2"])


def test_sticky_keeps_partitions_under_different_subscriptions():
    """This is the second example of StickyAssignor.java: C0 leaves, and five of six partitions stay."""
    before = sticky(group(THREE_TOPICS, GROWING))
    assert text(before) == {"C0": ["t0p0"], "C1": ["t1p0", "t1p1"], "C2": ["t2p0", "t2p1", "t2p2"]}
    after = sticky(group(THREE_TOPICS, {name: GROWING[name] for name in ("C1", "C2")}, before))
    assert text(after) == {"C1": ["t0p0", "t1p0", "t1p1"], "C2": ["t2p0", "t2p1", "t2p2"]}


@given(groups(queues_max=8, members_max=6))
def test_sticky_is_as_even_and_as_sticky_as_can_be(of):
    """Both promises are checked against every possible assignment."""
    assignment = sticky(of)
    check_partition(of, assignment)
    assert (loads(assignment), moves(of, assignment)) == by_brute_force(of)


def test_cooperative_sticky_moves_in_two_steps():
    """C1 joins. What it will get is revoked first, and assigned to it once no member holds it."""
    held = {"C0": named("t0p0", "t0p1", "t0p2", "t0p3")}
    first = cooperative_sticky(group({"t0": 4}, {"C0": ["t0"], "C1": ["t0"]}, held))
    assert text(first) == {"C0": ["t0p0", "t0p1"], "C1": []}
    second = cooperative_sticky(group({"t0": 4}, {"C0": ["t0"], "C1": ["t0"]}, first))
    assert text(second) == {"C0": ["t0p0", "t0p1"], "C1": ["t0p2", "t0p3"]}


@given(groups(queues_max=40, members_max=8))
def test_cooperative_sticky_never_assigns_a_queue_that_another_holds(of):
    """No queue has two members at any time, and the second step completes the first."""
    first = cooperative_sticky(of)
    goal = sticky(of)
    for member in of.members:
        others = {queue for other in of.members if other is not member for queue in other.owned}
        assert set(first[member.client_id]) == set(goal[member.client_id]) - others
    released = [
        Member(client_id=m.client_id, topics=m.topics, owned=tuple(first[m.client_id])) for m in of.members
    ]
    second = cooperative_sticky(Group(members=released, queues=of.queues))
    check_partition(of, second)
    assert loads(second) == loads(goal)


def test_a_queue_claimed_twice_in_one_generation_is_given_up_first():
    """Both claimants must release it first (KIP-429)."""
    both = {"C0": named("t0p0", "t0p1"), "C1": named("t0p0")}
    assert text(cooperative_sticky(group({"t0": 2}, {"C0": ["t0"], "C1": ["t0"]}, both))) == {
        "C0": ["t0p1"],
        "C1": [],
    }
