"""The operations of requests: what each request code touches, for authorisation (`auth/operation.py`).

They are read from the same decoded header and body as the processor's, so both mean the same topic and group.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from libramq.auth.operation import Consume, Manage, Membership, Operation, Send, SendBack
from libramq.auth.resource import Action, Resource, cluster, group, topic
from libramq.codes import RequestCode as R
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.kernel.connection import Principal
from libramq.message.names import popped_topic, retry_topic
from libramq.remoting import admin_headers as a
from libramq.remoting import headers as h
from libramq.remoting import pop_headers as pop
from libramq.remoting.body import heartbeat as b
from libramq.remoting.body.administration import GroupConfigList, TopicConfigList
from libramq.remoting.body.assignment import MessageRequestModeBody, QueryAssignmentBody
from libramq.remoting.body.consumers import CheckClientBody, LockBatchBody
from libramq.remoting.body.coordination import GroupJoinBody
from libramq.remoting.body.pop import BatchAckBody


@dataclass(frozen=True, slots=True)
class Reading:
    """The operation of a request code. body: the type of the body, if it names resources."""

    operation: Callable[[Principal, Any, Any], Operation]
    body: type[Any] | None = None


def _send(principal: Principal, header: h.SendMessageHeader, _: None) -> Operation:
    return Send(principal, header.topic)


def _send_back(principal: Principal, header: h.SendBackHeader, _: None) -> Operation:
    """Return the claimed operation; `processor/send_back.py` checks the message's real topic."""
    return SendBack(principal, header.group, (header.origin_topic,) if header.origin_topic else ())


def _end_transaction(principal: Principal, header: h.EndTransactionHeader, _: None) -> Operation:
    """Return the claimed operation; `processor/end_transaction.py` checks the half message's real topic."""
    return Membership(principal, {}, (header.producer_group,))


def _view(principal: Principal, header: h.ViewMessageHeader, _: None) -> Operation:
    """Return the claimed operation; `processor/queue_offset.py` checks the message's real topic."""
    return Manage(principal, Action.GET, (topic(header.topic),) if header.topic else ())


def _consume(
    principal: Principal,
    header: h.PullMessageHeader | h.QueryConsumerOffsetHeader | h.OpenQueueHeader | pop.PopMessageHeader,
    _: None,
) -> Operation:
    return Consume(principal, header.consumer_group, (header.topic,))


def _popped(principal: Principal, header: pop.AckMessageHeader, _: None) -> Operation:
    """Return the operation on a popped message; one of the group's own retry topic needs the group only."""
    name, of_group = header.topic, header.consumer_group
    is_own = name == retry_topic(of_group) or popped_topic(name, of_group) != name
    return Consume(principal, of_group, () if is_own else (name,))


def _popped_batch(principal: Principal, _: h.NoHeader, body: BatchAckBody) -> Operation:
    groups: dict[str, set[str]] = {}
    for ack in body.acks:
        groups.setdefault(ack.consumer_group, set()).add(ack.topic)
    return Membership(principal, groups)


def _as_member(principal: Principal, header: h.GroupHeader | h.GroupPollHeader, _: None) -> Operation:
    return Consume(principal, header.consumer_group)


def _join(principal: Principal, header: h.GroupJoinHeader, body: GroupJoinBody) -> Operation:
    return Consume(principal, header.consumer_group, tuple(body.subscriptions))


def _lock(principal: Principal, _: h.NoHeader, body: LockBatchBody) -> Operation:
    return Consume(principal, body.consumer_group, {queue.topic for queue in body.mq_set})


def _query_assignment(principal: Principal, _: h.NoHeader, body: QueryAssignmentBody) -> Operation:
    return Consume(principal, body.consumer_group, (body.topic,))


def _check_client(principal: Principal, _: h.NoHeader, body: CheckClientBody) -> Operation:
    topics = (body.subscription_data.topic,) if body.subscription_data is not None else ()
    return Membership(principal, {body.group: topics} if body.group else {})


def _heartbeat(principal: Principal, _: h.NoHeader, body: b.HeartbeatData) -> Operation:
    consumers: dict[str, set[str]] = {}
    for consumer in body.consumer_data_set:
        topics = consumers.setdefault(consumer.group_name, set())
        topics.update(subscription.topic for subscription in consumer.subscription_data_set)
    return Membership(principal, consumers, {producer.group_name for producer in body.producer_data_set})


def _unregister(principal: Principal, header: h.UnregisterClientHeader, _: None) -> Operation:
    consumers: dict[str, Collection[str]] = {header.consumer_group: ()} if header.consumer_group else {}
    return Membership(principal, consumers, (header.producer_group,) if header.producer_group else ())


