"""Tests of synthetic histories: a seed always gives the same one, and they match their description."""

import pytest

from libramq.balance import strategy_named
from libramq.lab.histories import (
    KINDS,
    Crew,
    Departure,
    History,
    Size,
    address_of,
    shares,
    synthetic,
    zone_of,
)

SIZE = Size(members=40, queues=130, topics=4)


def sizes(history: History) -> list[int]:
    """Return the number of members after each step; no absent member leaves, and none joins twice."""
    members = set(history.members)
    found = [len(members)]
    for step in history.steps:
        assert step.gone.keys() <= members
        members -= step.gone.keys()
        assert not members & step.joined.keys()
        members |= step.joined.keys()
        assert step.resubscribed.keys() <= members
        found.append(len(members))
    times = [step.at_ms for step in history.steps]
    assert times == sorted(set(times))
    return found


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("members", [1, 2, 3, 7, 40])
def test_histories_of_every_size_are_valid(kind: str, members: int):
    history = synthetic(kind, "g", Size(members=members, queues=50, topics=4), 1)
    assert history.kind == kind
    assert sizes(history)[0] == members
    assert history.queue_count == 50


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_determines_the_history(kind: str):
    assert synthetic(kind, "g", SIZE, 1) == synthetic(kind, "g", SIZE, 1)
    assert synthetic(kind, "g", SIZE, 1) != synthetic(kind, "g", SIZE, 2)
    assert synthetic(kind, "g", SIZE, 1).members != synthetic(kind, "h", SIZE, 1).members


def test_a_rolling_deploy_replaces_everybody():
    history = synthetic("rolling_deploy", "g", SIZE, 1)
    assert sizes(history) == [40, *[35, 40] * 8]
    gone = [client_id for step in history.steps for client_id in step.gone]
    assert sorted(gone) == sorted(history.members)


def test_autoscaling_shrinks_and_grows():
    counts = sizes(synthetic("autoscaling", "g", SIZE, 1))
    assert min(counts) < 20
    assert counts[-1] >= 36


def test_a_flapping_member_returns_on_its_machine():
    history = synthetic("flapping", "g", SIZE, 1)
    weak = {address_of(client_id) for step in history.steps for client_id in step.gone}
    assert len(weak) <= 2
    assert {address_of(client_id) for step in history.steps for client_id in step.joined} == weak
    assert all(how is Departure.CRASHED for step in history.steps for how in step.gone.values())


def test_all_members_of_a_lost_zone_leave():
    history = synthetic("zone_loss", "g", SIZE, 1)
    first = history.steps[0]
    (zone,) = {zone_of(client_id) for client_id in first.gone}
    assert first.gone.keys() == {client_id for client_id in history.members if zone_of(client_id) == zone}
    assert set(first.gone.values()) == {Departure.LOST}
    assert sizes(history)[-1] == 40


def test_members_may_subscribe_to_different_topics():
    history = synthetic("subscriptions", "g", SIZE, 1)
    assert len(set(history.members.values())) == 3
    assert any(step.resubscribed for step in history.steps)


def test_queues_are_sorted_and_brokers_named_by_zone():
    from random import Random

    queues = Crew(SIZE, Random(1)).queues()
    assert [len(lot) for lot in queues.values()] == [33, 33, 32, 32]
    for lot in queues.values():
        assert lot == sorted(lot)
        assert len(set(lot)) == len(lot)
    near = strategy_named("MACHINE_ROOM", rooms=["zone-1"])("a", queues["Topic00"], ["a"])
    assert len(near) == 11


def test_shares_differ_by_one_at_most():
    assert shares(10, 4) == [3, 3, 2, 2]
    assert shares(2, 4) == [1, 1]
    assert shares(0, 4) == []
