"""Calls from administrators and operators to brokers and name servers: each request and the form of its
answer.

Upstream: MQClientAPIImpl.java, DefaultMQAdminExtImpl.java.
"""

from collections.abc import Callable
from typing import Final, ParamSpec, TypeVar

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import ConfigError, RemoteProtocolError
from libramq.formats.access import AclInfo, UserInfo
from libramq.formats.document import decode_body, encode_body
from libramq.formats.properties_file import parse_properties, property_line
from libramq.formats.tables import (
    MessageRequestMode,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
    TopicConfig,
)
from libramq.formats.tables import TopicConfigSerializeWrapper as TopicConfigs
from libramq.message.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records
from libramq.remoting import headers as h
from libramq.remoting.body import administration as bodies
from libramq.remoting.body import consumers
from libramq.remoting.body.administration import HAStatus
from libramq.remoting.body.cluster import GroupList, KVTable, TopicList
from libramq.remoting.body.consumers import ConsumerRunningInfo
from libramq.remoting.command import Command
from libramq.rpc.call import Call, body_call, header_call, nothing

P = ParamSpec("P")
T = TypeVar("T")

#: Java's Long.MAX_VALUE.
LONG_MAX: Final = 2**63 - 1


def _properties(reply: Command) -> dict[str, str]:
    try:
        return parse_properties(reply.body.decode(errors="replace"))
    except ConfigError as error:
        raise RemoteProtocolError(f"a configuration that Java cannot read either: {error}") from None


def _optional(reply: Command, kind: type[T]) -> T | None:
    return decode_body(reply.body, kind) if reply.body else None


# Calls without arguments.

#: Have a broker start deleting expired log files; the reply does not wait for it.
DELETE_EXPIRED_FILES: Final = header_call(R.DELETE_EXPIRED_COMMITLOG, None, nothing)
#: Have a broker remove queue files that only refer to deleted parts of its log.
CLEAN_EXPIRED_QUEUES: Final = header_call(R.CLEAN_EXPIRED_CONSUMEQUEUE, None, nothing)
#: Have a broker remove the queues of topics that no longer exist.
CLEAN_UNUSED_TOPICS: Final = header_call(R.CLEAN_UNUSED_TOPIC, None, nothing)
#: A broker's runtime state as names and values.
RUNTIME_INFO: Final = header_call(
    R.GET_BROKER_RUNTIME_INFO, None, lambda reply: decode_body(reply.body, KVTable).table
)
#: A broker's options.
BROKER_CONFIG: Final = header_call(R.GET_BROKER_CONFIG, None, _properties)
#: A name server's options.
NAME_SERVER_CONFIG: Final = header_call(R.GET_NAMESRV_CONFIG, None, _properties)
#: The configuration of all topics, by name.
ALL_TOPIC_CONFIGS: Final = header_call(
    R.GET_ALL_TOPIC_CONFIG, None, lambda reply: decode_body(reply.body, TopicConfigs).topic_config_table
)
#: The configuration of all groups, by name.
ALL_GROUP_CONFIGS: Final = header_call(
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG,
    None,
    lambda reply: decode_body(reply.body, SubscriptionGroupWrapper).subscription_group_table,
)
#: A broker's own topics.
SYSTEM_TOPICS: Final = header_call(
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, None, lambda reply: decode_body(reply.body, TopicList).topic_list
)
#: A master's slaves, and how far each is behind.
HA_STATUS: Final = body_call(R.GET_BROKER_HA_STATUS, None, HAStatus)
#: The connected producers of all groups.
ALL_PRODUCERS: Final = body_call(R.GET_ALL_PRODUCER_INFO, None, bodies.ProducerTable)


def _call(code: R, header: Callable[P, h.Header], parse: Callable[[Command], T]) -> Callable[P, Call[T]]:
    """Return a function that builds a call from a header's fields."""

    def call(*fields: P.args, **named: P.kwargs) -> Call[T]:
        return header_call(code, header(*fields, **named), parse)

    return call


def _body_call(code: R, header: Callable[P, h.Header], kind: type[T]) -> Callable[P, Call[T]]:
    """Return a function that builds a call from a header's fields; the answer is a document."""
    return _call(code, header, lambda reply: decode_body(reply.body, kind))


# Calls whose arguments are the fields of their header.

