"""The queue reader returns exact ranges of queues, however many messages the broker returns at a time."""

from collections.abc import Iterator
from contextlib import closing

import pytest

from libramq.client.blocking_cluster import RETRY_TIMEOUT_MS
from libramq.client.queue_reader import DEPTH, MessagesLost, PullFilter, QueueReader, Stretch
from libramq.errors import (
    BrokerError,
    ConnectFailed,
    NameServerUnavailable,
    RouteNotFound,
    SubscriptionParseFailed,
    TopicNotExist,
)
from libramq.message import Message
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.sync import Producer
from libramq.testing import Broker

from ..cli.commands import libra
from ..message.inner_batches import items, single, wrapped
from .fake_broker import FIRST_STORED_MS, FakeBroker, serving

Q0 = MessageQueue("T", "broker-a", 0)


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with serving(FakeBroker()) as started:
        yield started


@pytest.fixture
def pauses() -> list[float]:
    return []


@pytest.fixture
def reader(broker: FakeBroker, pauses: list[float]) -> Iterator[QueueReader]:
    made = QueueReader([broker.address], group="TOOLS_CONSUMER", sleep=pauses.append)
    yield made
    made.close()


def offsets(reader: QueueReader, start: int, end: int) -> list[int]:
    return [
        message.queue_offset
        for stretch in reader.read(Q0, start, end)
        for message in decode_records(stretch.body)
    ]


def test_queues_and_their_bounds_are_listed(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 3, 5)
    broker.minimum[Q0] = 2
    queues = reader.queues("T")
    assert queues == [MessageQueue("T", "broker-a", number) for number in range(3)]
    assert list(reader.max_offsets(queues).values()) == [5, 5, 5]
    assert list(reader.min_offsets(queues).values()) == [2, 0, 0]


@pytest.mark.parametrize("cap", [1, 7, 32, 5000])
@pytest.mark.parametrize(("start", "end"), [(0, 1000), (13, 977), (999, 1000), (5, 5)])
def test_exactly_the_requested_range_is_read(
    broker: FakeBroker, reader: QueueReader, cap: int, start: int, end: int
):
    broker.fill("T", 1, 1000)
    broker.cap = cap
    assert offsets(reader, start, end) == list(range(start, end))


def test_replies_that_shrink_in_the_middle_are_topped_up_in_order(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 1000)
    seen = []
    for stretch in reader.read(Q0, 0, 1000):
        seen += [message.queue_offset for message in decode_records(stretch.body)]
        broker.cap = 3 if len(seen) > 300 else 32
    assert seen == list(range(1000))


def test_pulls_are_sent_ahead_of_their_answers(broker: FakeBroker, reader: QueueReader):
    """One round trip for each pull would be slow at a broker that returns 32 messages at a time."""
    broker.fill("T", 1, 2000)
    stretches = reader.read(Q0, 0, 2000)
    next(stretches)
    next(stretches)
    # Those in flight leave no gap: each begins where the one before it will end.
    assert offsets(reader, 0, 2000) == list(range(2000))
    assert len(broker.pulls) <= 2 * (2000 / 32 + DEPTH + 2)


def test_a_read_given_up_in_the_middle_leaves_the_next_one_clean(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 500)
    stretches = reader.read(Q0, 0, 500)
    next(stretches)
    next(stretches)
    stretches.close()
    assert offsets(reader, 100, 200) == list(range(100, 200))


def test_a_lost_connection_is_replaced_in_the_middle_of_a_read(
    broker: FakeBroker, reader: QueueReader, pauses: list[float]
):
    broker.fill("T", 1, 500)
    stretches = reader.read(Q0, 0, 500)
    seen = [next(stretches)]
    broker.hang_up_after = 3
    seen += stretches
    assert [m.queue_offset for s in seen for m in decode_records(s.body)] == list(range(500))
    assert len(pauses) == 1


def test_deleted_messages_are_refused(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 100)
    broker.minimum[Q0] = 40
    with pytest.raises(MessagesLost, match="from offset 10 to 40"):
        offsets(reader, 10, 60)


