"""The table of requests, one row for each code: its header, body and size, the permission it needs, what it
waits for, and how a slave handles it.

A row says what the request carries (header, body, size), what it touches (`auth/operation.py`), and how it is
served: whether it may read old files, whether its answer waits for journals, and what a slave does with it.
The endpoint decodes header and body once, so that authorizer and processor read the same topic and group. A
code without a row is refused.
Upstream: RequestCode.java, and the headers and bodies that its processors decode.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import Enum, auto
from functools import partial
from typing import Any, Final

from msgspec import structs

from libramq.auth.audit import Kind
from libramq.auth.operation import Action as A
from libramq.auth.operation import (
    Consume,
    Manage,
    Membership,
    Operation,
    Resource,
    Send,
    cluster,
    group,
    topic,
)
from libramq.codes import RequestCode as R
from libramq.formats.access import AclInfo, UserInfo
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import DataVersion, MessageRequestMode, SubscriptionGroupConfig
from libramq.groups.assignment_tables import AssignmentUpdate
from libramq.kernel.connection import Principal
from libramq.message.names import RETRY_PREFIX, TRANS_HALF_TOPIC, popped_topic, retry_topic
from libramq.message.properties import INNER_MULTI_DISPATCH, RETRY_TOPIC, light_names, values_of
from libramq.remoting import headers as h
from libramq.remoting.body import coordination as groups
from libramq.remoting.body import heartbeat as b
from libramq.remoting.body import kafka_cluster
from libramq.remoting.body.administration import GroupConfigList, TopicConfigList
from libramq.remoting.body.consumers import (
    CheckClientBody,
    LockBatchBody,
    QueryAssignmentBody,
)
from libramq.remoting.body.pop import BatchAckBody

#: Ours: names, offsets and subscriptions of one client, or one broker's table.
CONTROL_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: a broker's whole topic table, some 200 bytes per topic.
TABLE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
#: Messages are bounded by the broker's maxMessageSize, and before that by the frame.
MESSAGE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
#: Ours: some hundred options of a name server or broker.
CONFIG_BODY_BYTES_MAX: Final = 64 * 1024


class AtSlave(Enum):
    """A slave's way of serving a request; `slave_requests.py` has the refusals and the rules."""

    SERVE = auto()
    SERVE_IF_READABLE = auto()  # slaveReadEnable
    SERVE_WHILE_ACTING = auto()  # In place of a lost master.
    REFUSE_BUSY = auto()  # Clients turn to another broker.
    REFUSE_CHANGE = auto()
    REFUSE_RESET = auto()


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table.

    body: the type to decode it to before serving; None for texts, messages, and registrations, whose form
    depends on their header. from_broker: other brokers send it, signed for this one; the signature and the
    sender's host are checked before it is decoded. has_version: it belongs to the group protocol
    (group_version.py). reads_cold: it may read files that are not in memory. is_recorded: it is answered
    when its change is in a journal on disk. is_forwarded: a slave forwards it to a master that only name
    servers have lost. changes: what an operator does with it, for the audit (`auth/audit.py`); None: nothing,
    or only brokers send it.
    """

    code: R
    header: type[h.Header]
    operation: Callable[[Principal, Any, Any], Operation]
    body_bytes_max: int = 0
    body: type[Any] | None = None
    from_broker: bool = False
    has_version: bool = False
    reads_cold: bool = False
    is_recorded: bool = False
    at_slave: AtSlave = AtSlave.SERVE
    is_forwarded: bool = False
    changes: Kind | None = None

    def changed(self, principal: Principal, header: Any, body: Any) -> Collection[str]:
        """Return the names of what a request changes, for the audit."""
        if isinstance(header, h.KVHeader):
            return [f"Value:{header.namespace}/{header.key}"]
        if isinstance(header, h.BrokerNameHeader):
            return [f"Broker:{header.broker_name}"]
        user = getattr(header, "username", None)
        subject = (body.subject if isinstance(body, AclInfo) else None) or getattr(header, "subject", None)
        if user or subject:
            return [subject or f"User:{user}"]
        operation = self.operation(principal, header, body)
        return [str(each) for each in operation.resources] if isinstance(operation, Manage) else []


def _send(principal: Principal, header: h.SendMessageHeader, body: bytes) -> Operation:
    """Return the operation on the topic and on the light queues that properties name.

    For a batch, its body is searched for them without decoding it. A retry sent by a consumer names its
    original topic, like a request to send a message back.
    """
    text = header.properties or ""
    light = light_names(text.encode("utf-8", "replace")) if INNER_MULTI_DISPATCH in text else []
    is_retry = RETRY_TOPIC in text and header.topic.startswith(RETRY_PREFIX)
    origins = values_of(text.encode("utf-8", "replace"), RETRY_TOPIC) if is_retry else []
    return Send(principal, header.topic, light + light_names(body) if header.batch else light, origins)


def _send_batch(principal: Principal, header: h.SendMessageHeader, body: bytes) -> Operation:
    return _send(principal, structs.replace(header, batch=True), body)


def _recall(principal: Principal, header: h.RecallMessageHeader, _: None) -> Operation:
    return Send(principal, header.topic)


def _send_back(principal: Principal, header: h.SendBackHeader, _: None) -> Operation:
    """Return the claimed operation; `processor/messages/send_back.py` checks the message's real topic."""
    return Consume(principal, header.group, (header.origin_topic,) if header.origin_topic else ())


