"""Calls from an operator's tools: mqadmin's further commands at name servers and brokers.

Upstream: MQClientAPIImpl.java, DefaultMQAdminExtImpl.java.
"""

from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import decode_body, encode_body
from libramq.formats.properties_file import parse_properties
from libramq.formats.tables import (
    MessageRequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from libramq.formats.tables import TopicConfigSerializeWrapper as TopicConfigs
from libramq.message.message import MessageExt
from libramq.message.record import decode_records
from libramq.remoting import admin_headers as a
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body.consumers import ProducerConnection
from libramq.remoting.body.replication import HAStatus
from libramq.remoting.body.route import KVTable, TopicList
from libramq.remoting.body.running_info import ConsumerRunningInfo
from libramq.rpc.call import Call, header_call, nothing

R = RequestCode
#: Java's Long.MAX_VALUE.
LONG_MAX = 2**63 - 1

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


def system_topics() -> Call[list[str]]:
    """Return the topics that are a broker's own."""
    return header_call(
        R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER,
        None,
        lambda reply: decode_body(reply.body, TopicList).topic_list,
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


def set_consume_mode(topic: str, group: str, mode: str, share_count: int) -> Call[None]:
    """Have members of a group with server-side assignment pull or pop a topic."""
    body = MessageRequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share_count)
    return header_call(R.SET_MESSAGE_REQUEST_MODE, None, nothing, body=encode_body(body))


# What a broker knows.


def broker_config() -> Call[dict[str, str]]:
    """Return a broker's options."""
    return header_call(
        R.GET_BROKER_CONFIG, None, lambda reply: parse_properties(reply.body.decode(errors="replace"))
    )


def update_broker_config(key: str, value: str) -> Call[None]:
    """Change an option of a broker."""
    return header_call(R.UPDATE_BROKER_CONFIG, None, nothing, body=f"{key}={value}\n".encode())


def reset_master_flush_offset(offset: int) -> Call[None]:
    """Set up to where a slave takes its master's log to be on disk."""
    return header_call(
        R.RESET_MASTER_FLUSH_OFFSET, a.MasterFlushOffsetHeader(master_flush_offset=offset), nothing
    )


def broker_consume_stats(*, ordered: bool = False) -> Call[bodies.ConsumeStatsList]:
    """Return the progress of all groups."""
    return header_call(
        R.GET_BROKER_CONSUME_STATS,
        a.BrokerConsumeStatsHeader(is_order=ordered),
        lambda reply: decode_body(reply.body, bodies.ConsumeStatsList),
    )


def ha_status() -> Call[HAStatus]:
    """Return a master's slaves, and how far they are behind it."""
    return header_call(R.GET_BROKER_HA_STATUS, None, lambda reply: decode_body(reply.body, HAStatus))


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


def query_messages(
    topic: str,
    key: str,
    *,
    unique: bool = False,
    count: int = 64,
    begin_ms: int = 0,
    end_ms: int = LONG_MAX,
) -> Call[list[MessageExt]]:
    """Return a topic's newest messages with a key; unique: with an id that a producer gave."""
    header = h.QueryMessageHeader(
        topic=topic,
        key=key,
        max_num=count,
        begin_timestamp=begin_ms,
        end_timestamp=end_ms,
        is_unique_key=unique,
    )
    return Call(
        R.QUERY_MESSAGE,
        lambda reply: decode_records(reply.body) if reply.code == ResponseCode.SUCCESS else [],
        h.encode_header(header),
        accepts=frozenset({ResponseCode.SUCCESS, ResponseCode.QUERY_NOT_FOUND}),
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
