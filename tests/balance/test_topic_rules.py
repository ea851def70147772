"""Tests of the strategies that clients apply alone. Tests in tests/interop compare them with Apache's
classes.
"""

import pytest

from libramq.balance import (
    averagely,
    by_config,
    consistent_hash,
    machine_room,
    machine_room_nearby,
    on_machines,
    strategy_named,
)
from libramq.errors import ConfigError
from libramq.message.queue import MessageQueue
from tests.balance.examples import queues


def test_consistent_hash_of_three_clients():
    """The result is that of Apache's AllocateMessageQueueConsistentHash 5.3.3 for clients c1, c2 and c3.

    In ConsistentHashRouter the MD5 of "c1-0" begins with 3886541579, that of the queue with 562732085.
    """
    shares = [
        [queue.queue_id for queue in consistent_hash(me, queues("T", 8), ["c1", "c2", "c3"])]
        for me in ("c1", "c2", "c3")
    ]
    assert shares == [[2], [0, 3, 4, 7], [1, 5, 6]]


def test_queues_move_only_to_a_joining_client():
    """Stability of this kind is the purpose of the ring."""
    before, after = ["a", "b", "c"], ["a", "b", "c", "d"]
    for me in before:
        assert set(consistent_hash(me, queues("t", 60), after)) <= set(
            consistent_hash(me, queues("t", 60), before)
        )
    assert consistent_hash("d", queues("t", 60), after)


def test_more_virtual_nodes_are_more_even():
    """With one place each, one of eight clients gets several times its share of 400 queues; with 500
    places it does not.
    """
    ids = [f"10.0.0.{number}@1" for number in range(8)]

    def most(count):
        rule = strategy_named("CONSISTENT_HASH", virtual_nodes=count)
        return max(len(rule(me, queues("t", 400), ids)) for me in ids)

    assert most(1) > 100
    assert most(500) < 70
    with pytest.raises(ConfigError, match="virtual_nodes"):
        strategy_named("CONSISTENT_HASH", virtual_nodes=0)


def test_by_config_uses_the_list_alone():
    """Every client gets the list, as upstream."""
    rule = by_config([("t", "b", 1), ("u", "b", 0)])
    assert list(rule("anybody", [], [])) == [MessageQueue("t", "b", 1), MessageQueue("u", "b", 0)]


def test_machine_room_shares_the_queues_of_the_chosen_rooms():
    """Three clients share seven queues of the chosen rooms: two consecutive ones each, and the first gets
    the seventh.
    """
    here = [MessageQueue("t", "east@b", number) for number in range(7)]
    there = [MessageQueue("t", name, 0) for name in ("west@b", "b", "east@b@c", "@b")]
    rule = machine_room(["east"])
    shares = [[queue.queue_id for queue in rule(me, here + there, ["a", "b", "c"])] for me in "abc"]
    assert shares == [[0, 1, 6], [2, 3], [4, 5]]
    assert list(rule("x", here, ["a"])) == []
    with pytest.raises(ConfigError, match="room"):
        machine_room([])


def nearby(room_of_client=lambda client_id: client_id.partition("@")[0]):
    return machine_room_nearby(lambda queue: queue.broker_name, room_of_client)


def test_machine_room_nearby_prefers_queues_in_the_same_room():
    """Clients in east get east's queues. No client is in west, so all share its queues."""
    east, west = queues("t", 4, broker="east"), queues("t", 3, broker="west")
    ids = ["east@1", "east@2", "north@1"]
    shares = {me: list(nearby()(me, east + west, ids)) for me in ids}
    assert shares == {
        "east@1": [*east[:2], west[0]],
        "east@2": [*east[2:], west[1]],
        "north@1": [west[2]],
    }
    assert nearby()("east@3", east, ids) == ()


def test_machine_room_nearby_needs_the_room_of_every_client():
    """Upstream also refuses it; otherwise a client without a room would be silently left out."""
    with pytest.raises(ConfigError, match="no machine room is known for b"):
        nearby(lambda client_id: "east" if client_id == "a" else "")(
            "a", queues("t", 1, broker="east"), ["a", "b"]
        )


def test_only_the_chosen_machines_consume():
    """Two instances on one of three machines share all queues. Others get nothing, even while that machine
    is down.
    """
    rule = on_machines({"10.0.0.7"})
    ids = ["10.0.0.70@1", "10.0.0.7@1", "10.0.0.7@2#unit", "10.0.0.8@1"]
    shares = [[queue.queue_id for queue in rule(me, queues("t", 4), ids)] for me in ids]
    assert shares == [[], [0, 1], [2, 3], []]
    assert list(rule("10.0.0.8@1", queues("t", 4), ["10.0.0.8@1"])) == []
    assert list(on_machines({"h"}, averagely)("h", queues("t", 2), ["h"])) == queues("t", 2)
    with pytest.raises(ConfigError, match="address"):
        on_machines([])