#: Delete a topic and its messages' queues at a broker.
delete_topic: Final = _call(R.DELETE_TOPIC_IN_BROKER, h.TopicHeader, nothing)
#: A topic's configuration.
topic_config: Final = _body_call(R.GET_TOPIC_CONFIG, h.TopicHeader, TopicConfig)
#: The first and last offsets of a topic's queues at a broker.
topic_stats: Final = _body_call(R.GET_TOPIC_STATS_INFO, h.TopicHeader, consumers.TopicStatsTable)
#: The groups that consume a topic.
topic_consumers: Final = _call(
    R.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicHeader, lambda reply: decode_body(reply.body, GroupList).group_list
)
#: Delete a group's configuration at a broker; clean_offset: also its offsets.
delete_group: Final = _call(R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader, nothing)
#: Remove a user with its policies.
delete_user: Final = _call(R.AUTH_DELETE_USER, h.UserHeader, nothing)
#: A user without the password, or None.
user: Final = _call(R.AUTH_GET_USER, h.UserHeader, lambda reply: _optional(reply, UserInfo))
#: Users filtered by a part of their name, or all of them.
users: Final = _call(
    R.AUTH_LIST_USER, h.UserFilterHeader, lambda reply: _optional(reply, list[UserInfo]) or []
)
#: Remove the entry for a resource from a user's policies, or all entries.
delete_policies: Final = _call(R.AUTH_DELETE_ACL, h.DeletePoliciesHeader, nothing)
#: A user's policies, or None.
policies: Final = _call(R.AUTH_GET_ACL, h.SubjectHeader, lambda reply: _optional(reply, AclInfo))
#: Policies filtered by a part of the user's name and of the resource, or all of them.
all_policies: Final = _call(
    R.AUTH_LIST_ACL, h.PolicyFilterHeader, lambda reply: _optional(reply, list[AclInfo]) or []
)
#: A group's progress at a broker, in one topic or in all.
consume_stats: Final = _body_call(R.GET_CONSUME_STATS, h.ConsumeStatsHeader, consumers.ConsumeStats)
#: The members of a group connected to a broker; ConsumerNotOnline if there are none.
consumer_connection: Final = _body_call(
    R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader, consumers.ConsumerConnection
)
#: The connected producers of a group; BrokerError (SYSTEM_ERROR) if there are none.
producer_connection: Final = _body_call(
    R.GET_PRODUCER_CONNECTION_LIST, h.ProducerConnectionHeader, consumers.ProducerConnection
)
#: Copy a group's offsets from another group.
clone_offsets: Final = _call(R.CLONE_GROUP_OFFSET, h.CloneOffsetsHeader, nothing)
#: The progress of all groups.
broker_consume_stats: Final = _body_call(
    R.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStatsHeader, bodies.ConsumeStatsList
)
#: A member's running info; jstack_enable: with the stacks of its threads.
running_info: Final = _body_call(R.GET_CONSUMER_RUNNING_INFO, h.RunningInfoHeader, ConsumerRunningInfo)
#: Have a member process a message, by its offset id.
consume_directly: Final = _body_call(
    R.CONSUME_MESSAGE_DIRECTLY, h.ConsumeDirectlyHeader, bodies.ConsumeDirectlyResult
)
#: Set a value of the KV configuration.
put_value: Final = _call(R.PUT_KV_CONFIG, h.PutKVHeader, nothing)
#: A value of the KV configuration; QueryNotFound if there is none.
get_value: Final = _call(R.GET_KV_CONFIG, h.KVHeader, lambda reply: reply.ext["value"])
#: Remove a value of the KV configuration.
delete_value: Final = _call(R.DELETE_KV_CONFIG, h.KVHeader, nothing)
#: Set the offset up to which a slave considers its master's log flushed.
reset_master_flush_offset: Final = _call(R.RESET_MASTER_FLUSH_OFFSET, h.MasterFlushOffsetHeader, nothing)
#: Units of a consume queue from an index on.
consume_queue: Final = _body_call(R.QUERY_CONSUME_QUEUE, h.ConsumeQueueHeader, bodies.ConsumeQueueReply)
#: A count in the last minute, hour and day; BrokerError (SYSTEM_ERROR) if there is none.
stats_data: Final = _body_call(R.VIEW_BROKER_STATS_DATA, h.StatsDataHeader, bodies.BrokerStatsData)
#: The message at a physical offset.
view_message: Final = _call(
    R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader, lambda reply: decode_records(reply.body)[0]
)


# Others.


