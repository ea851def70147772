"""Tests of the lag group: it has no members, and its committed offsets show another reader's positions."""

from collections.abc import Iterator

import pytest

from libramq.client.lag_group import LagGroup
from libramq.client.queue_reader import QueueReader
from libramq.codes import RequestCode
from libramq.errors import ConfigError

from .fake_broker import FakeBroker, serving


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serving(FakeBroker()) as started:
        started.fill("T", 2, 5)
        yield started


@pytest.fixture
def reader(broker: FakeBroker) -> Iterator[QueueReader]:
    made = QueueReader([broker.address], group="TOOLS_CONSUMER")
    yield made
    made.close()


def test_offsets_are_committed_one_way(broker: FakeBroker, reader: QueueReader):
    queues = reader.queues("T")
    LagGroup(reader, "watched").commit({queues[0]: 3, queues[1]: 5})
    reader.max_offsets(queues)  # Answered behind the commits on the same connection.
    assert broker.committed == {"watched": {queues[0]: 3, queues[1]: 5}}


def test_the_group_registers_once_with_each_broker_and_leaves_at_once(
    broker: FakeBroker, reader: QueueReader
):
    LagGroup(reader, "watched").introduce(reader.queues("T"))
    seen = [
        code for code in broker.requests if code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
    ]
    assert seen == [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT]


def test_a_group_with_members_is_left_alone(broker: FakeBroker, reader: QueueReader):
    broker.members["orders"] = ["a", "b"]
    with pytest.raises(ConfigError, match="the group orders has 2 members"):
        LagGroup(reader, "orders").introduce(reader.queues("T"))
    assert RequestCode.HEART_BEAT not in broker.requests