def test_deleted_messages_can_be_skipped(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 100)
    broker.minimum[Q0] = 40
    lost: list[tuple[int, int]] = []
    stretches = list(reader.read(Q0, 10, 60, lost=lambda _, start, end: lost.append((start, end))))
    assert [m.queue_offset for s in stretches for m in decode_records(s.body)] == list(range(40, 60))
    assert lost[0][0] == 10
    assert lost[-1][1] == 40


def test_end_that_the_broker_no_longer_has_is_refused(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 100)
    with pytest.raises(MessagesLost, match="from offset 100 to "):
        offsets(reader, 90, 120)


def test_an_unknown_topic_is_an_error_with_a_remedy(broker: FakeBroker, reader: QueueReader):
    broker.registered = {"broker-a"}
    with pytest.raises(RouteNotFound, match="libra admin updateTopic"):
        reader.queues("Nowhere")


def test_the_second_name_server_is_used(broker: FakeBroker, unused_tcp_port: int):
    broker.fill("T", 2, 1)
    reader = QueueReader([f"127.0.0.1:{unused_tcp_port}", broker.address], group="G")
    assert len(reader.queues("T")) == 2
    reader.close()


def test_no_name_server_is_one_clear_error(unused_tcp_port: int):
    with pytest.raises(NameServerUnavailable, match=f"cannot connect to 127.0.0.1:{unused_tcp_port}"):
        QueueReader([f"127.0.0.1:{unused_tcp_port}"], group="G").queues("T")


def test_silent_broker_is_left_out_where_that_is_allowed(
    broker: FakeBroker, pauses: list[float], unused_tcp_port: int
):
    broker.fill("T", 2, 3)
    reader = QueueReader([broker.address], group="G", sleep=pauses.append)
    queues = reader.queues("T")
    broker.address = f"127.0.0.1:{unused_tcp_port}"  # From now on the route leads to no broker.
    reader.queues("T")
    found, failures = reader.reachable_max_offsets(queues)
    assert found == {}
    assert [type(failure) for failure in failures] == [ConnectFailed]
    assert pauses == []
    with pytest.raises(ConnectFailed):
        reader.max_offsets(queues)
    assert sum(pauses) == RETRY_TIMEOUT_MS / 1000
    reader.close()


def test_topics_brokers_and_times_are_looked_up(broker: FakeBroker, reader: QueueReader):
    broker.fill("T", 1, 10)
    broker.fill("U", 1, 1)
    assert reader.topics() == ["T", "U"]
    assert reader.broker_names() == {"broker-a"}
    assert reader.offsets_at({Q0: FIRST_STORED_MS + 4}) == {Q0: 4}
    assert reader.offsets_at({Q0: FIRST_STORED_MS + 400}) == {Q0: 10}


def test_brokers_leave_out_messages_that_do_not_match(broker: FakeBroker):
    broker.fill("T", 1, 1000, tags=[b"x", *[b"y"] * 98, b"x2"])
    reader = QueueReader([broker.address], group="G", pull_filter=PullFilter("x || z"))
    stretches = list(reader.read(Q0, 50, 950))
    found = [message.queue_offset for each in stretches for message in decode_records(each.body)]
    assert [offset for offset in found if offset < 950] == [
        offset for offset in range(50, 950) if offset % 100 in (0, 99)
    ]
    assert stretches[-1].end <= 950
    assert set(broker.subscriptions) == {("TAG", "x || z")}
    reader.close()


def test_a_filter_that_a_broker_refuses_raises_its_error(broker: FakeBroker):
    broker.fill("T", 1, 1)
    broker.refuses_sql = True
    reader = QueueReader([broker.address], group="G", pull_filter=PullFilter("a = 1", "SQL92"))
    with pytest.raises(BrokerError, match="no filter by SQL92"):
        reader.probe(reader.queues("T")[0])
    reader.close()