def _end_transaction(principal: Principal, header: h.EndTransactionHeader, _: None) -> Operation:
    """Return the claimed operation; `end_transaction.py` checks the half message's real topic.

    Since 5.0, Java's clients name the topic given by the check: that of all half messages.
    """
    is_claim = header.topic not in (None, "", TRANS_HALF_TOPIC)
    return Send(principal, header.topic or "") if is_claim else Membership(principal)


def _view(principal: Principal, header: h.ViewMessageHeader, _: None) -> Operation:
    """Return the claimed operation; `processor/messages/query_message.py` checks the message's real topic."""
    return Manage(principal, A.GET, (topic(header.topic),) if header.topic else ())


def _consumed(also: A | None = None) -> Callable[[Principal, Any, Any], Operation]:
    """Return the operation of a group on a topic. also: an operator's permission that suffices."""
    return lambda principal, header, _: Consume(principal, header.consumer_group, (header.topic,), also)


def _as_member(also: A | None = None) -> Callable[[Principal, Any, Any], Operation]:
    """Return the operation of a group for requests that name no topic. also: as in `_consumed`."""
    return lambda principal, header, _: Consume(principal, header.consumer_group, (), also)


def _popped(principal: Principal, header: h.AckMessageHeader, _: None) -> Operation:
    """Return the operation on a popped message; for one of the group's own retry topic, on the group only."""
    name, of_group = header.topic, header.consumer_group
    is_own = name == retry_topic(of_group) or popped_topic(name, of_group) != name
    return Consume(principal, of_group, () if is_own else (name,))


def _popped_batch(principal: Principal, _: h.NoHeader, body: BatchAckBody) -> Operation:
    groups: dict[str, set[str]] = {}
    for ack in body.acks:
        groups.setdefault(ack.consumer_group, set()).add(ack.topic)
    return Membership(principal, groups)


def _join(principal: Principal, header: h.GroupJoinHeader, body: groups.GroupJoinBody) -> Operation:
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
    return Membership(principal, consumers)


def _unregister(principal: Principal, header: h.UnregisterClientHeader, _: None) -> Operation:
    """Return the operation on the consumer group; a producer only leaves its own connection."""
    return Membership(principal, {header.consumer_group: ()} if header.consumer_group else {})


