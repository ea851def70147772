"""Registrations in a short form for tests."""

from libramq.formats.tables import DataVersion, TopicConfig, TopicConfigSerializeWrapper
from libramq.nameserver.route_info import Registered, RouteInfo
from libramq.remoting.headers import RegisterBrokerHeader


def header(
    name: str = "broker-a",
    address: str = "10.0.0.1:10911",
    *,
    cluster: str = "DefaultCluster",
    id_: int = 0,
    ha: str = "",
    timeout_ms: int | None = None,
    acting_master: bool | None = None,
) -> RegisterBrokerHeader:
    return RegisterBrokerHeader(
        broker_name=name,
        broker_addr=address,
        cluster_name=cluster,
        broker_id=id_,
        ha_server_addr=ha,
        heartbeat_timeout_millis=timeout_ms,
        enable_acting_master=acting_master,
    )


def table(
    *topics: str, counter: int = 1, state: int = 0, queues: int = 4, perm: int = 6
) -> TopicConfigSerializeWrapper:
    return TopicConfigSerializeWrapper(
        data_version=DataVersion(state_version=state, timestamp=1, counter=counter),
        topic_config_table={
            topic: TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=perm)
            for topic in topics
        },
    )


def register(
    routes: RouteInfo,
    what: RegisterBrokerHeader,
    topics: TopicConfigSerializeWrapper,
    *,
    owner: object,
    zone: str | None = None,
    now_ms: int = 0,
) -> Registered:
    """Register a broker with all its topics in one step."""
    steps = routes.register(what, topics, owner=owner, zone=zone, now_ms=now_ms)
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return ended.value
