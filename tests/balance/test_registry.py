"""Tests of the registry: every strategy by its name, with its options, and strategies of users."""

import pytest

from libramq.balance import (
    Group,
    GroupStrategy,
    Member,
    TopicStrategy,
    averagely,
    by_circle,
    register_strategy,
    strategy_named,
)
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from tests.balance.examples import check_partition, group, queues

PLAIN = (
    "AVG",
    "AVG_BY_CIRCLE",
    "CONSISTENT_HASH",
    "balanced_sticky",
    "cooperative-sticky",
    "range",
    "roundrobin",
    "sticky",
)


@pytest.mark.parametrize("name", PLAIN)
def test_every_strategy_serves_clients_and_coordinators(name):
    """Clients that allocate alone divide a topic as the coordinator would; each queue has one owner."""
    strategy = strategy_named(name)
    ids, t = ["a", "b", "c"], queues("t", 7)
    shares = {client_id: strategy(client_id, t, ids) for client_id in ids}
    of = group({"t": 7}, dict.fromkeys(ids, "t"))
    check_partition(of, shares)
    assigned = strategy.assign(of)
    assert {n: list(share) for n, share in assigned.items()} == {n: list(s) for n, s in shares.items()}
    assert list(strategy("x", t, ids)) == []
    assert list(strategy("a", t, [])) == []
    assert list(strategy("a", [], ids)) == []


@pytest.mark.parametrize("name", PLAIN)
def test_a_coordinator_assigns_topics_to_their_subscribers_only(name):
    """Member a subscribes to t, b to both, and no member to w."""
    of = group({"t": 5, "u": 3, "w": 2}, {"a": "t", "b": "tu"})
    check_partition(of, strategy_named(name).assign(of))


def test_topic_rules_are_computed_for_all_members_quickly():
    """There are 1,000 members and 20 topics, and no member is searched for in a list."""
    topics = {f"t{number:02}": 100 for number in range(20)}
    of = group(topics, {f"m{number:03}": topics for number in range(1000)})
    assert sum(map(len, strategy_named("AVG").assign(of).values())) == 2000


def test_options_are_passed_by_name():
    """A missing option and an unknown one are errors."""
    rooms = strategy_named("MACHINE_ROOM", rooms={"east"})
    east = MessageQueue("t", "east@b", 0)
    assert list(rooms("a", [east, MessageQueue("t", "west@b", 0)], ["a"])) == [east]
    with pytest.raises(ConfigError, match="MACHINE_ROOM: missing a required argument: 'rooms'"):
        strategy_named("MACHINE_ROOM")
    with pytest.raises(ConfigError, match="AVG: got an unexpected keyword argument 'rooms'"):
        strategy_named("AVG", rooms={"east"})


def test_a_strategy_within_another_is_named_behind_it():
    """The name MACHINE_ROOM_NEARBY-AVG is upstream's; a strategy that wraps none has no such name."""
    rule = strategy_named("ON_MACHINES-AVG_BY_CIRCLE", addresses=["10.0.0.1"])
    ids = ["10.0.0.1@1", "10.0.0.1@2", "10.0.0.2@1"]
    assert list(rule("10.0.0.1@1", queues("t", 4), ids)) == queues("t", 4)[::2]
    for name in ("MACHINE_ROOM_NEARBY-NOTHING", "AVG-AVG"):
        with pytest.raises(ConfigError, match="there is no strategy"):
            strategy_named(name)


def test_strategies_are_found_by_upstreams_names():
    """For an unknown name the error lists the available strategies. A user's strategy cannot replace an
    existing one.
    """
    assert strategy_named("AVG") == TopicStrategy(averagely)
    assert strategy_named("AVG_BY_CIRCLE") == TopicStrategy(by_circle)
    with pytest.raises(ConfigError, match=r"AVG, AVG_BY_CIRCLE, CONFIG.*sticky"):
        strategy_named("SOMETHING")
    with pytest.raises(ConfigError, match="taken"):
        register_strategy("AVG", by_circle)


def test_users_can_register_a_strategy():
    """Users can register their own rule under their own name."""

    def all_to_first(client_id, queues, client_ids):
        return queues if client_ids and client_id == client_ids[0] else ()

    register_strategy("TEST_ALL_TO_FIRST", all_to_first)
    assert strategy_named("TEST_ALL_TO_FIRST") == TopicStrategy(all_to_first)


def test_users_can_register_a_rule_for_the_whole_group():
    """It gets the subscriptions and the queues that members hold. Registering it again changes nothing."""

    def to_the_idle(of):
        idle = min(of.members, key=lambda member: len(member.owned))
        return {idle.client_id: [queue for some in of.queues.values() for queue in some]}

    register_strategy("TEST_TO_THE_IDLE", GroupStrategy(to_the_idle))
    register_strategy("TEST_TO_THE_IDLE", GroupStrategy(to_the_idle))
    members = [
        Member(client_id="a", topics=frozenset("t"), owned=queues("t", 1)),
        Member(client_id="b", topics=frozenset("t")),
    ]
    assert strategy_named("TEST_TO_THE_IDLE").assign(Group.of(members, queues("t", 2))) == {
        "b": queues("t", 2)
    }
    assert list(strategy_named("TEST_TO_THE_IDLE")("b", queues("t", 2), ["a", "b"])) == []
    with pytest.raises(ConfigError, match="taken"):
        register_strategy("TEST_TO_THE_IDLE", averagely)