def _managed(
    action: Action, name: Callable[[Any, Any], Collection[Resource]], body: type[Any] | None = None
) -> Reading:
    """Return the reading of a request that inspects or changes resources."""

    def operation(principal: Principal, header: Any, body: Any) -> Operation:
        return Manage(principal, action, name(header, body))

    return Reading(operation, body)


def _fields(kind: Callable[[str], Resource], *names: str) -> Callable[[Any, Any], Collection[Resource]]:
    """Return a function that reads resources from the fields of a header."""
    return lambda header, _: [kind(getattr(header, name)) for name in names]


def _statistics_of(header: h.ConsumeStatsHeader, _: None) -> Collection[Resource]:
    topics = [header.topic] if header.topic else (header.topic_list or "").split(";")
    return [group(header.consumer_group), *(topic(name) for name in topics if name)]


def _reset_of(header: h.ResetOffsetHeader, _: None) -> Collection[Resource]:
    return group(header.group), topic(header.topic)


def _mode_of(_: h.NoHeader, body: MessageRequestModeBody) -> Collection[Resource]:
    return group(body.consumer_group), topic(body.topic)


def _group_of(_: h.NoHeader, body: SubscriptionGroupConfig) -> Collection[Resource]:
    return (group(body.group_name),)


def _topics_of(_: h.NoHeader, body: TopicConfigList) -> Collection[Resource]:
    return [topic(config.topic_name) for config in body.topic_config_list]


def _groups_of(_: h.NoHeader, body: GroupConfigList) -> Collection[Resource]:
    return [group(config.group_name) for config in body.group_config_list]


def _cloned_of(header: a.CloneOffsetsHeader, _: None) -> Collection[Resource]:
    """Return both groups: who may change the one could read the other's progress otherwise."""
    return group(header.src_group), group(header.dest_group), *_named_topic(header.topic)


def _corrected_of(header: a.CorrectionOffsetHeader, _: None) -> Collection[Resource]:
    groups = dict.fromkeys([header.compare_group, *filter(None, (header.filter_groups or "").split(","))])
    return topic(header.topic), *(group(name) for name in groups)


def _group_and_topic(
    header: a.GroupAndTopicHeader | a.GroupForbiddenHeader | a.SubscriptionHeader | a.ConsumerStatusHeader,
    _: None,
) -> Collection[Resource]:
    return group(header.group), *_named_topic(header.topic)


def _consume_queue_of(header: a.ConsumeQueueHeader, _: None) -> Collection[Resource]:
    return topic(header.topic), *([group(header.consumer_group)] if header.consumer_group else [])


def _consumed_directly(header: a.ConsumeDirectlyHeader, _: None) -> Collection[Resource]:
    """Return the resources named; `processor/client_calls.py` checks the message's real topic."""
    return group(header.consumer_group), *_named_topic(header.topic)


def _named_topic(name: str | None) -> Collection[Resource]:
    return (topic(name),) if name else ()


def _whole_cluster(_: object, __: object) -> Collection[Resource]:
    return (cluster(),)


_of_topic = _fields(topic, "topic")
_of_group = _fields(group, "group")
_of_consumer_group = _fields(group, "consumer_group")
_of_cluster = _fields(cluster, "cluster_name")
_cluster_wide = partial(_managed, name=_whole_cluster)

