"""Calls from an operator's tools: mqadmin's further commands at name servers and brokers.

Upstream: MQClientAPIImpl.java, DefaultMQAdminExtImpl.java.
"""

from libramq.codes import RequestCode
from libramq.formats.document import decode_body, encode_body
from libramq.formats.properties_file import parse_properties
from libramq.formats.tables import SubscriptionGroupConfig, SubscriptionGroupWrapper, TopicConfig
from libramq.formats.tables import TopicConfigSerializeWrapper as TopicConfigs
from libramq.message.message import MessageExt
from libramq.message.record import decode_records
from libramq.remoting import admin_headers as a
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body.consumers import ProducerConnection
from libramq.remoting.body.route import KVTable
from libramq.remoting.body.running_info import ConsumerRunningInfo
from libramq.rpc.call import Call, header_call, nothing

R = RequestCode

# Name servers.


def put_value(namespace: str, key: str, value: str) -> Call[None]:
    """Set a value of the KV configuration."""
    return header_call(R.PUT_KV_CONFIG, a.PutKVHeader(namespace=namespace, key=key, value=value), nothing)


def get_value(namespace: str, key: str) -> Call[str]:
    """Return a value of the KV configuration; BrokerError (QUERY_NOT_FOUND) if there is none."""
    return header_call(
        R.GET_KV_CONFIG, a.KVHeader(namespace=namespace, key=key), lambda reply: reply.ext["value"]
    )


def delete_value(namespace: str, key: str) -> Call[None]:
    """Remove a value of the KV configuration."""
    return header_call(R.DELETE_KV_CONFIG, a.KVHeader(namespace=namespace, key=key), nothing)


def values(namespace: str) -> Call[dict[str, str]]:
    """Return all values of a namespace."""
    return header_call(
        R.GET_KVLIST_BY_NAMESPACE,
        a.KVNamespaceHeader(namespace=namespace),
        lambda reply: decode_body(reply.body, KVTable).table,
    )


def wipe_write_perm(broker_name: str) -> Call[int]:
    """Make a broker's topics read-only in routes; return their number."""
    return header_call(
        R.WIPE_WRITE_PERM_OF_BROKER,
        a.BrokerNameHeader(broker_name=broker_name),
        lambda reply: int(reply.ext["wipeTopicCount"]),
    )


def add_write_perm(broker_name: str) -> Call[int]:
    """Make a broker's topics writable in routes; return their number."""
    return header_call(
        R.ADD_WRITE_PERM_OF_BROKER,
        a.BrokerNameHeader(broker_name=broker_name),
        lambda reply: int(reply.ext["addTopicCount"]),
    )


def name_server_config() -> Call[dict[str, str]]:
    """Return a name server's options."""
    return header_call(
        R.GET_NAMESRV_CONFIG, None, lambda reply: parse_properties(reply.body.decode(errors="replace"))
    )


def update_name_server_config(key: str, value: str) -> Call[None]:
    """Change an option of a name server."""
    return header_call(R.UPDATE_NAMESRV_CONFIG, None, nothing, body=f"{key}={value}\n".encode())


# Topics and groups at a broker.


def topic_config(topic: str) -> Call[TopicConfig]:
    """Return a topic's configuration."""
    return header_call(
        R.GET_TOPIC_CONFIG, h.TopicHeader(topic=topic), lambda reply: decode_body(reply.body, TopicConfig)
    )


def all_topic_configs() -> Call[dict[str, TopicConfig]]:
    """Return the configuration of all topics."""
    return header_call(
        R.GET_ALL_TOPIC_CONFIG,
        None,
        lambda reply: decode_body(reply.body, TopicConfigs).topic_config_table,
    )


def create_topics(configs: list[TopicConfig]) -> Call[None]:
    """Create topics, or change them."""
    body = encode_body(bodies.TopicConfigList(topic_config_list=configs))
    return header_call(R.UPDATE_AND_CREATE_TOPIC_LIST, None, nothing, body=body)


def group_config(group: str) -> Call[SubscriptionGroupConfig]:
    """Return a group's configuration."""
    return header_call(
        R.GET_SUBSCRIPTIONGROUP_CONFIG,
        h.GroupByNameHeader(group=group),
        lambda reply: decode_body(reply.body, SubscriptionGroupConfig),
    )


def all_group_configs() -> Call[dict[str, SubscriptionGroupConfig]]:
    """Return the configuration of all groups."""
    return header_call(
        R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
        None,
        lambda reply: decode_body(reply.body, SubscriptionGroupWrapper).subscription_group_table,
    )


def create_group(config: SubscriptionGroupConfig) -> Call[None]:
    """Create a group, or change it."""
    return header_call(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, nothing, body=encode_body(config))


