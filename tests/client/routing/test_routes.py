"""Tests of the route table: what changes, and which broker a request goes to."""

from libramq.client.routing.routes import RouteTable
from libramq.formats.route import BrokerData, TopicRouteData
from tests.client.consuming.examples import route


def test_the_same_route_in_another_order_is_no_change():
    """Name servers do not sort."""
    table = RouteTable()
    assert table.update("T", route(2, brokers=("a", "b")))
    assert not table.update("T", route(2, brokers=("b", "a")))
    assert table.update("T", route(3, brokers=("b", "a")))


def test_an_unknown_topic_has_no_queues():
    """A look-up does not make it known."""
    table = RouteTable()
    assert table.published.get("T") is None
    assert table.subscribe_queues("T") == ()
    assert table.readers_of_topic("T") == []
    assert table.topics() == []


def test_writes_go_to_masters_and_reads_to_any_broker():
    """A read goes to the suggested broker if there is one, else to another."""
    table = RouteTable()
    table.update("T", route(slaves=True))
    assert table.master("a") == "a:1"
    assert table.reader("a") == "a:1"
    assert table.reader("a", 1) == "a:2"
    assert table.reader("a", 7) == "a:1"
    assert table.reader("unknown") is None
    assert table.addresses() == {"a:1", "a:2"}
    assert table.masters() == {"a:1"}


def test_a_missing_broker_id_falls_back_to_the_next_id():
    """findBrokerAddressInSubscribe does the same."""
    table = RouteTable()
    data = BrokerData(broker_name="a", broker_addrs={0: "a:1", 2: "a:3"})
    table.update("T", TopicRouteData(queue_datas=route().queue_datas, broker_datas=[data]))
    assert table.reader("a", 1) == "a:3"


def test_without_its_master_a_broker_is_still_read():
    """Its slave answers."""
    table = RouteTable()
    table.update("T", route(slaves=True))
    table.update(
        "T",
        TopicRouteData(
            queue_datas=route().queue_datas,
            broker_datas=[BrokerData(broker_name="a", broker_addrs={1: "a:2"})],
        ),
    )
    assert table.master("a") is None
    assert table.reader("a") == "a:2"


def test_a_broker_that_moved_has_its_new_address():
    """The newest route counts, and an address that no route names is forgotten."""
    table = RouteTable()
    table.update("T", route())
    table.update("U", route())
    moved = BrokerData(broker_name="a", broker_addrs={0: "a:9"})
    table.update("U", TopicRouteData(queue_datas=route().queue_datas, broker_datas=[moved]))
    assert table.master("a") == "a:9"
    table.update("T", TopicRouteData(queue_datas=route().queue_datas, broker_datas=[moved]))
    assert table.addresses() == {"a:9"}