def _managed(
    action: A, name: Callable[[Any, Any], Collection[Resource]], also: A | None = None
) -> Callable[[Principal, Any, Any], Operation]:
    """Return the operation of a request that inspects or changes resources."""
    return lambda principal, header, body: Manage(principal, action, name(header, body), also)


def _fields(kind: Callable[[str], Resource], *names: str) -> Callable[[Any, Any], Collection[Resource]]:
    """Return a function that reads resources from the fields of a header."""
    return lambda header, _: [kind(getattr(header, name)) for name in names]


def _statistics_of(header: h.ConsumeStatsHeader, _: None) -> Collection[Resource]:
    topics = [header.topic] if header.topic else (header.topic_list or "").split(";")
    return [group(header.consumer_group), *(topic(name) for name in topics if name)]


def _reset_of(header: h.ResetOffsetHeader, _: None) -> Collection[Resource]:
    return group(header.group), topic(header.topic)


def _mode_of(_: h.NoHeader, body: MessageRequestMode) -> Collection[Resource]:
    return group(body.consumer_group), topic(body.topic)


def _group_of(_: h.NoHeader, body: SubscriptionGroupConfig) -> Collection[Resource]:
    return (group(body.group_name),)


def _topics_of(_: h.NoHeader, body: TopicConfigList) -> Collection[Resource]:
    return [topic(config.topic_name) for config in body.topic_config_list]


def _groups_of(_: h.NoHeader, body: GroupConfigList) -> Collection[Resource]:
    return [group(config.group_name) for config in body.group_config_list]


def _cloned_of(header: h.CloneOffsetsHeader, _: None) -> Collection[Resource]:
    """Return both groups; otherwise someone who may change one could read the other's progress."""
    return group(header.src_group), group(header.dest_group), *_named_topic(header.topic)


def _corrected_of(header: h.CorrectionOffsetHeader, _: None) -> Collection[Resource]:
    groups = dict.fromkeys([header.compare_group, *filter(None, (header.filter_groups or "").split(","))])
    return topic(header.topic), *(group(name) for name in groups)


def _group_and_topic(header: h.GroupAndTopicHeader | h.SubscriptionHeader, _: None) -> Collection[Resource]:
    return group(header.group), *_named_topic(header.topic)


def _consume_queue_of(header: h.ConsumeQueueHeader, _: None) -> Collection[Resource]:
    return topic(header.topic), *([group(header.consumer_group)] if header.consumer_group else [])


def _consumed_directly(header: h.ConsumeDirectlyHeader, _: None) -> Collection[Resource]:
    """Return the named resources; `processor/client_calls.py` checks the message's real topic."""
    return group(header.consumer_group), *_named_topic(header.topic)


def _named_topic(name: str | None) -> Collection[Resource]:
    return (topic(name),) if name else ()


def _whole_cluster(_: object, __: object) -> Collection[Resource]:
    return (cluster(),)


_consume = _consumed()
_member = _as_member()
_of_topic = _fields(topic, "topic")
_of_group = _fields(group, "group")
_of_consumer_group = _fields(group, "consumer_group")
_of_cluster = _fields(cluster, "cluster_name")
_cluster_wide = partial(_managed, name=_whole_cluster)
#: Also requested by consumers: where a topic's queues begin and end, and single messages.
_seen = _managed(A.GET, _of_topic, A.SUB)

_CONTROL, _TABLE, _MESSAGE = CONTROL_BODY_BYTES_MAX, TABLE_BODY_BYTES_MAX, MESSAGE_BODY_BYTES_MAX
_CONFIG = CONFIG_BODY_BYTES_MAX
_READ, _BUSY = AtSlave.SERVE_IF_READABLE, AtSlave.REFUSE_BUSY
_ACTING: Final = AtSlave.SERVE_WHILE_ACTING
_NO_RESET: Final = AtSlave.REFUSE_RESET
#: A request whose change is recorded in a journal that slaves copy.
_creating = partial(Row, is_recorded=True, at_slave=AtSlave.REFUSE_CHANGE, changes=Kind.CREATED)
_deleting = partial(_creating, changes=Kind.DELETED)
#: A request that changes a user or its policies.
_of_user = partial(Row, operation=_cluster_wide(A.UPDATE), is_recorded=True)
#: A request of a member of a coordinated group (group_version.py).
_of_group_protocol = partial(Row, has_version=True, at_slave=_BUSY)
#: A request that only one broker may serve at a time: a slave serves it while acting, or forwards it.
_in_flight = partial(Row, at_slave=_ACTING, is_forwarded=True)


