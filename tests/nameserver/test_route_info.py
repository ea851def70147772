"""The route table follows Apache's rules, and keeps its limits."""

from contextlib import suppress

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import BrokerError, NoPermission
from libramq.formats.route import away_of_remark, away_remark
from libramq.nameserver import registration, route_info
from libramq.nameserver.route_info import ABSENT_MS_MAX, HEARTBEAT_TIMEOUT_MS, BrokerAddress, RouteInfo
from tests.nameserver.tables import header, register, table

OWNER = object()
A = BrokerAddress("DefaultCluster", "10.0.0.1:10911")


def registered(*topics: str) -> RouteInfo:
    routes = RouteInfo()
    register(routes, header(), table(*topics), owner=OWNER, zone=None, now_ms=0)
    return routes


def addresses(routes: RouteInfo, name: str = "broker-a") -> dict[int, str]:
    found = routes.clusters().broker_addr_table.get(name)
    return {} if found is None else found.broker_addrs


def test_a_registered_broker_is_found_by_its_topics():
    route = registered("T", "U").route("T")
    assert route is not None
    assert [(queue.broker_name, queue.read_queue_nums, queue.perm) for queue in route.queue_datas] == [
        ("broker-a", 4, 6)
    ]
    assert route.broker_datas[0].broker_addrs == {0: "10.0.0.1:10911"}
    assert route.broker_datas[0].cluster == "DefaultCluster"


def test_an_unknown_topic_has_no_route():
    assert registered("T", "U").route("V") is None


def test_a_newcomer_with_exactly_one_topic_is_refused():
    """Rule 1: such a registration announces a change, and the broker's other topics are unknown."""
    routes = RouteInfo()
    with pytest.raises(BrokerError, match="register broker failed"):
        register(routes, header(), table("T"), owner=OWNER, zone=None, now_ms=0)
    assert routes.clusters().broker_addr_table == {}
    assert routes.clusters().cluster_addr_table == {}


def test_a_known_broker_may_register_one_topic():
    routes = registered("T", "U")
    register(routes, header(), table("V", counter=2), owner=OWNER, zone=None, now_ms=0)
    assert sorted(routes.topics()) == ["T", "U", "V"]


def test_an_address_has_one_broker_id_only():
    """Rule 2: a slave that becomes master leaves its old id."""
    routes = registered("T", "U")
    register(
        routes, header(address="10.0.0.2:10911", id_=1), table("T", "U"), owner=OWNER, zone=None, now_ms=0
    )
    register(
        routes, header(address="10.0.0.2:10911", id_=0), table("T", "U"), owner=OWNER, zone=None, now_ms=0
    )
    assert addresses(routes) == {0: "10.0.0.2:10911"}


def test_a_deposed_master_is_ignored():
    """Rule 2: the holder of the id has the higher state version."""
    routes = RouteInfo()
    register(routes, header(), table("T", "U", state=5), owner=OWNER, zone=None, now_ms=0)
    answer = register(
        routes, header(address="10.0.0.9:10911"), table("X", "Y", state=4), owner=OWNER, zone=None, now_ms=0
    )
    assert not answer.is_new
    assert addresses(routes) == {0: "10.0.0.1:10911"}
    assert routes.route("X") is None