def test_an_invalid_expression_is_refused_before_anything_is_read(broker: FakeBroker):
    """Apache's broker would return every message."""
    broker.fill("T", 1, 3)
    broker.parses = False
    reader = QueueReader([broker.address], group="G", pull_filter=PullFilter("a BETWEEN", "SQL92"))
    with pytest.raises(SubscriptionParseFailed, match="Encountered <EOF>"):
        reader.probe(Q0)
    assert broker.pulls == []
    reader.close()


def test_a_slave_behind_its_master_is_retried(broker: FakeBroker, reader: QueueReader, pauses: list[float]):
    """Its master is gone, and what the slave does not have yet is not lost."""
    broker.fill("T", 1, 40)
    broker.is_slave = True
    reader.queues("T")
    stretches = reader.read(Q0, 0, 50)
    seen = [next(stretches), next(stretches)]
    pause = pauses.append

    def catch_up(seconds: float) -> None:
        pause(seconds)
        broker.fill("T", 1, 10)

    reader._sleep = catch_up
    seen += stretches
    assert [m.queue_offset for each in seen for m in decode_records(each.body)] == list(range(50))
    assert len(pauses) == 1


def test_a_slave_that_does_not_know_a_topic_yet_is_retried(
    broker: FakeBroker, reader: QueueReader, pauses: list[float]
):
    """The same answer of a master is final."""
    broker.fill("T", 1, 40)
    broker.knows_topics = False
    with pytest.raises(TopicNotExist):
        list(reader.read(Q0, 0, 40))
    assert pauses == []
    broker.is_slave = True
    reader.queues("T")
    reader._sleep = lambda seconds: (pauses.append(seconds), setattr(broker, "knows_topics", True))[0]
    seen = list(reader.read(Q0, 0, 40))
    assert [m.queue_offset for each in seen for m in decode_records(each.body)] == list(range(40))
    assert len(pauses) == 1


def test_topic_is_forgotten_with_its_only_broker(
    broker: FakeBroker, reader: QueueReader, pauses: list[float]
):
    """Name servers have no route while the broker restarts."""
    broker.fill("T", 1, 100)
    stretches = reader.read(Q0, 0, 100)
    seen = [next(stretches)]
    held = broker.queues.pop(Q0)
    reader.disconnect("broker-a")
    reader._sleep = lambda seconds: (pauses.append(seconds), broker.queues.setdefault(Q0, held))[0]
    seen += reader.read(Q0, seen[0].end, 100)
    assert [m.queue_offset for each in seen for m in decode_records(each.body)] == list(range(100))
    assert len(pauses) == 1


def test_a_stretch_has_the_messages_of_its_offsets_whatever_its_batches_have():
    body = wrapped(items(b"a", b"b", b"c"), 7) + single(10) + wrapped(items(b"d", b"e"), 11)
    messages = list(Stretch(Q0, 8, 12, body).messages())
    assert [(each.queue_offset, each.body) for each in messages] == [
        (8, b"b"), (9, b"c"), (10, b"alone"), (11, b"d"),
    ]  # fmt: skip
    assert {each.broker_name for each in messages} == {"broker-a"}


def test_large_batches_are_sent_to_a_reader_once():
    """A pull that began within a batch brought all of it, and ever smaller pulls were made."""
    size, count, of_batch = 1_024, 40_000, 900
    with Broker() as cluster:
        topic = ("-n", cluster.namesrv, "-c", "DefaultCluster", "-t", "B", "-r", "1", "-w", "1")
        assert libra("admin", "updateTopic", *topic, "-a", "+queue.type=BatchCQ").code == 0
        with Producer(group="p", namesrv=cluster.namesrv) as producer:
            for first in range(0, count, of_batch):
                numbers = range(first, min(first + of_batch, count))
                producer.send_batch([Message("B", b"%0*d" % (size, number)) for number in numbers])
        with closing(QueueReader([cluster.namesrv], group="TOOLS_CONSUMER")) as reader:
            (queue,) = reader.queues("B")
            stretches = list(reader.read(queue, 0, count))
    assert [each.start for each in stretches] == [0, *(each.end for each in stretches[:-1])]
    assert stretches[-1].end == count
    assert sum(len(each.body) for each in stretches) < 1.3 * count * size