def _from_broker(
    code: R, action: A, body_bytes_max: int, body: type[Any], *, is_recorded: bool = False
) -> Row:
    """Return the row of a request that a broker sends to another one."""
    return Row(
        code,
        h.NoHeader,
        _cluster_wide(action),
        body_bytes_max,
        body,
        from_broker=True,
        has_version=True,
        is_recorded=is_recorded,
    )


_BROKER_ROWS: Final = (
    # Messages.
    Row(R.SEND_MESSAGE, h.SendMessageHeader, _send, _MESSAGE, at_slave=_BUSY),
    Row(R.SEND_MESSAGE_V2, h.SendMessageHeaderV2, _send, _MESSAGE, at_slave=_BUSY),
    Row(R.SEND_BATCH_MESSAGE, h.SendMessageHeaderV2, _send_batch, _MESSAGE, at_slave=_BUSY),
    Row(R.SEND_REPLY_MESSAGE, h.SendMessageHeader, _send, _MESSAGE, at_slave=_BUSY),
    Row(R.SEND_REPLY_MESSAGE_V2, h.SendMessageHeaderV2, _send, _MESSAGE, at_slave=_BUSY),
    Row(R.CONSUMER_SEND_MSG_BACK, h.SendBackHeader, _send_back, reads_cold=True, at_slave=_BUSY),
    Row(R.END_TRANSACTION, h.EndTransactionHeader, _end_transaction, reads_cold=True, at_slave=_BUSY),
    Row(R.PULL_MESSAGE, h.PullMessageHeader, _consume, at_slave=_READ),
    Row(R.LITE_PULL_MESSAGE, h.PullMessageHeader, _consume, at_slave=_READ),
    Row(R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader, _view, reads_cold=True),
    Row(R.QUERY_MESSAGE, h.QueryMessageHeader, _seen),
    _in_flight(R.POP_MESSAGE, h.PopMessageHeader, _consume),
    _in_flight(R.ACK_MESSAGE, h.AckMessageHeader, _popped),
    _in_flight(R.BATCH_ACK_MESSAGE, h.NoHeader, _popped_batch, _CONTROL, BatchAckBody),
    _in_flight(R.CHANGE_MESSAGE_INVISIBLETIME, h.ChangeInvisibleTimeHeader, _popped),
    Row(R.NOTIFICATION, h.NotificationHeader, _consume),
    Row(R.POLLING_INFO, h.GroupQueueHeader, _consume),
    Row(R.PEEK_MESSAGE, h.PeekMessageHeader, _consume),
    Row(R.RECALL_MESSAGE, h.RecallMessageHeader, _recall),
    # Offsets.
    Row(R.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffsetHeader, _consumed(A.GET), reads_cold=True),
    Row(R.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetHeader, _consumed(A.UPDATE)),
    Row(R.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetHeader, _seen, reads_cold=True),
    Row(R.GET_MAX_OFFSET, h.MaxOffsetHeader, _seen),
    Row(R.GET_MIN_OFFSET, h.QueueHeader, _seen),
    Row(R.GET_EARLIEST_MSG_STORETIME, h.QueueHeader, _seen, reads_cold=True),
    # Clients.
    Row(R.HEART_BEAT, h.NoHeader, _heartbeat, _CONTROL, b.HeartbeatData),
    Row(R.UNREGISTER_CLIENT, h.UnregisterClientHeader, _unregister),
    Row(R.CHECK_CLIENT_CONFIG, h.NoHeader, _check_client, _CONTROL, CheckClientBody),
    Row(R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader, _as_member(A.GET)),
    _in_flight(R.LOCK_BATCH_MQ, h.NoHeader, _lock, _CONTROL, LockBatchBody),
    Row(R.UNLOCK_BATCH_MQ, h.NoHeader, _lock, _CONTROL, LockBatchBody, is_forwarded=True),
    # Administration of a broker.
    Row(R.GET_TIMER_CHECK_POINT, h.NoHeader, _cluster_wide(A.GET)),
    Row(R.GET_TIMER_METRICS, h.NoHeader, _cluster_wide(A.GET)),
    _creating(R.UPDATE_AND_CREATE_TOPIC, h.CreateTopicHeader, _managed(A.CREATE, _of_topic)),
    _deleting(R.DELETE_TOPIC_IN_BROKER, h.TopicHeader, _managed(A.DELETE, _of_topic)),
    Row(R.GET_ALL_TOPIC_CONFIG, h.GetAllTopicsHeader, _cluster_wide(A.LIST)),
    Row(R.GET_TOPIC_CONFIG, h.TopicHeader, _managed(A.GET, _of_topic)),
    Row(R.GET_TOPIC_STATS_INFO, h.TopicHeader, _managed(A.GET, _of_topic)),
    Row(R.GET_BROKER_RUNTIME_INFO, h.NoHeader, _cluster_wide(A.GET), reads_cold=True),
    Row(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoHeader, _cluster_wide(A.LIST)),
    _creating(
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        h.NoHeader,
        _managed(A.CREATE, _group_of),
        _CONTROL,
        SubscriptionGroupConfig,
    ),
    _deleting(
        R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader, _managed(A.DELETE, _fields(group, "group_name"))
    ),
    Row(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.GetAllGroupsHeader, _cluster_wide(A.LIST)),
    Row(R.GET_SUBSCRIPTIONGROUP_CONFIG, h.GroupByNameHeader, _managed(A.GET, _of_group)),
    Row(
        R.UPDATE_AND_GET_GROUP_FORBIDDEN,
        h.GroupForbiddenHeader,
        _managed(A.UPDATE, _group_and_topic),
        changes=Kind.CHANGED,
    ),
    Row(R.GET_ALL_CONSUMER_OFFSET, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_ALL_DELAY_OFFSET, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_ALL_MESSAGE_REQUEST_MODE, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_BROKER_HA_STATUS, h.NoHeader, _cluster_wide(A.GET)),
    Row(R.DELETE_EXPIRED_COMMITLOG, h.NoHeader, _cluster_wide(A.UPDATE), changes=Kind.DELETED),
    Row(R.CLEAN_EXPIRED_CONSUMEQUEUE, h.NoHeader, _cluster_wide(A.UPDATE), changes=Kind.DELETED),
    Row(R.CLEAN_UNUSED_TOPIC, h.NoHeader, _cluster_wide(A.UPDATE), changes=Kind.DELETED),
    Row(R.GET_CONSUME_STATS, h.ConsumeStatsHeader, _managed(A.GET, _statistics_of)),
    Row(
        R.INVOKE_BROKER_TO_RESET_OFFSET,
        h.ResetOffsetHeader,
        _managed(A.UPDATE, _reset_of),
        is_recorded=True,
        at_slave=_NO_RESET,
        changes=Kind.RESET,
    ),
    Row(R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader, _managed(A.GET, _of_consumer_group)),
    Row(
        R.GET_PRODUCER_CONNECTION_LIST,
        h.ProducerConnectionHeader,
        _managed(A.GET, _fields(group, "producer_group")),
    ),
    Row(R.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicHeader, _managed(A.GET, _of_topic)),
    Row(R.QUERY_TOPICS_BY_CONSUMER, h.GroupByNameHeader, _managed(A.GET, _of_group)),
    _creating(
        R.UPDATE_AND_CREATE_TOPIC_LIST, h.NoHeader, _managed(A.CREATE, _topics_of), _CONTROL, TopicConfigList
    ),
    _creating(
        R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        h.NoHeader,
        _managed(A.CREATE, _groups_of),
        _CONTROL,
        GroupConfigList,
    ),
    Row(
        R.CLONE_GROUP_OFFSET,
        h.CloneOffsetsHeader,
        _managed(A.UPDATE, _cloned_of),
        at_slave=_NO_RESET,
        changes=Kind.RESET,
    ),
    Row(R.QUERY_CORRECTION_OFFSET, h.CorrectionOffsetHeader, _managed(A.GET, _corrected_of)),
    Row(R.QUERY_CONSUME_TIME_SPAN, h.GroupAndTopicHeader, _managed(A.GET, _group_and_topic)),
    Row(R.QUERY_SUBSCRIPTION_BY_CONSUMER, h.SubscriptionHeader, _managed(A.GET, _group_and_topic)),
    Row(R.QUERY_CONSUME_QUEUE, h.ConsumeQueueHeader, _managed(A.GET, _consume_queue_of), reads_cold=True),
    Row(R.GET_BROKER_CONSUME_STATS, h.BrokerConsumeStatsHeader, _cluster_wide(A.LIST)),
    Row(R.GET_ALL_PRODUCER_INFO, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.VIEW_BROKER_STATS_DATA, h.StatsDataHeader, _cluster_wide(A.GET)),
    Row(
        R.RESUME_CHECK_HALF_MESSAGE,
        h.ResumeCheckHeader,
        _cluster_wide(A.UPDATE),
        at_slave=_BUSY,
        changes=Kind.CHANGED,
    ),
    Row(R.RESET_MASTER_FLUSH_OFFSET, h.MasterFlushOffsetHeader, _cluster_wide(A.UPDATE)),
    Row(R.NOTIFY_MIN_BROKER_ID_CHANGE, h.LowestIdHeader, _cluster_wide(A.UPDATE)),
    Row(R.EXCHANGE_BROKER_HA_INFO, h.HAInfoHeader, _cluster_wide(A.UPDATE)),
    Row(R.GET_BROKER_CONFIG, h.NoHeader, _cluster_wide(A.GET)),
    Row(R.UPDATE_BROKER_CONFIG, h.NoHeader, _cluster_wide(A.UPDATE), _CONFIG, changes=Kind.CHANGED),
    Row(R.GET_CONSUMER_RUNNING_INFO, h.RunningInfoHeader, _managed(A.GET, _of_consumer_group)),
    Row(
        R.CONSUME_MESSAGE_DIRECTLY,
        h.ConsumeDirectlyHeader,
        _managed(A.UPDATE, _consumed_directly),
        reads_cold=True,
        changes=Kind.CHANGED,
    ),
    Row(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, h.ConsumerStatusHeader, _managed(A.GET, _group_and_topic)),
    # Coordinated groups: members, and brokers among themselves.
    _of_group_protocol(R.GROUP_JOIN, h.GroupJoinHeader, _join, _CONTROL, groups.GroupJoinBody),
    _of_group_protocol(R.GROUP_POLL, h.GroupPollHeader, _member, _CONTROL, groups.GroupPollBody),
    _of_group_protocol(R.GROUP_RELEASE, h.GroupMemberHeader, _member, _CONTROL, groups.GroupReleaseBody),
    _of_group_protocol(R.GROUP_LEAVE, h.GroupMemberHeader, _member, _CONTROL, groups.GroupLeaveBody),
    _of_group_protocol(
        R.GROUP_REMOVE, h.GroupRemoveHeader, _managed(A.UPDATE, _of_consumer_group), changes=Kind.CHANGED
    ),
    _of_group_protocol(R.GROUP_FIND, h.GroupHeader, _member),
    _of_group_protocol(R.GROUP_BEGIN, h.GroupBeginHeader, _consume, reads_cold=True),
    _of_group_protocol(R.OPEN_QUEUE, h.OpenQueueHeader, _consume, reads_cold=True),
    Row(R.QUERY_ASSIGNMENT, h.NoHeader, _query_assignment, _CONTROL, QueryAssignmentBody, at_slave=_ACTING),
    Row(
        R.SET_MESSAGE_REQUEST_MODE,
        h.NoHeader,
        _managed(A.UPDATE, _mode_of),
        _CONTROL,
        MessageRequestMode,
        at_slave=AtSlave.REFUSE_CHANGE,
        changes=Kind.CHANGED,
    ),
    _from_broker(R.PEER_GRANT, A.UPDATE, _TABLE, groups.PeerGrantBody),
    _from_broker(R.PEER_MEMBERS, A.UPDATE, _TABLE, groups.PeerMembersBody),
    _from_broker(R.PEER_LIST, A.UPDATE, _TABLE, groups.PeerListBody),
    _from_broker(R.PEER_GATHER, A.GET, _CONTROL, groups.PeerGatherBody, is_recorded=True),
    _from_broker(R.PEER_STARTED, A.UPDATE, _TABLE, groups.PeerStartedBody),
    _from_broker(R.PEER_ASSIGN, A.GET, _TABLE, groups.PeerAssignBody),
    _from_broker(R.PEER_ASSIGNMENTS, A.UPDATE, _TABLE, AssignmentUpdate),
    _from_broker(R.PEER_REMOVED, A.UPDATE, _CONTROL, groups.PeerRemovedBody),
    _from_broker(R.PEER_REBALANCE, A.UPDATE, _TABLE, groups.PeerRebalanceBody),
    _from_broker(R.PEER_NODE, A.GET, _CONTROL, kafka_cluster.PeerNodeBody),
    _from_broker(R.PEER_TOPIC, A.UPDATE, _CONTROL, kafka_cluster.PeerTopicBody),
    _from_broker(R.PEER_OFFSETS, A.UPDATE, _TABLE, kafka_cluster.PeerOffsetsBody),
    _from_broker(R.PEER_GROUPS, A.UPDATE, _TABLE, kafka_cluster.PeerGroupsBody),
    _from_broker(R.PEER_HANDOVER, A.GET, _CONTROL, kafka_cluster.PeerHandoverBody),
    Row(R.SLAVE_PROGRESS, h.SlaveProgressHeader, _cluster_wide(A.LIST)),
    # Users and policies. mqadmin changes them at slaves too, which copy their master's.
    _of_user(R.AUTH_CREATE_USER, h.UserHeader, body_bytes_max=_CONFIG, body=UserInfo, changes=Kind.CREATED),
    _of_user(R.AUTH_UPDATE_USER, h.UserHeader, body_bytes_max=_CONFIG, body=UserInfo, changes=Kind.CHANGED),
    _of_user(R.AUTH_DELETE_USER, h.UserHeader, changes=Kind.DELETED),
    Row(R.AUTH_GET_USER, h.UserHeader, _cluster_wide(A.GET)),
    Row(R.AUTH_LIST_USER, h.UserFilterHeader, _cluster_wide(A.GET)),
    _of_user(R.AUTH_CREATE_ACL, h.SubjectHeader, body_bytes_max=_CONTROL, body=AclInfo, changes=Kind.CREATED),
    _of_user(R.AUTH_UPDATE_ACL, h.SubjectHeader, body_bytes_max=_CONTROL, body=AclInfo, changes=Kind.CHANGED),
    _of_user(R.AUTH_DELETE_ACL, h.DeletePoliciesHeader, changes=Kind.DELETED),
    Row(R.AUTH_GET_ACL, h.SubjectHeader, _cluster_wide(A.GET)),
    Row(R.AUTH_LIST_ACL, h.PolicyFilterHeader, _cluster_wide(A.GET)),
    Row(R.SLAVE_USERS, h.NoHeader, _cluster_wide(A.LIST)),
)