def test_the_same_state_version_takes_over_the_id():
    routes = registered("T", "U")
    register(routes, header(address="10.0.0.9:10911"), table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    assert addresses(routes) == {0: "10.0.0.9:10911"}


def test_topics_of_a_slave_do_not_count():
    """Rule 3: only a master's topics count."""
    routes = registered("T", "U")
    register(
        routes,
        header(address="10.0.0.2:10911", id_=1),
        table("T", "U", "OnlySlave"),
        owner=OWNER,
        zone=None,
        now_ms=0,
    )
    assert routes.route("OnlySlave") is None
    assert addresses(routes) == {0: "10.0.0.1:10911", 1: "10.0.0.2:10911"}


def test_a_slave_receives_its_masters_address():
    routes = RouteInfo()
    register(routes, header(ha="10.0.0.1:10912"), table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    answer = register(
        routes, header(address="10.0.0.2:10911", id_=1), table("T", "U"), owner=OWNER, zone=None, now_ms=0
    )
    assert (answer.master_address, answer.ha_address) == ("10.0.0.1:10911", "10.0.0.1:10912")


def test_topics_are_taken_only_when_the_data_version_differs():
    """Rule 3: an unchanged data version means unchanged topics."""
    routes = registered("T", "U")
    register(routes, header(), table("T", "U", queues=8), owner=OWNER, zone=None, now_ms=0)
    unchanged = routes.route("T")
    assert unchanged is not None
    assert unchanged.queue_datas[0].read_queue_nums == 4
    register(routes, header(), table("T", "U", queues=8, counter=2), owner=OWNER, zone=None, now_ms=0)
    changed = routes.route("T")
    assert changed is not None
    assert changed.queue_datas[0].read_queue_nums == 8


def test_a_deleted_topic_returns_with_the_next_registration():
    routes = registered("T", "U")
    routes.delete_topic("T")
    assert routes.route("T") is None
    register(routes, header(), table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    assert routes.route("T") is not None


def test_a_topic_that_a_whole_table_lacks_is_gone_at_that_broker():
    """Kafka's DeleteTopics contacts no name server. Apache's brokers register single topics: theirs stay."""
    routes, _ = two_brokers()
    whole = msgspec.structs.replace(header(), lb_whole=True)
    register(routes, whole, table("U", counter=1), owner=OWNER, zone=None, now_ms=0)
    assert sorted(routes.topics()) == ["T", "U", "V"], "the version of the table is the same"
    register(routes, whole, table("U", counter=2), owner=OWNER, zone=None, now_ms=0)
    route = routes.route("T")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["broker-b"]
    b = msgspec.structs.replace(header("broker-b", "10.0.0.2:10911"), lb_whole=True)
    register(routes, b, table("V", counter=2), owner=OWNER, zone=None, now_ms=0)
    assert sorted(routes.topics()) == ["U", "V"]


def test_topics_of_an_acting_master_are_read_only():
    """The slave with the lowest id acts for a missing master, without the write permission."""
    routes = RouteInfo()
    slave = header(address="10.0.0.2:10911", id_=1, acting_master=True)
    register(routes, slave, table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    route = routes.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4


def test_topics_become_read_only_when_the_master_of_an_acting_slave_leaves():
    routes, slave_owner = RouteInfo(), object()
    register(routes, header(acting_master=True), table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    slave = header(address="10.0.0.2:10911", id_=1, acting_master=True)
    register(routes, slave, table("T", "U"), owner=slave_owner, zone=None, now_ms=0)
    assert routes.unregister(A, owner=OWNER)
    route = routes.route("T")
    assert route is not None
    assert route.queue_datas[0].perm == 4
    assert route.broker_datas[0].broker_addrs == {1: "10.0.0.2:10911"}


def test_a_silent_broker_expires():
    """Rule 4: a broker expires after two minutes, or its own timeout; 'silent' means longer than that."""
    routes = registered("T", "U")
    impatient = header("broker-b", "10.0.0.2:10911", timeout_ms=1_000)
    other_owner = object()
    register(routes, impatient, table("T", "U"), owner=other_owner, zone=None, now_ms=0)
    assert routes.expire(1_000) == ([], [])
    forgotten, connections = routes.expire(1_001)
    assert forgotten == [BrokerAddress("DefaultCluster", "10.0.0.2:10911")]
    assert connections == [other_owner]
    routes.seen(A, 50_000)
    assert routes.expire(50_000 + HEARTBEAT_TIMEOUT_MS) == ([], [])
    assert routes.expire(50_001 + HEARTBEAT_TIMEOUT_MS) == ([A], [OWNER])
    assert routes.topics() == []


def test_a_connection_shared_with_a_live_broker_is_kept():
    routes = registered("T", "U")
    register(
        routes,
        header("broker-b", "10.0.0.2:10911", timeout_ms=1),
        table("T", "U"),
        owner=OWNER,
        zone=None,
        now_ms=0,
    )
    forgotten, connections = routes.expire(10)
    assert len(forgotten) == 1
    assert connections == []


def test_all_brokers_of_a_lost_connection_are_removed():
    routes = registered("T", "U")
    register(routes, header("broker-b", "10.0.0.2:10911"), table("V", "W"), owner=OWNER, zone=None, now_ms=0)
    register(
        routes, header("broker-c", "10.0.0.3:10911"), table("T", "X"), owner=object(), zone=None, now_ms=0
    )
    assert len(routes.owner_lost(OWNER)) == 2
    assert sorted(routes.topics()) == ["T", "X"]
    assert list(routes.clusters().broker_addr_table) == ["broker-c"]


def test_the_end_of_a_replaced_connection_removes_nothing():
    """The broker returned over a new connection before the end of the old one was noticed."""
    routes = registered("T", "U")
    register(routes, header(), table("T", "U"), owner=object(), zone=None, now_ms=0)
    assert routes.owner_lost(OWNER) == []
    assert routes.route("T") is not None


def test_only_the_connection_that_registered_may_unregister():
    routes = registered("T", "U")
    with pytest.raises(NoPermission):
        routes.unregister(A, owner=object())
    assert routes.route("T") is not None
    assert routes.unregister(A, owner=OWNER)
    assert routes.route("T") is None
    assert not routes.unregister(A, owner=OWNER)


def test_clusters_are_kept_apart():
    routes = registered("T", "Both")
    register(
        routes,
        header("broker-b", "10.0.0.2:10911", cluster="Second"),
        table("U", "Both"),
        owner=OWNER,
        zone=None,
        now_ms=0,
    )
    assert sorted(routes.of_cluster("Second", routes.topics())) == ["Both", "U"]
    assert routes.clusters().cluster_addr_table == {"DefaultCluster": ["broker-a"], "Second": ["broker-b"]}
    routes.delete_topic("Both", "Second")
    route = routes.route("Both")
    assert route is not None
    assert [queue.broker_name for queue in route.queue_datas] == ["broker-a"]
    routes.delete_topic("U", "Second")
    assert routes.route("U") is None


def test_routes_contain_the_zone():
    routes = RouteInfo()
    register(routes, header(), table("T", "U"), owner=OWNER, zone="north", now_ms=0)
    assert routes.clusters().broker_addr_table["broker-a"].zone_name == "north"


@pytest.mark.parametrize(
    ("changed", "what"),
    [
        ({"broker_name": ""}, "broker name"),
        ({"broker_name": "b" * 256}, "broker name"),
        ({"cluster_name": "a\nb"}, "cluster name"),
        ({"broker_addr": "h" * 261}, "broker address"),
        ({"broker_id": -1}, "brokerId"),
        ({"heartbeat_timeout_millis": registration.HEARTBEAT_TIMEOUT_MS_MAX + 1}, "heartbeatTimeoutMillis"),
        ({"ha_server_addr": "h" * 261}, "haServerAddr"),
    ],
)
def test_a_registration_out_of_bounds_changes_nothing(changed, what):
    routes = RouteInfo()
    with pytest.raises(BrokerError, match=what):
        register(
            routes,
            msgspec.structs.replace(header(), **changed),
            table("T", "U"),
            owner=OWNER,
            zone=None,
            now_ms=0,
        )
    assert routes.clusters().broker_addr_table == {}
    assert routes.topics() == []


@pytest.mark.parametrize("queues", [-1, registration.QUEUES_PER_TOPIC_MAX + 1])
def test_queue_counts_are_limited(queues):
    with pytest.raises(BrokerError, match="queues"):
        registration.check_topics(table("T", "U", queues=queues))


def test_the_brokers_of_a_name_are_limited():
    routes = registered("T", "U")
    for id_ in range(1, registration.BROKERS_PER_NAME_MAX):
        slave = header(address=f"10.0.1.{id_}:10911", id_=id_)
        register(routes, slave, table("T", "U"), owner=OWNER, zone=None, now_ms=0)
    with pytest.raises(BrokerError, match="brokers have the name"):
        register(
            routes,
            header(address="10.0.2.1:10911", id_=1000),
            table("T", "U"),
            owner=OWNER,
            zone=None,
            now_ms=0,
        )


STEP = st.tuples(
    st.sampled_from(["register", "unregister", "lost", "expire", "delete"]),
    st.integers(0, 3),  # which address
    st.integers(0, 2),  # which id, or which connection
    st.integers(0, 2),  # which cluster or name
)


@given(st.lists(STEP, max_size=40))
def test_tables_stay_consistent(steps):
    """No order of events makes a broker that leaves keep a topic, cluster or address behind."""
    routes, owners, now_ms = RouteInfo(), [object(), object(), object()], 0
    for what, number, id_, group in steps:
        now_ms += 30_000
        address, cluster, owner = f"10.0.0.{number}:1", f"C{group % 2}", owners[id_]
        if what == "register":
            topics = table(f"T{number}", f"U{group}", counter=now_ms, state=id_)
            register(
                routes,
                msgspec.structs.replace(
                    header(f"n{group}", address, cluster=cluster, id_=id_), lb_whole=bool(number % 2)
                ),
                topics,
                owner=owner,
                zone=None,
                now_ms=now_ms,
            )
        elif what == "unregister":
            with suppress(NoPermission):
                routes.unregister(BrokerAddress(cluster, address), owner=owner)
        elif what == "lost":
            routes.owner_lost(owner)
        elif what == "expire":
            routes.expire(now_ms)
        else:
            routes.delete_topic(f"T{number}", cluster)
        info = routes.clusters()
        named = {name for names in info.cluster_addr_table.values() for name in names}
        assert named == info.broker_addr_table.keys()
        for broker in info.broker_addr_table.values():
            assert broker.broker_addrs
            assert len(set(broker.broker_addrs.values())) == len(broker.broker_addrs)
        for topic in routes.topics():
            route = routes.route(topic)
            assert route is not None
            assert {queue.broker_name for queue in route.queue_datas} == {
                broker.broker_name for broker in route.broker_datas
            }
    for owner in owners:
        routes.owner_lost(owner)
    routes.expire(now_ms + 10 * HEARTBEAT_TIMEOUT_MS)
    assert routes.clusters().broker_addr_table == {}
    assert routes.topics() == []


def absent(routes: RouteInfo, topic: str = "T") -> list[str] | None:
    route = routes.route(topic)
    assert route is not None
    return route.lb_absent_brokers


def two_brokers() -> tuple[RouteInfo, object]:
    routes, other = registered("T", "U"), object()
    b = header(name="broker-b", address="10.0.0.2:10911")
    register(routes, b, table("T", "V"), owner=other, zone=None, now_ms=0)
    return routes, other


def test_a_broker_that_had_a_topic_is_remembered_while_it_is_away():
    routes, other = two_brokers()
    assert absent(routes) is None
    routes.owner_lost(other)
    assert absent(routes) == ["broker-b"]
    assert absent(routes, "U") is None
    assert (routes.route("V"), routes.absent("V")) == (None, ["broker-b"])
    b = header(name="broker-b", address="10.0.0.2:10911")
    register(routes, b, table("V", "W"), owner=other, zone=None, now_ms=0)
    assert absent(routes) is None, "the broker has come back without the topic"


@pytest.mark.parametrize("names", [[], ["broker-b"], ["broker-b", "broker-c"]])
def test_the_remark_tells_clients_which_brokers_are_away(names: list[str]):
    assert away_of_remark(f"No topic route info{away_remark(names)}\nSee https://x") == names


def test_an_absent_broker_is_forgotten_with_its_topic_or_after_three_days():
    routes, other = two_brokers()
    routes.owner_lost(other)
    routes.expire(1_000)
    routes.delete_topic("T", "Elsewhere")
    assert absent(routes) == ["broker-b"]
    for now_ms in range(0, ABSENT_MS_MAX, HEARTBEAT_TIMEOUT_MS * 100):
        routes.seen(A, now_ms)
        routes.expire(now_ms)
    assert absent(routes) == ["broker-b"]
    routes.seen(A, ABSENT_MS_MAX + 2_000)
    routes.expire(ABSENT_MS_MAX + 2_000)
    assert absent(routes) is None
    routes, other = two_brokers()
    routes.owner_lost(other)
    routes.delete_topic("V")
    assert routes.absent("V") == []


def test_the_topics_of_absent_brokers_are_bounded(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(route_info, "ABSENT_TOPICS_MAX", 3)
    routes, other = two_brokers()
    c = object()
    register(
        routes,
        header(name="broker-c", address="10.0.0.3:10911"),
        table("T", "V"),
        owner=c,
        zone=None,
        now_ms=0,
    )
    routes.owner_lost(other)
    assert absent(routes) == ["broker-b"]
    routes.owner_lost(c)
    assert absent(routes) == ["broker-c"]