OPERATIONS: Final[dict[int, Reading]] = {
    # Messages.
    R.SEND_MESSAGE: Reading(_send),
    R.SEND_MESSAGE_V2: Reading(_send),
    R.SEND_REPLY_MESSAGE: Reading(_send),
    R.SEND_REPLY_MESSAGE_V2: Reading(_send),
    R.SEND_BATCH_MESSAGE: Reading(_send),
    R.CONSUMER_SEND_MSG_BACK: Reading(_send_back),
    R.END_TRANSACTION: Reading(_end_transaction),
    R.PULL_MESSAGE: Reading(_consume),
    R.LITE_PULL_MESSAGE: Reading(_consume),
    R.VIEW_MESSAGE_BY_ID: Reading(_view),
    R.QUERY_MESSAGE: _managed(Action.GET, _of_topic),
    R.POP_MESSAGE: Reading(_consume),
    R.ACK_MESSAGE: Reading(_popped),
    R.BATCH_ACK_MESSAGE: Reading(_popped_batch, BatchAckBody),
    R.CHANGE_MESSAGE_INVISIBLETIME: Reading(_popped),
    R.NOTIFICATION: Reading(_consume),
    R.POLLING_INFO: Reading(_consume),
    R.PEEK_MESSAGE: Reading(_consume),
    R.RECALL_MESSAGE: Reading(_send),
    # Offsets.
    R.QUERY_CONSUMER_OFFSET: Reading(_consume),
    R.UPDATE_CONSUMER_OFFSET: Reading(_consume),
    R.SEARCH_OFFSET_BY_TIMESTAMP: _managed(Action.GET, _of_topic),
    R.GET_MAX_OFFSET: _managed(Action.GET, _of_topic),
    R.GET_MIN_OFFSET: _managed(Action.GET, _of_topic),
    R.GET_EARLIEST_MSG_STORETIME: _managed(Action.GET, _of_topic),
    # Clients.
    R.HEART_BEAT: Reading(_heartbeat, b.HeartbeatData),
    R.UNREGISTER_CLIENT: Reading(_unregister),
    R.CHECK_CLIENT_CONFIG: Reading(_check_client, CheckClientBody),
    R.GET_CONSUMER_LIST_BY_GROUP: Reading(_as_member),
    R.LOCK_BATCH_MQ: Reading(_lock, LockBatchBody),
    R.UNLOCK_BATCH_MQ: Reading(_lock, LockBatchBody),
    # Administration of a broker.
    R.GET_TIMER_CHECK_POINT: _cluster_wide(Action.GET),
    R.GET_TIMER_METRICS: _cluster_wide(Action.GET),
    R.UPDATE_AND_CREATE_TOPIC: _managed(Action.CREATE, _of_topic),
    R.DELETE_TOPIC_IN_BROKER: _managed(Action.DELETE, _of_topic),
    R.GET_ALL_TOPIC_CONFIG: _cluster_wide(Action.LIST),
    R.GET_TOPIC_CONFIG: _managed(Action.GET, _of_topic),
    R.GET_TOPIC_STATS_INFO: _managed(Action.GET, _of_topic),
    R.GET_BROKER_RUNTIME_INFO: _cluster_wide(Action.GET),
    R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER: _cluster_wide(Action.LIST),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: _managed(Action.CREATE, _group_of, SubscriptionGroupConfig),
    R.DELETE_SUBSCRIPTIONGROUP: _managed(Action.DELETE, _fields(group, "group_name")),
    R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: _cluster_wide(Action.LIST),
    R.GET_SUBSCRIPTIONGROUP_CONFIG: _managed(Action.GET, _of_group),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: _managed(Action.UPDATE, _group_and_topic),
    R.GET_ALL_CONSUMER_OFFSET: _cluster_wide(Action.LIST),
    R.GET_ALL_DELAY_OFFSET: _cluster_wide(Action.LIST),
    R.GET_ALL_MESSAGE_REQUEST_MODE: _cluster_wide(Action.LIST),
    R.GET_BROKER_HA_STATUS: _cluster_wide(Action.GET),
    R.DELETE_EXPIRED_COMMITLOG: _cluster_wide(Action.UPDATE),
    R.CLEAN_EXPIRED_CONSUMEQUEUE: _cluster_wide(Action.UPDATE),
    R.CLEAN_UNUSED_TOPIC: _cluster_wide(Action.UPDATE),
    R.GET_CONSUME_STATS: _managed(Action.GET, _statistics_of),
    R.INVOKE_BROKER_TO_RESET_OFFSET: _managed(Action.UPDATE, _reset_of),
    R.GET_CONSUMER_CONNECTION_LIST: _managed(Action.GET, _of_consumer_group),
    R.GET_PRODUCER_CONNECTION_LIST: _managed(Action.GET, _fields(group, "producer_group")),
    R.QUERY_TOPIC_CONSUME_BY_WHO: _managed(Action.GET, _of_topic),
    R.QUERY_TOPICS_BY_CONSUMER: _managed(Action.GET, _of_group),
    R.UPDATE_AND_CREATE_TOPIC_LIST: _managed(Action.CREATE, _topics_of, TopicConfigList),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: _managed(Action.CREATE, _groups_of, GroupConfigList),
    R.CLONE_GROUP_OFFSET: _managed(Action.UPDATE, _cloned_of),
    R.QUERY_CORRECTION_OFFSET: _managed(Action.GET, _corrected_of),
    R.QUERY_CONSUME_TIME_SPAN: _managed(Action.GET, _group_and_topic),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: _managed(Action.GET, _group_and_topic),
    R.QUERY_CONSUME_QUEUE: _managed(Action.GET, _consume_queue_of),
    R.GET_BROKER_CONSUME_STATS: _cluster_wide(Action.LIST),
    R.GET_ALL_PRODUCER_INFO: _cluster_wide(Action.LIST),
    R.VIEW_BROKER_STATS_DATA: _cluster_wide(Action.GET),
    R.RESUME_CHECK_HALF_MESSAGE: _cluster_wide(Action.UPDATE),
    R.RESET_MASTER_FLUSH_OFFSET: _cluster_wide(Action.UPDATE),
    R.NOTIFY_MIN_BROKER_ID_CHANGE: _cluster_wide(Action.UPDATE),
    R.EXCHANGE_BROKER_HA_INFO: _cluster_wide(Action.UPDATE),
    R.GET_BROKER_CONFIG: _cluster_wide(Action.GET),
    R.UPDATE_BROKER_CONFIG: _cluster_wide(Action.UPDATE),
    R.GET_CONSUMER_RUNNING_INFO: _managed(Action.GET, _of_consumer_group),
    R.CONSUME_MESSAGE_DIRECTLY: _managed(Action.UPDATE, _consumed_directly),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: _managed(Action.GET, _group_and_topic),
    # Coordinated groups: members, and brokers among themselves.
    R.GROUP_JOIN: Reading(_join, GroupJoinBody),
    R.GROUP_POLL: Reading(_as_member),
    R.GROUP_RELEASE: Reading(_as_member),
    R.GROUP_LEAVE: Reading(_as_member),
    R.GROUP_REMOVE: _managed(Action.UPDATE, _of_consumer_group),
    R.GROUP_FIND: Reading(_as_member),
    R.OPEN_QUEUE: Reading(_consume),
    R.QUERY_ASSIGNMENT: Reading(_query_assignment, QueryAssignmentBody),
    R.SET_MESSAGE_REQUEST_MODE: _managed(Action.UPDATE, _mode_of, MessageRequestModeBody),
    R.SLAVE_PROGRESS: _cluster_wide(Action.LIST),
    R.PEER_GRANT: _cluster_wide(Action.UPDATE),
    R.PEER_MEMBERS: _cluster_wide(Action.UPDATE),
    R.PEER_LIST: _cluster_wide(Action.UPDATE),
    R.PEER_GATHER: _cluster_wide(Action.GET),
    R.PEER_STARTED: _cluster_wide(Action.UPDATE),
    R.PEER_ASSIGN: _cluster_wide(Action.GET),
    R.PEER_ASSIGNMENTS: _cluster_wide(Action.UPDATE),
    R.PEER_REMOVED: _cluster_wide(Action.UPDATE),
    R.PEER_REBALANCE: _cluster_wide(Action.UPDATE),
    R.PEER_NODE: _cluster_wide(Action.GET),
    R.PEER_TOPIC: _cluster_wide(Action.UPDATE),
    R.PEER_OFFSETS: _cluster_wide(Action.UPDATE),
    R.PEER_GROUPS: _cluster_wide(Action.UPDATE),
    # Name server.
    R.REGISTER_BROKER: _managed(Action.UPDATE, _of_cluster),
    R.UNREGISTER_BROKER: _managed(Action.UPDATE, _of_cluster),
    R.QUERY_DATA_VERSION: _managed(Action.GET, _of_cluster),
    R.BROKER_HEARTBEAT: _managed(Action.UPDATE, _of_cluster),
    R.GET_ROUTEINFO_BY_TOPIC: _managed(Action.GET, _of_topic),
    R.GET_BROKER_CLUSTER_INFO: _cluster_wide(Action.GET),
    R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: _cluster_wide(Action.LIST),
    R.GET_TOPICS_BY_CLUSTER: _managed(Action.LIST, _fields(cluster, "cluster")),
    R.DELETE_TOPIC_IN_NAMESRV: _managed(Action.DELETE, _of_topic),
    R.GET_SYSTEM_TOPIC_LIST_FROM_NS: _cluster_wide(Action.LIST),
    # Administration of a name server.
    R.PUT_KV_CONFIG: _cluster_wide(Action.UPDATE),
    R.GET_KV_CONFIG: _cluster_wide(Action.GET),
    R.DELETE_KV_CONFIG: _cluster_wide(Action.UPDATE),
    R.GET_KVLIST_BY_NAMESPACE: _cluster_wide(Action.GET),
    R.WIPE_WRITE_PERM_OF_BROKER: _cluster_wide(Action.UPDATE),
    R.ADD_WRITE_PERM_OF_BROKER: _cluster_wide(Action.UPDATE),
    R.REGISTER_TOPIC_IN_NAMESRV: _managed(Action.CREATE, _of_topic),
    R.GET_UNIT_TOPIC_LIST: _cluster_wide(Action.LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: _cluster_wide(Action.LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: _cluster_wide(Action.LIST),
    R.GET_BROKER_MEMBER_GROUP: _managed(Action.GET, _of_cluster),
    R.UPDATE_NAMESRV_CONFIG: _cluster_wide(Action.UPDATE),
    R.GET_NAMESRV_CONFIG: _cluster_wide(Action.GET),
}
