"""Computing all shares at once yields the same result as each member computing its own."""

from random import Random

import pytest

from libramq.balance import Group, Strategy, TopicStrategy, strategy_named
from libramq.balance.topic_rules import room_of
from libramq.message.queue import MessageQueue

ROOMS = ("north", "south", "west")

STRATEGIES = {
    "CONSISTENT_HASH": strategy_named("CONSISTENT_HASH", virtual_nodes=3),
    "MACHINE_ROOM": strategy_named("MACHINE_ROOM", rooms=ROOMS[:2]),
    "ON_MACHINES-AVG": strategy_named(
        "ON_MACHINES-AVG", addresses=["north-1", "south-2", "west-3", "north-4"]
    ),
    "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE": strategy_named(
        "MACHINE_ROOM_NEARBY-AVG_BY_CIRCLE",
        room_of_queue=room_of,
        room_of_client=lambda client_id: client_id.partition("-")[0],
    ),
}


@pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES)
def test_one_computation_for_all_equals_one_by_each(strategy: Strategy):
    assert isinstance(strategy, TopicStrategy)
    assert strategy.deal is not None
    random = Random(1)
    for queue_count in range(14):
        for client_count in range(9):
            queues = sorted(
                MessageQueue("T", f"{random.choice(ROOMS)}@a", number) for number in range(queue_count)
            )
            clients = sorted(f"{random.choice(ROOMS)}-{number}" for number in range(client_count))
            given = strategy.assign(Group.of_topic(queues, clients))
            alone = {client_id: list(strategy.rule(client_id, queues, clients)) for client_id in clients}
            assert {client_id: list(share) for client_id, share in given.items()} == alone
