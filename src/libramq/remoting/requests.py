"""The table of requests: what each code carries, whom it concerns, what it may do and how large it may be.

One table serves decoding, authorisation and limits, so that a request cannot be known to one and unknown to
another.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from libramq.codes import RequestCode as R
from libramq.remoting import headers as h


class Resource(StrEnum):
    """What a request acts upon (auth/authorization ResourceType.java)."""

    CLUSTER = "Cluster"
    TOPIC = "Topic"
    GROUP = "Group"


class Action(StrEnum):
    """What a request does to it (common/action/Action.java)."""

    PUB = "Pub"
    SUB = "Sub"
    GET = "Get"
    LIST = "List"
    CREATE = "Create"
    UPDATE = "Update"
    DELETE = "Delete"


#: Ours: names, offsets and subscriptions of one client or table of one broker.
CONTROL_BODY_BYTES_MAX: Final = 4 * 1024 * 1024
#: Ours: a broker's whole topic table, some 200 bytes a topic.
TABLE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024
#: Messages are bounded by the broker's maxMessageSize; the frame bounds them before that.
MESSAGE_BODY_BYTES_MAX: Final = 15 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class RequestSpec:
    """One line of the table.

    resource_field: the ext field that names the resource; None when the body does or nothing is named.
    has_version: it is of the group protocol (group_version.py).
    """

    code: R
    header: type[h.Header]
    resource: Resource
    resource_field: str | None
    action: Action
    body_bytes_max: int = 0
    has_version: bool = False


_T, _G, _C = Resource.TOPIC, Resource.GROUP, Resource.CLUSTER
_CONTROL, _TABLE, _MESSAGE = CONTROL_BODY_BYTES_MAX, TABLE_BODY_BYTES_MAX, MESSAGE_BODY_BYTES_MAX

_SPECS: Final = (
    # Messages
    RequestSpec(R.SEND_MESSAGE, h.SendMessageHeader, _T, "topic", Action.PUB, _MESSAGE),
    RequestSpec(R.SEND_MESSAGE_V2, h.SendMessageHeaderV2, _T, "b", Action.PUB, _MESSAGE),
    RequestSpec(R.SEND_BATCH_MESSAGE, h.SendMessageHeaderV2, _T, "b", Action.PUB, _MESSAGE),
    RequestSpec(R.CONSUMER_SEND_MSG_BACK, h.SendBackHeader, _G, "group", Action.SUB),
    RequestSpec(R.PULL_MESSAGE, h.PullMessageHeader, _T, "topic", Action.SUB),
    RequestSpec(R.LITE_PULL_MESSAGE, h.PullMessageHeader, _T, "topic", Action.SUB),
    RequestSpec(R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader, _T, "topic", Action.GET),
    # Offsets
    RequestSpec(R.QUERY_CONSUMER_OFFSET, h.QueryConsumerOffsetHeader, _G, "consumerGroup", Action.SUB),
    RequestSpec(R.UPDATE_CONSUMER_OFFSET, h.UpdateConsumerOffsetHeader, _G, "consumerGroup", Action.SUB),
    RequestSpec(R.SEARCH_OFFSET_BY_TIMESTAMP, h.SearchOffsetHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_MAX_OFFSET, h.QueueHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_MIN_OFFSET, h.QueueHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_EARLIEST_MSG_STORETIME, h.QueueHeader, _T, "topic", Action.GET),
    # Clients
    RequestSpec(R.HEART_BEAT, h.NoHeader, _G, None, Action.SUB, _CONTROL),
    RequestSpec(R.UNREGISTER_CLIENT, h.UnregisterClientHeader, _G, "consumerGroup", Action.SUB),
    RequestSpec(R.CHECK_CLIENT_CONFIG, h.NoHeader, _G, None, Action.SUB, _CONTROL),
    RequestSpec(R.GET_CONSUMER_LIST_BY_GROUP, h.GroupHeader, _G, "consumerGroup", Action.SUB),
    RequestSpec(R.LOCK_BATCH_MQ, h.NoHeader, _G, None, Action.SUB, _CONTROL),
    RequestSpec(R.UNLOCK_BATCH_MQ, h.NoHeader, _G, None, Action.SUB, _CONTROL),
    # Administration of a broker
    RequestSpec(R.UPDATE_AND_CREATE_TOPIC, h.CreateTopicHeader, _T, "topic", Action.CREATE),
    RequestSpec(R.DELETE_TOPIC_IN_BROKER, h.TopicHeader, _T, "topic", Action.DELETE),
    RequestSpec(R.GET_ALL_TOPIC_CONFIG, h.GetAllTopicsHeader, _C, None, Action.LIST),
    RequestSpec(R.GET_TOPIC_CONFIG, h.TopicHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_TOPIC_STATS_INFO, h.TopicHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_BROKER_RUNTIME_INFO, h.NoHeader, _C, None, Action.GET),
    RequestSpec(R.GET_SYSTEM_TOPIC_LIST_FROM_BROKER, h.NoHeader, _C, None, Action.LIST),
    RequestSpec(R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, h.NoHeader, _G, None, Action.CREATE, _CONTROL),
    RequestSpec(R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader, _G, "groupName", Action.DELETE),
    RequestSpec(R.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, h.GetAllGroupsHeader, _C, None, Action.LIST),
    RequestSpec(R.GET_SUBSCRIPTIONGROUP_CONFIG, h.GroupByNameHeader, _G, "group", Action.GET),
    RequestSpec(R.GET_CONSUME_STATS, h.ConsumeStatsHeader, _G, "consumerGroup", Action.GET),
    RequestSpec(R.INVOKE_BROKER_TO_RESET_OFFSET, h.ResetOffsetHeader, _G, "group", Action.UPDATE),
    RequestSpec(R.GET_CONSUMER_CONNECTION_LIST, h.GroupHeader, _G, "consumerGroup", Action.GET),
    RequestSpec(R.GET_PRODUCER_CONNECTION_LIST, h.ProducerConnectionHeader, _C, None, Action.GET),
    RequestSpec(R.QUERY_TOPIC_CONSUME_BY_WHO, h.TopicHeader, _T, "topic", Action.GET),
    RequestSpec(R.QUERY_TOPICS_BY_CONSUMER, h.GroupByNameHeader, _G, "group", Action.GET),
    # Coordinated groups: members, and brokers among themselves
    RequestSpec(R.GROUP_JOIN, h.GroupJoinHeader, _G, "consumerGroup", Action.SUB, _CONTROL, has_version=True),
    RequestSpec(R.GROUP_POLL, h.GroupPollHeader, _G, "consumerGroup", Action.SUB, _CONTROL, has_version=True),
    RequestSpec(
        R.GROUP_RELEASE, h.GroupMemberHeader, _G, "consumerGroup", Action.SUB, _CONTROL, has_version=True
    ),
    RequestSpec(
        R.GROUP_LEAVE, h.GroupMemberHeader, _G, "consumerGroup", Action.SUB, _CONTROL, has_version=True
    ),
    RequestSpec(R.GROUP_REMOVE, h.GroupRemoveHeader, _G, "consumerGroup", Action.UPDATE, has_version=True),
    RequestSpec(R.GROUP_FIND, h.GroupHeader, _G, "consumerGroup", Action.SUB, has_version=True),
    RequestSpec(R.OPEN_QUEUE, h.OpenQueueHeader, _G, "consumerGroup", Action.SUB, has_version=True),
    RequestSpec(R.QUERY_ASSIGNMENT, h.NoHeader, _G, None, Action.SUB, _CONTROL),
    RequestSpec(R.SET_MESSAGE_REQUEST_MODE, h.NoHeader, _G, None, Action.UPDATE, _CONTROL),
    RequestSpec(R.PEER_GRANT, h.NoHeader, _C, None, Action.UPDATE, _TABLE, has_version=True),
    RequestSpec(R.PEER_MEMBERS, h.NoHeader, _C, None, Action.UPDATE, _TABLE, has_version=True),
    RequestSpec(R.PEER_LIST, h.NoHeader, _C, None, Action.UPDATE, _TABLE, has_version=True),
    RequestSpec(R.PEER_GATHER, h.NoHeader, _C, None, Action.GET, _CONTROL, has_version=True),
    RequestSpec(R.PEER_STARTED, h.NoHeader, _C, None, Action.UPDATE, _TABLE, has_version=True),
    RequestSpec(R.PEER_ASSIGN, h.NoHeader, _C, None, Action.GET, _TABLE, has_version=True),
    RequestSpec(R.PEER_GIVEN, h.NoHeader, _C, None, Action.UPDATE, _TABLE, has_version=True),
    RequestSpec(R.PEER_REMOVED, h.NoHeader, _C, None, Action.UPDATE, _CONTROL, has_version=True),
    # Name server
    RequestSpec(R.REGISTER_BROKER, h.RegisterBrokerHeader, _C, None, Action.UPDATE, _TABLE),
    RequestSpec(R.UNREGISTER_BROKER, h.UnregisterBrokerHeader, _C, None, Action.UPDATE),
    RequestSpec(R.QUERY_DATA_VERSION, h.UnregisterBrokerHeader, _C, None, Action.GET, _CONTROL),
    RequestSpec(R.BROKER_HEARTBEAT, h.BrokerHeartbeatHeader, _C, None, Action.UPDATE),
    RequestSpec(R.GET_ROUTEINFO_BY_TOPIC, h.RouteHeader, _T, "topic", Action.GET),
    RequestSpec(R.GET_BROKER_CLUSTER_INFO, h.NoHeader, _C, None, Action.GET),
    RequestSpec(R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, h.NoHeader, _C, None, Action.LIST),
    RequestSpec(R.GET_TOPICS_BY_CLUSTER, h.ClusterHeader, _C, None, Action.LIST),
    RequestSpec(R.DELETE_TOPIC_IN_NAMESRV, h.DeleteTopicInNamesrvHeader, _T, "topic", Action.DELETE),
    RequestSpec(R.GET_SYSTEM_TOPIC_LIST_FROM_NS, h.NoHeader, _C, None, Action.LIST),
)

REQUESTS: Final[dict[int, RequestSpec]] = {spec.code: spec for spec in _SPECS}