def create_groups(configs: list[SubscriptionGroupConfig]) -> Call[None]:
    """Create groups, or change them."""
    body = encode_body(bodies.GroupConfigList(group_config_list=configs))
    return header_call(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, nothing, body=body)


def clone_offsets(source: str, target: str, topic: str | None = None, *, offline: bool = False) -> Call[None]:
    """Set a group's offsets to those of another one."""
    header = a.CloneOffsetsHeader(src_group=source, dest_group=target, topic=topic, offline=offline)
    return header_call(R.CLONE_GROUP_OFFSET, header, nothing)


# What a broker knows.


def broker_config() -> Call[dict[str, str]]:
    """Return a broker's options."""
    return header_call(
        R.GET_BROKER_CONFIG, None, lambda reply: parse_properties(reply.body.decode(errors="replace"))
    )


def update_broker_config(key: str, value: str) -> Call[None]:
    """Change an option of a broker."""
    return header_call(R.UPDATE_BROKER_CONFIG, None, nothing, body=f"{key}={value}\n".encode())


def broker_consume_stats(*, ordered: bool = False) -> Call[bodies.ConsumeStatsList]:
    """Return the progress of all groups."""
    return header_call(
        R.GET_BROKER_CONSUME_STATS,
        a.BrokerConsumeStatsHeader(is_order=ordered),
        lambda reply: decode_body(reply.body, bodies.ConsumeStatsList),
    )


def all_producers() -> Call[bodies.ProducerTable]:
    """Return the connected producers of all groups."""
    return header_call(
        R.GET_ALL_PRODUCER_INFO, None, lambda reply: decode_body(reply.body, bodies.ProducerTable)
    )


def producer_connection(group: str) -> Call[ProducerConnection]:
    """Return the connected producers of a group; BrokerError (SYSTEM_ERROR) if there are none."""
    return header_call(
        R.GET_PRODUCER_CONNECTION_LIST,
        h.ProducerConnectionHeader(producer_group=group),
        lambda reply: decode_body(reply.body, ProducerConnection),
    )


def consume_queue(topic: str, queue_id: int, index: int, count: int) -> Call[bodies.ConsumeQueueReply]:
    """Return units of a queue."""
    header = a.ConsumeQueueHeader(topic=topic, queue_id=queue_id, index=index, count=count)
    return header_call(
        R.QUERY_CONSUME_QUEUE, header, lambda reply: decode_body(reply.body, bodies.ConsumeQueueReply)
    )


def stats_data(name: str, key: str) -> Call[bodies.BrokerStatsData]:
    """Return a count in the last minute, hour and day; BrokerError (SYSTEM_ERROR) if there is none."""
    return header_call(
        R.VIEW_BROKER_STATS_DATA,
        a.StatsDataHeader(stats_name=name, stats_key=key),
        lambda reply: decode_body(reply.body, bodies.BrokerStatsData),
    )


def view_message(physical_offset: int, topic: str | None = None) -> Call[MessageExt]:
    """Return the message at a physical offset."""
    return header_call(
        R.VIEW_MESSAGE_BY_ID,
        h.ViewMessageHeader(offset=physical_offset, topic=topic),
        lambda reply: decode_records(reply.body)[0],
    )


# Members.


def running_info(group: str, client_id: str, *, threads: bool = False) -> Call[ConsumerRunningInfo]:
    """Return a member's running info; threads: with the stacks of its threads."""
    header = a.RunningInfoHeader(consumer_group=group, client_id=client_id, jstack_enable=threads)
    return header_call(
        R.GET_CONSUMER_RUNNING_INFO, header, lambda reply: decode_body(reply.body, ConsumerRunningInfo)
    )


def consume_directly(
    group: str, client_id: str, message_id: str, topic: str | None = None
) -> Call[bodies.ConsumeDirectlyResult]:
    """Have a member process a message, by its offset id."""
    header = a.ConsumeDirectlyHeader(
        consumer_group=group, client_id=client_id, msg_id=message_id, topic=topic
    )
    return header_call(
        R.CONSUME_MESSAGE_DIRECTLY,
        header,
        lambda reply: decode_body(reply.body, bodies.ConsumeDirectlyResult),
    )


def consumer_status(group: str, topic: str, client_id: str | None = None) -> Call[bodies.ConsumerStatus]:
    """Return the offsets that a group's members hold in a topic."""
    header = a.ConsumerStatusHeader(group=group, topic=topic, client_addr=client_id)
    return header_call(
        R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS,
        header,
        lambda reply: decode_body(reply.body, bodies.ConsumerStatus),
    )
