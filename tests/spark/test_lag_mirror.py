"""Tests of the lag mirror: its group has no members, and its committed offsets show a reader's positions."""

from collections.abc import Iterator

import pytest

from libramq.client.queue_reader import QueueReader
from libramq.codes import RequestCode
from libramq.errors import ConfigError
from libramq.spark.reading.lag_mirror import LagMirror

from ..client.fake_broker import FakeBroker, serving


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
    LagMirror(reader, "watched").show({queues[0]: 3, queues[1]: 5})
    reader.max_offsets(queues)  # Answered after the commits on the same connection.
    assert broker.committed == {"watched": {queues[0]: 3, queues[1]: 5}}


def test_the_group_registers_once_with_each_broker_and_leaves_at_once(
    broker: FakeBroker, reader: QueueReader
):
    mirror = LagMirror(reader, "watched")
    for offset in (1, 2):
        mirror.show(dict.fromkeys(reader.queues("T"), offset))
    seen = [
        code for code in broker.requests if code in (RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT)
    ]
    assert seen == [RequestCode.HEART_BEAT, RequestCode.UNREGISTER_CLIENT]


def test_a_group_with_members_is_left_alone(broker: FakeBroker, reader: QueueReader):
    broker.members["orders"] = ["a", "b"]
    with pytest.raises(ConfigError, match="the group orders has 2 members"):
        LagMirror(reader, "orders").show(dict.fromkeys(reader.queues("T"), 1))
    assert RequestCode.HEART_BEAT not in broker.requests