def create_topic(
    config: TopicConfig, *, attributes: str = "", perm: int | None = None, abandon_unread: bool = False
) -> Call[None]:
    """Create or change a topic at a broker. perm: overrides the configuration's.

    attributes: their changes, as in +name=value,-name. abandon_unread: the topic may lose queues that groups
    have not read completely.
    """
    header = h.CreateTopicHeader(
        topic=config.topic_name,
        default_topic="TBW102",
        read_queue_nums=config.read_queue_nums,
        write_queue_nums=config.write_queue_nums,
        perm=config.perm if perm is None else perm,
        topic_filter_type=config.topic_filter_type,
        topic_sys_flag=config.topic_sys_flag,
        order=config.order,
        attributes=attributes,
        lb_abandon_unread=abandon_unread or None,
    )
    return header_call(R.UPDATE_AND_CREATE_TOPIC, header, nothing)


def reset_offsets(
    group: str,
    topic: str,
    *,
    timestamp_ms: int = -1,
    force: bool = True,
    queue_id: int = -1,
    offset: int | None = None,
) -> Call[dict[MessageQueue, int]]:
    """Reset a group's offsets at a broker to a time (-1: the end); return its new offset in each queue.

    force: also move forwards. queue_id: reset only that queue, to `offset` if given.
    """
    header = h.ResetOffsetHeader(
        group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=timestamp_ms, is_force=force
    )
    return header_call(
        R.INVOKE_BROKER_TO_RESET_OFFSET,
        header,
        lambda reply: decode_body(reply.body, consumers.ResetOffsetBody).offset_table,
    )


def set_writable(broker_name: str, *, is_writable: bool) -> Call[int]:
    """Make a broker's topics read-only in routes, or writable again; return their number."""
    header = h.BrokerNameHeader(broker_name=broker_name)
    if is_writable:
        return header_call(R.ADD_WRITE_PERM_OF_BROKER, header, lambda reply: int(reply.ext["addTopicCount"]))
    return header_call(R.WIPE_WRITE_PERM_OF_BROKER, header, lambda reply: int(reply.ext["wipeTopicCount"]))


def update_name_server_config(key: str, value: str) -> Call[None]:
    """Change an option of a name server."""
    return header_call(R.UPDATE_NAMESRV_CONFIG, None, nothing, body=property_line(key, value).encode())


def create_topics(configs: list[TopicConfig]) -> Call[None]:
    """Create or change topics."""
    body = encode_body(bodies.TopicConfigList(topic_config_list=configs))
    return header_call(R.UPDATE_AND_CREATE_TOPIC_LIST, None, nothing, body=body)


def create_group(config: SubscriptionGroupConfig) -> Call[None]:
    """Create or change a group."""
    return header_call(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, nothing, body=encode_body(config))


def create_groups(configs: list[SubscriptionGroupConfig]) -> Call[None]:
    """Create or change groups."""
    body = encode_body(bodies.GroupConfigList(group_config_list=configs))
    return header_call(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, None, nothing, body=body)


def create_user(info: UserInfo) -> Call[None]:
    """Create a user."""
    return header_call(R.AUTH_CREATE_USER, _user(info), nothing, body=encode_body(info))


def update_user(info: UserInfo) -> Call[None]:
    """Change the given fields of a user."""
    return header_call(R.AUTH_UPDATE_USER, _user(info), nothing, body=encode_body(info))


def _user(info: UserInfo) -> h.Header:
    return h.UserHeader(username=info.username or "")


def create_policies(info: AclInfo) -> Call[None]:
    """Add entries to a user's policies."""
    return _change_policies(R.AUTH_CREATE_ACL, info)


def update_policies(info: AclInfo) -> Call[None]:
    """Change or add entries of a user's policies."""
    return _change_policies(R.AUTH_UPDATE_ACL, info)


def _change_policies(code: R, info: AclInfo) -> Call[None]:
    header = h.SubjectHeader(subject=info.subject or "")
    return header_call(code, header, nothing, body=encode_body(info))


def set_consume_mode(topic: str, group: str, mode: str, share_count: int) -> Call[None]:
    """Set whether members of a group with server-side assignment pull or pop a topic."""
    body = MessageRequestMode(topic=topic, consumer_group=group, mode=mode, pop_share_queue_num=share_count)
    return header_call(R.SET_MESSAGE_REQUEST_MODE, None, nothing, body=encode_body(body))


def update_broker_config(key: str, value: str) -> Call[None]:
    """Change an option of a broker."""
    return header_call(R.UPDATE_BROKER_CONFIG, None, nothing, body=property_line(key, value).encode())


def query_messages(
    topic: str, key: str, *, unique: bool = False, count: int = 64, begin_ms: int = 0, end_ms: int = LONG_MAX
) -> Call[list[MessageExt]]:
    """Return a topic's newest messages with a key; unique: with a unique id."""
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
