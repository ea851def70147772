"""Calls from an administrator to a broker.

Upstream: MQClientAPIImpl.java, DefaultMQAdminExtImpl.java.
"""

from libramq.codes import RequestCode
from libramq.formats.document import decode_body
from libramq.formats.tables import TopicConfig
from libramq.message.queue import MessageQueue
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumerConnection, ConsumeStats, ResetOffsetBody, TopicStatsTable
from libramq.remoting.body.route import GroupList, KVTable, TopicList
from libramq.rpc.call import Call, header_call, nothing


def create_topic(
    config: TopicConfig, *, attributes: str = "", perm: int | None = None, abandon_unread: bool = False
) -> Call[None]:
    """Create a topic at a broker, or change it. perm: instead of the configuration's.

    attributes: the changes to them, as in +name=value,-name. abandon_unread: it may lose queues that groups
    have not read to their end.
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
    return header_call(RequestCode.UPDATE_AND_CREATE_TOPIC, header, nothing)


def delete_topic(topic: str) -> Call[None]:
    """Delete a topic and its messages' queues at a broker."""
    return header_call(RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic=topic), nothing)


def delete_group(group: str, *, clean_offset: bool = False) -> Call[None]:
    """Delete a group's configuration at a broker; clean_offset: and its offsets."""
    header = h.DeleteGroupHeader(group_name=group, clean_offset=clean_offset)
    return header_call(RequestCode.DELETE_SUBSCRIPTIONGROUP, header, nothing)


def reset_offsets(
    group: str,
    topic: str,
    *,
    timestamp_ms: int = -1,
    force: bool = True,
    queue_id: int = -1,
    offset: int | None = None,
) -> Call[dict[MessageQueue, int]]:
    """Set a group's offsets at a broker to a time (-1: the end); return where it continues, queue by queue.

    force: move forwards too, not only back. queue_id: set that queue alone, to an offset where one is given.
    """
    header = h.ResetOffsetHeader(
        group=group, topic=topic, queue_id=queue_id, offset=offset, timestamp=timestamp_ms, is_force=force
    )
    return header_call(
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        header,
        lambda reply: decode_body(reply.body, ResetOffsetBody).offset_table,
    )


def delete_expired_files() -> Call[None]:
    """Have a broker delete expired files of its log now; the reply does not wait for that."""
    return header_call(RequestCode.DELETE_EXPIRED_COMMITLOG, None, nothing)


def clean_expired_queues() -> Call[None]:
    """Have a broker remove files of queues that lead before its log."""
    return header_call(RequestCode.CLEAN_EXPIRED_CONSUMEQUEUE, None, nothing)


def clean_unused_topics() -> Call[None]:
    """Have a broker remove the queues of topics that do not exist."""
    return header_call(RequestCode.CLEAN_UNUSED_TOPIC, None, nothing)


def topic_stats(topic: str) -> Call[TopicStatsTable]:
    """Return the first and last offsets of a topic's queues at a broker."""
    return header_call(
        RequestCode.GET_TOPIC_STATS_INFO,
        h.TopicHeader(topic=topic),
        lambda reply: decode_body(reply.body, TopicStatsTable),
    )


def consume_stats(group: str, topic: str | None = None) -> Call[ConsumeStats]:
    """Return a group's progress at a broker."""
    return header_call(
        RequestCode.GET_CONSUME_STATS,
        h.ConsumeStatsHeader(consumer_group=group, topic=topic),
        lambda reply: decode_body(reply.body, ConsumeStats),
    )


def consumer_connection(group: str) -> Call[ConsumerConnection]:
    """Return the members of a group connected to a broker; ConsumerNotOnline if there are none."""
    return header_call(
        RequestCode.GET_CONSUMER_CONNECTION_LIST,
        h.GroupHeader(consumer_group=group),
        lambda reply: decode_body(reply.body, ConsumerConnection),
    )


def runtime_info() -> Call[dict[str, str]]:
    """Return a broker's state as names and values."""
    return header_call(
        RequestCode.GET_BROKER_RUNTIME_INFO, None, lambda reply: decode_body(reply.body, KVTable).table
    )


def topic_consumers(topic: str) -> Call[list[str]]:
    """Return the groups that consume a topic."""
    return header_call(
        RequestCode.QUERY_TOPIC_CONSUME_BY_WHO,
        h.TopicHeader(topic=topic),
        lambda reply: decode_body(reply.body, GroupList).group_list,
    )


def group_topics(group: str) -> Call[list[str]]:
    """Return the topics in which a group has committed offsets."""
    return header_call(
        RequestCode.QUERY_TOPICS_BY_CONSUMER,
        h.GroupByNameHeader(group=group),
        lambda reply: decode_body(reply.body, TopicList).topic_list,
    )