_NAME_SERVER_ROWS: Final = (
    Row(R.REGISTER_BROKER, h.RegisterBrokerHeader, _managed(A.UPDATE, _of_cluster), _TABLE),
    Row(R.UNREGISTER_BROKER, h.BrokerHeader, _managed(A.UPDATE, _of_cluster)),
    Row(R.QUERY_DATA_VERSION, h.BrokerHeader, _managed(A.GET, _of_cluster), _CONTROL, DataVersion),
    Row(R.BROKER_HEARTBEAT, h.BrokerHeartbeatHeader, _managed(A.UPDATE, _of_cluster)),
    Row(R.GET_ROUTEINFO_BY_TOPIC, h.RouteHeader, _managed(A.GET, _of_topic)),
    Row(R.GET_BROKER_CLUSTER_INFO, h.NoHeader, _cluster_wide(A.GET)),
    Row(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_TOPICS_BY_CLUSTER, h.ClusterHeader, _managed(A.LIST, _fields(cluster, "cluster"))),
    Row(
        R.DELETE_TOPIC_IN_NAMESRV,
        h.DeleteTopicInNamesrvHeader,
        _managed(A.DELETE, _of_topic),
        changes=Kind.DELETED,
    ),
    Row(R.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoHeader, _cluster_wide(A.LIST)),
    # Administration.
    Row(R.PUT_KV_CONFIG, h.PutKVHeader, _cluster_wide(A.UPDATE), changes=Kind.CHANGED),
    Row(R.GET_KV_CONFIG, h.KVHeader, _cluster_wide(A.GET)),
    Row(R.DELETE_KV_CONFIG, h.KVHeader, _cluster_wide(A.UPDATE), changes=Kind.DELETED),
    Row(R.GET_KVLIST_BY_NAMESPACE, h.KVNamespaceHeader, _cluster_wide(A.GET)),
    Row(R.WIPE_WRITE_PERM_OF_BROKER, h.BrokerNameHeader, _cluster_wide(A.UPDATE), changes=Kind.CHANGED),
    Row(R.ADD_WRITE_PERM_OF_BROKER, h.BrokerNameHeader, _cluster_wide(A.UPDATE), changes=Kind.CHANGED),
    Row(
        R.REGISTER_TOPIC_IN_NAMESRV,
        h.TopicHeader,
        _managed(A.CREATE, _of_topic),
        _CONTROL,
        TopicRouteData,
        changes=Kind.CREATED,
    ),
    Row(R.GET_UNIT_TOPIC_LIST, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_HAS_UNIT_SUB_TOPIC_LIST, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, h.NoHeader, _cluster_wide(A.LIST)),
    Row(R.GET_BROKER_MEMBER_GROUP, h.BrokerMemberGroupHeader, _managed(A.GET, _of_cluster)),
    Row(R.UPDATE_NAMESRV_CONFIG, h.NoHeader, _cluster_wide(A.UPDATE), _CONFIG, changes=Kind.CHANGED),
    Row(R.GET_NAMESRV_CONFIG, h.NoHeader, _cluster_wide(A.GET)),
)

BROKER_REQUESTS: Final[dict[int, Row]] = {row.code: row for row in _BROKER_ROWS}
NAME_SERVER_REQUESTS: Final[dict[int, Row]] = {row.code: row for row in _NAME_SERVER_ROWS}
REQUESTS: Final = BROKER_REQUESTS | NAME_SERVER_REQUESTS

#: UPDATE_AND_CREATE_STATIC_TOPIC.
_STATIC_TOPIC: Final = 513

#: Why a request of mqadmin's is not served; appended to the answer's remark.
REFUSED: Final[dict[int, str]] = {
    _STATIC_TOPIC: "static topics are not made here; updateTopic creates one whose queues are this broker's",
}
