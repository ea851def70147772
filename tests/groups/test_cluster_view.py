"""The cluster view: its brokers, where groups live, and which queues exist."""

from libramq.formats.route import BrokerData, QueueData, TopicRouteData
from libramq.groups.cluster_view import ClusterView, coordinator_of
from libramq.message.queue import MessageQueue

READ_WRITE, WRITE = 6, 2


def brokers(*names: str, slave_of: str | None = None) -> TopicRouteData:
    datas = [BrokerData(broker_name=name, broker_addrs={0: f"10.0.0.{name}:1"}) for name in names]
    if slave_of is not None:
        datas.append(BrokerData(broker_name=slave_of, broker_addrs={1: "10.0.0.9:1"}))
    return TopicRouteData(broker_datas=datas)


def queues(perm: int = READ_WRITE, **counts: int) -> TopicRouteData:
    datas = [
        QueueData(broker_name=name[1:], read_queue_nums=count, write_queue_nums=count, perm=perm)
        for name, count in counts.items()
    ]
    return TopicRouteData(queue_datas=datas)


def view_of(*names: str) -> ClusterView:
    """Return the view of broker 1."""
    view = ClusterView("1", "10.0.0.1:1")
    view.brokers_reported(brokers(*names), linked=())
    return view


def q(name: str, number: int) -> MessageQueue:
    return MessageQueue("T", name, number)


def test_coordinators_are_unknown_before_a_name_server_has_answered():
    view = ClusterView("1", "10.0.0.1:1")
    assert (view.coordinator_of("g"), view.queues("T"), view.names) == (None, None, ["1"])
    assert view.brokers_reported(None, linked=())
    assert (view.coordinator_of("g"), view.queues("T")) == ("1", ())
    assert not view.brokers_reported(brokers("1"), linked=())


def test_coordinators_are_known_when_all_brokers_agree():
    """A broker is in its own view, reported or not; slaves are not. Its reported addresses are ignored."""
    view = view_of("1", "2", "3")
    other = ClusterView("2", "10.0.0.2:1")
    other.brokers_reported(brokers("1", "3", slave_of="4"), linked=())
    assert view.names == other.names == ["1", "2", "3"]
    for group in map(str, range(50)):
        assert (
            view.coordinator_of(group)
            == other.coordinator_of(group)
            == coordinator_of(group, ["1", "2", "3"])
        )
    assert view.others == {"2": "10.0.0.2:1", "3": "10.0.0.3:1"}
    assert view.is_at("3", "10.0.0.3")
    assert not view.is_at("3", "10.0.0.2")
    assert not view.has_host("10.0.0.4")


def test_a_broker_leaves_when_it_is_neither_reported_nor_reachable():
    """A name server that has just started knows no broker: reachable brokers stay, with their queues."""
    view = view_of("2", "3")
    view.topic_reported("T", queues(_1=4, _2=1, _3=1))
    assert view.queues("T") == (q("2", 0), q("3", 0))
    assert not view.brokers_reported(None, linked=("2", "3"))
    assert not view.topic_reported("T", None)
    assert not view.brokers_reported(brokers("2"), linked=("3",))
    assert view.topic_reported("T", queues(_1=4))
    assert view.queues("T") == (q("3", 0),), "the returned broker's topic was deleted"
    assert view.brokers_reported(brokers("2"), linked=())
    assert view.names == ["1", "2"]
    view.forget_gone()
    assert view.queues("T") == ()


def test_queues_stay_while_a_slave_serves_them_without_its_master():
    """The slave coordinates nothing meanwhile, and is no peer."""
    view = view_of("2", "3")
    view.topic_reported("T", queues(_2=2, _3=1))
    assert view.brokers_reported(brokers("3", slave_of="2"), linked=())
    view.forget_gone()
    assert (view.names, view.absent) == (["1", "3"], {"2"})
    assert not view.topic_reported("T", queues(_2=2, _3=1))
    assert view.queues("T") == (q("2", 0), q("2", 1), q("3", 0))
    assert {view.coordinator_of(group) for group in map(str, range(50))} == {"1", "3"}
    assert not view.has_host("10.0.0.9")
    assert view.brokers_reported(brokers("2", "3"), linked=())
    assert (view.names, view.absent) == (["1", "2", "3"], set())
    assert view.queues("T") == (q("2", 0), q("2", 1), q("3", 0)), "nothing is new"


def test_the_last_other_master_is_absent_and_then_its_slave_goes_too():
    view = view_of("2")
    view.topic_reported("T", queues(_2=1))
    view.brokers_reported(brokers(slave_of="2"), linked=())
    view.forget_gone()
    assert not view.is_alone
    assert (view.queues("T"), view.coordinator_of("g")) == ((q("2", 0),), "1")
    assert view.brokers_reported(None, linked=())
    view.forget_gone()
    assert view.is_alone
    assert view.queues("T") == ()


def test_a_master_that_is_reached_is_not_absent():
    """This holds regardless of name servers: it may have lost only its connection to them."""
    view = view_of("2")
    assert not view.brokers_reported(brokers(slave_of="2"), linked=("2",))
    assert (view.names, view.absent) == (["1", "2"], set())


def test_queues_of_others_are_unknown_until_reported():
    view = view_of()
    assert view.queues("T") == ()
    view.topic_reported("T", None)
    assert view.brokers_reported(brokers("2"), linked=())
    assert view.queues("T") is None
    assert view.topic_reported("T", queues(_2=2))
    assert not view.topic_reported("T", queues(_2=2))
    assert view.topic_reported("T", queues(WRITE, _2=2)), "unreadable queues are not shared"
    assert view.queues("T") == ()
    view.forget_all_but([])
    assert view.queues("T") is None


def test_after_a_broker_joins_queues_are_unknown_until_reported_again():
    """Members that held its queues before this broker knew it must not lose them to an old list."""
    view = view_of("2")
    view.topic_reported("T", queues(_2=1))
    assert view.brokers_reported(brokers("2", "3"), linked=())
    assert view.queues("T") is None
    assert view.topic_reported("T", queues(_2=1)), "the same as before, but new"
    assert view.queues("T") == (q("2", 0),)
    view.brokers_reported(brokers("2"), linked=())
    assert view.queues("T") == (q("2", 0),)
    view.brokers_reported(brokers("2", "3"), linked=())
    view.brokers_reported(brokers(), linked=())
    assert view.queues("T") == (), "alone"


def test_a_broker_at_a_new_address_counts_as_another():
    view = view_of("2")
    moved = TopicRouteData(broker_datas=[BrokerData(broker_name="2", broker_addrs={0: "10.0.0.7:1"})])
    assert view.brokers_reported(moved, linked=("2",))
    assert view.others["2"] == "10.0.0.7:1"
