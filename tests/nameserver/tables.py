"""Registrations as tests write them."""

from libramq.formats.tables import DataVersion, TopicConfig, TopicConfigSerializeWrapper
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
