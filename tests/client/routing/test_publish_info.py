"""Tests of the queues to publish to and to subscribe to, which are made from a route."""

import pytest

from libramq.client.routing.publish_info import as_template, publish_info, subscribe_queues
from libramq.errors import RemoteProtocolError
from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.message.queue import MessageQueue
from tests.client.consuming.examples import route


def test_queues_come_by_broker_name_and_number():
    """The order does not depend on the name server's."""
    info = publish_info("T", route(2, brokers=("b", "a")))
    assert info.queues == (
        MessageQueue("T", "a", 0),
        MessageQueue("T", "a", 1),
        MessageQueue("T", "b", 0),
        MessageQueue("T", "b", 1),
    )
    assert not info.ordered


@pytest.mark.parametrize(("perm", "to_write", "to_read"), [(6, 2, 2), (4, 0, 2), (2, 2, 0), (0, 0, 0)])
def test_permissions_decide_who_uses_a_queue(perm, to_write, to_read):
    """The bit 2 admits producers, the bit 4 consumers."""
    data = route(2, perm=perm)
    assert len(publish_info("T", data).queues) == to_write
    assert len(subscribe_queues("T", data)) == to_read


def test_a_broker_without_master_is_read_only():
    """A slave serves consumers while its master is away."""
    data = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=3, write_queue_nums=3, perm=6)],
        broker_datas=[BrokerData(broker_name="a", broker_addrs={1: "a:2"})],
    )
    assert publish_info("T", data).queues == ()
    assert len(subscribe_queues("T", data)) == 3


def test_read_and_write_queue_counts_are_kept_apart():
    """A topic that shrinks has fewer queues to write than to read."""
    data = TopicRouteData(
        queue_datas=[QueueData(broker_name="a", read_queue_nums=4, write_queue_nums=2, perm=6)],
        broker_datas=route().broker_datas,
    )
    assert len(publish_info("T", data).queues) == 2
    assert len(subscribe_queues("T", data)) == 4


def test_an_ordered_topic_has_exactly_the_queues_listed():
    """orderTopicConf takes precedence over queue data, and has its own order."""
    data = TopicRouteData(order_topic_conf="b:1;a:2", queue_datas=route(8).queue_datas)
    info = publish_info("T", data)
    assert info.ordered
    assert info.queues == (MessageQueue("T", "b", 0), MessageQueue("T", "a", 0), MessageQueue("T", "a", 1))


@pytest.mark.parametrize("text", ["a", "a:x", ":2", "a:2;;", "a:99999999999"])
def test_an_invalid_order_configuration_is_refused(text):
    """What a name server sends is checked before it is used."""
    with pytest.raises(RemoteProtocolError, match="order of topic T"):
        publish_info("T", TopicRouteData(order_topic_conf=text))


def test_an_enormous_route_is_refused():
    """A list of two thousand million queues must never be made."""
    data = TopicRouteData(
        queue_datas=[
            QueueData(broker_name="a", read_queue_nums=2**31 - 1, write_queue_nums=2**31 - 1, perm=6)
        ],
        broker_datas=route().broker_datas,
    )
    with pytest.raises(RemoteProtocolError, match="allowed"):
        publish_info("T", data)
    with pytest.raises(RemoteProtocolError, match="allowed"):
        subscribe_queues("T", data)


def test_a_new_topic_has_no_more_queues_than_requested():
    """TBW102 has 8 queues; a topic that is created by a send gets 4."""
    template = as_template(route(8), 4)
    assert [(data.read_queue_nums, data.write_queue_nums) for data in template.queue_datas] == [(4, 4)]
    assert as_template(route(2), 4).queue_datas[0].write_queue_nums == 2
