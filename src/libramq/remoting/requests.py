"""The table of requests: the header and body of each code, and its size limit.

What each of them touches is in `rpc/operations.py`.
"""

from dataclasses import dataclass
from typing import Final

from libramq.codes import RequestCode as R
from libramq.remoting import admin_headers as a
from libramq.remoting import headers as h
from libramq.remoting import pop_headers as pop

#: Ours: names, offsets and subscriptions of one client, or one broker's table.
CONTROL_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: a broker's whole topic table, some 200 bytes per topic.
TABLE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
#: Messages are bounded by the broker's maxMessageSize, and before that by the frame.
MESSAGE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
#: Ours: some hundred options of a name server or broker.
CONFIG_BODY_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One line of the table. has_version: it belongs to the group protocol (group_version.py)."""

    code: R
    header: type[h.Header]
    body_bytes_max: int = 0
    has_version: bool = False


_CONTROL, _TABLE, _MESSAGE = CONTROL_BODY_BYTES_MAX, TABLE_BODY_BYTES_MAX, MESSAGE_BODY_BYTES_MAX
_CONFIG = CONFIG_BODY_BYTES_MAX

_SPECS: Final = (
    # Messages.
    RequestSpec(R.SEND_MESSAGE, h.SendMessageHeader, _MESSAGE),
    RequestSpec(R.SEND_MESSAGE_V2, h.SendMessageHeaderV2, _MESSAGE),
    RequestSpec(R.SEND_BATCH_MESSAGE, h.SendMessageHeaderV2, _MESSAGE),
    RequestSpec(R.SEND_REPLY_MESSAGE, h.SendMessageHeader, _MESSAGE),
    RequestSpec(R.SEND_REPLY_MESSAGE_V2, h.SendMessageHeaderV2, _MESSAGE),
    RequestSpec(R.CONSUMER_SEND_MSG_BACK, h.SendBackHeader),
    RequestSpec(R.END_TRANSACTION, h.EndTransactionHeader),
    RequestSpec(R.PULL_MESSAGE, h.PullMessageHeader),
    RequestSpec(R.LITE_PULL_MESSAGE, h.PullMessageHeader),
    RequestSpec(R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader),
    RequestSpec(R.QUERY_MESSAGE, h.QueryMessageHeader),
    RequestSpec(R.POP_MESSAGE, pop.PopMessageHeader),
    RequestSpec(R.ACK_MESSAGE, pop.AckMessageHeader),
    RequestSpec(R.BATCH_ACK_MESSAGE, h.NoHeader, _CONTROL),
    RequestSpec(R.CHANGE_MESSAGE_INVISIBLETIME, pop.ChangeInvisibleTimeHeader),
    RequestSpec(R.NOTIFICATION, pop.NotificationHeader),
    RequestSpec(R.POLLING_INFO, pop.PollingInfoHeader),
    RequestSpec(R.PEEK_MESSAGE, pop.PeekMessageHeader),
    RequestSpec(R.RECALL_MESSAGE, h.RecallMessageHeader),
    # Offsets
    RequestSpec(R.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffsetHeader),
    RequestSpec(R.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetHeader),
    RequestSpec(R.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetHeader),
    RequestSpec(R.GET_MAX_OFFSET, h.QueueHeader),
    RequestSpec(R.GET_MIN_OFFSET, h.QueueHeader),
    RequestSpec(R.GET_EARLIEST_MSG_STORETIME, h.QueueHeader),
    # Clients.
    RequestSpec(R.HEART_BEAT, h.NoHeader, _CONTROL),
    RequestSpec(R.UNREGISTER_CLIENT, h.UnregisterClientHeader),
    RequestSpec(R.CHECK_CLIENT_CONFIG, h.NoHeader, _CONTROL),
    RequestSpec(R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader),
    RequestSpec(R.LOCK_BATCH_MQ, h.NoHeader, _CONTROL),
    RequestSpec(R.UNLOCK_BATCH_MQ, h.NoHeader, _CONTROL),
    # Administration of a broker.
    RequestSpec(R.GET_TIMER_CHECK_POINT, h.NoHeader),
    RequestSpec(R.GET_TIMER_METRICS, h.NoHeader),
    RequestSpec(R.UPDATE_AND_CREATE_TOPIC, h.CreateTopicHeader),
    RequestSpec(R.DELETE_TOPIC_IN_BROKER, h.TopicHeader),
    RequestSpec(R.GET_ALL_TOPIC_CONFIG, h.GetAllTopicsHeader),
    RequestSpec(R.GET_TOPIC_CONFIG, h.TopicHeader),
    RequestSpec(R.GET_TOPIC_STATS_INFO, h.TopicHeader),
    RequestSpec(R.GET_BROKER_RUNTIME_INFO, h.NoHeader),
    RequestSpec(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoHeader),
    RequestSpec(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, h.NoHeader, _CONTROL),
    RequestSpec(R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader),
    RequestSpec(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.GetAllGroupsHeader),
    RequestSpec(R.GET_SUBSCRIPTIONGROUP_CONFIG, h.GroupByNameHeader),
    RequestSpec(R.UPDATE_AND_GET_GROUP_FORBIDDEN, a.GroupForbiddenHeader),
    RequestSpec(R.GET_ALL_CONSUMER_OFFSET, h.NoHeader),
    RequestSpec(R.GET_ALL_DELAY_OFFSET, h.NoHeader),
    RequestSpec(R.GET_ALL_MESSAGE_REQUEST_MODE, h.NoHeader),
    RequestSpec(R.GET_BROKER_HA_STATUS, h.NoHeader),
    RequestSpec(R.DELETE_EXPIRED_COMMITLOG, h.NoHeader),
    RequestSpec(R.CLEAN_EXPIRED_CONSUMEQUEUE, h.NoHeader),
    RequestSpec(R.CLEAN_UNUSED_TOPIC, h.NoHeader),
    RequestSpec(R.GET_CONSUME_STATS, h.ConsumeStatsHeader),
    RequestSpec(R.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffsetHeader),
    RequestSpec(R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader),
    RequestSpec(R.GET_PRODUCER_CONNECTION_LIST, h.ProducerConnectionHeader),
    RequestSpec(R.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicHeader),
    RequestSpec(R.QUERY_TOPICS_BY_CONSUMER, h.GroupByNameHeader),
    RequestSpec(R.UPDATE_AND_CREATE_TOPIC_LIST, h.NoHeader, _CONTROL),
    RequestSpec(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST, h.NoHeader, _CONTROL),
    RequestSpec(R.CLONE_GROUP_OFFSET, a.CloneOffsetsHeader),
    RequestSpec(R.QUERY_CORRECTION_OFFSET, a.CorrectionOffsetHeader),
    RequestSpec(R.QUERY_CONSUME_TIME_SPAN, a.GroupAndTopicHeader),
    RequestSpec(R.QUERY_SUBSCRIPTION_BY_CONSUMER, a.SubscriptionHeader),
    RequestSpec(R.QUERY_CONSUME_QUEUE, a.ConsumeQueueHeader),
    RequestSpec(R.GET_BROKER_CONSUME_STATS, a.BrokerConsumeStatsHeader),
    RequestSpec(R.GET_ALL_PRODUCER_INFO, h.NoHeader),
    RequestSpec(R.VIEW_BROKER_STATS_DATA, a.StatsDataHeader),
    RequestSpec(R.RESUME_CHECK_HALF_MESSAGE, a.ResumeCheckHeader),
    RequestSpec(R.RESET_MASTER_FLUSH_OFFSET, a.MasterFlushOffsetHeader),
    RequestSpec(R.NOTIFY_MIN_BROKER_ID_CHANGE, a.LowestIdHeader),
    RequestSpec(R.EXCHANGE_BROKER_HA_INFO, a.HAInfoHeader),
    RequestSpec(R.GET_BROKER_CONFIG, h.NoHeader),
    RequestSpec(R.UPDATE_BROKER_CONFIG, h.NoHeader, _CONFIG),
    RequestSpec(R.GET_CONSUMER_RUNNING_INFO, a.RunningInfoHeader),
    RequestSpec(R.CONSUME_MESSAGE_DIRECTLY, a.ConsumeDirectlyHeader),
    RequestSpec(R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, a.ConsumerStatusHeader),
    # Coordinated groups: members, and brokers among themselves.
    RequestSpec(R.GROUP_JOIN, h.GroupJoinHeader, _CONTROL, has_version=True),
    RequestSpec(R.GROUP_POLL, h.GroupPollHeader, _CONTROL, has_version=True),
    RequestSpec(R.GROUP_RELEASE, h.GroupMemberHeader, _CONTROL, has_version=True),
    RequestSpec(R.GROUP_LEAVE, h.GroupMemberHeader, _CONTROL, has_version=True),
    RequestSpec(R.GROUP_REMOVE, h.GroupRemoveHeader, has_version=True),
    RequestSpec(R.GROUP_FIND, h.GroupHeader, has_version=True),
    RequestSpec(R.OPEN_QUEUE, h.OpenQueueHeader, has_version=True),
    RequestSpec(R.QUERY_ASSIGNMENT, h.NoHeader, _CONTROL),
    RequestSpec(R.SET_MESSAGE_REQUEST_MODE, h.NoHeader, _CONTROL),
    RequestSpec(R.PEER_GRANT, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_MEMBERS, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_LIST, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_GATHER, h.NoHeader, _CONTROL, has_version=True),
    RequestSpec(R.PEER_STARTED, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_ASSIGN, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_ASSIGNMENTS, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_REMOVED, h.NoHeader, _CONTROL, has_version=True),
    RequestSpec(R.PEER_REBALANCE, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_NODE, h.NoHeader, _CONTROL, has_version=True),
    RequestSpec(R.PEER_TOPIC, h.NoHeader, _CONTROL, has_version=True),
    RequestSpec(R.PEER_OFFSETS, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.PEER_GROUPS, h.NoHeader, _TABLE, has_version=True),
    RequestSpec(R.SLAVE_PROGRESS, h.SlaveProgressHeader),
    # Name server.
    RequestSpec(R.REGISTER_BROKER, h.RegisterBrokerHeader, _TABLE),
    RequestSpec(R.UNREGISTER_BROKER, h.UnregisterBrokerHeader),
    RequestSpec(R.QUERY_DATA_VERSION, h.UnregisterBrokerHeader, _CONTROL),
    RequestSpec(R.BROKER_HEARTBEAT, h.BrokerHeartbeatHeader),
    RequestSpec(R.GET_ROUTEINFO_BY_TOPIC, h.RouteHeader),
    RequestSpec(R.GET_BROKER_CLUSTER_INFO, h.NoHeader),
    RequestSpec(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoHeader),
    RequestSpec(R.GET_TOPICS_BY_CLUSTER, h.ClusterHeader),
    RequestSpec(R.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrvHeader),
    RequestSpec(R.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoHeader),
    # Administration of a name server.
    RequestSpec(R.PUT_KV_CONFIG, a.PutKVHeader),
    RequestSpec(R.GET_KV_CONFIG, a.KVHeader),
    RequestSpec(R.DELETE_KV_CONFIG, a.KVHeader),
    RequestSpec(R.GET_KVLIST_BY_NAMESPACE, a.KVNamespaceHeader),
    RequestSpec(R.WIPE_WRITE_PERM_OF_BROKER, a.BrokerNameHeader),
    RequestSpec(R.ADD_WRITE_PERM_OF_BROKER, a.BrokerNameHeader),
    RequestSpec(R.REGISTER_TOPIC_IN_NAMESRV, h.TopicHeader, _CONTROL),
    RequestSpec(R.GET_UNIT_TOPIC_LIST, h.NoHeader),
    RequestSpec(R.GET_HAS_UNIT_SUB_TOPIC_LIST, h.NoHeader),
    RequestSpec(R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, h.NoHeader),
    RequestSpec(R.GET_BROKER_MEMBER_GROUP, a.BrokerMemberGroupHeader),
    RequestSpec(R.UPDATE_NAMESRV_CONFIG, h.NoHeader, _CONFIG),
    RequestSpec(R.GET_NAMESRV_CONFIG, h.NoHeader),
)

REQUESTS: Final[dict[int, RequestSpec]] = {spec.code: spec for spec in _SPECS}

#: UPDATE_AND_CREATE_STATIC_TOPIC.
_STATIC_TOPIC: Final = 513

#: Why a request of mqadmin's is not served: the end of the answer's remark.
REFUSED: Final[dict[int, str]] = {
    _STATIC_TOPIC: "static topics are not made here; updateTopic creates one whose queues are this broker's",
}
