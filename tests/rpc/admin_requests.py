"""Administration requests for tests: each code's header, its body, and the resources it touches."""

from collections.abc import Mapping
from typing import Any

from libramq.codes import RequestCode as R
from libramq.formats.access import AclInfo, UserInfo
from libramq.formats.route import TopicRouteData
from libramq.formats.tables import SubscriptionGroupConfig, TopicConfig
from libramq.remoting import headers as h
from libramq.remoting.body.administration import GroupConfigList, TopicConfigList

_CLUSTER_UPDATE, _CLUSTER_GET, _CLUSTER_LIST = "Cluster:* Update", "Cluster:* Get", "Cluster:* List"

ADMIN_REQUESTS: Mapping[R, tuple[h.Header | None, Any, str]] = {
    # Name server.
    R.PUT_KV_CONFIG: (h.PutKVHeader(namespace="n", key="k", value="v"), None, _CLUSTER_UPDATE),
    R.GET_KV_CONFIG: (h.KVHeader(namespace="n", key="k"), None, _CLUSTER_GET),
    R.DELETE_KV_CONFIG: (h.KVHeader(namespace="n", key="k"), None, _CLUSTER_UPDATE),
    R.GET_KVLIST_BY_NAMESPACE: (h.KVNamespaceHeader(namespace="n"), None, _CLUSTER_GET),
    R.WIPE_WRITE_PERM_OF_BROKER: (h.BrokerNameHeader(broker_name="B"), None, _CLUSTER_UPDATE),
    R.ADD_WRITE_PERM_OF_BROKER: (h.BrokerNameHeader(broker_name="B"), None, _CLUSTER_UPDATE),
    R.REGISTER_TOPIC_IN_NAMESRV: (h.TopicHeader(topic="T"), TopicRouteData(), "Topic:T Create"),
    R.GET_UNIT_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_BROKER_MEMBER_GROUP: (
        h.BrokerMemberGroupHeader(cluster_name="C", broker_name="B"), None, "Cluster:C Get",
    ),
    R.UPDATE_NAMESRV_CONFIG: (None, None, _CLUSTER_UPDATE),
    R.GET_NAMESRV_CONFIG: (None, None, _CLUSTER_GET),
    # Broker.
    R.UPDATE_AND_CREATE_TOPIC_LIST: (
        None, TopicConfigList(topic_config_list=[TopicConfig(topic_name=name) for name in "TU"]),
        "Topic:T Create, Topic:U Create",
    ),
    R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: (
        None, GroupConfigList(group_config_list=[SubscriptionGroupConfig(group_name=name) for name in "GH"]),
        "Group:G Create, Group:H Create",
    ),
    R.CLONE_GROUP_OFFSET: (
        h.CloneOffsetsHeader(src_group="G", dest_group="H", topic="T"), None,
        "Group:G Update, Group:H Update, Topic:T Update",
    ),
    R.QUERY_CORRECTION_OFFSET: (
        h.CorrectionOffsetHeader(topic="T", compare_group="G", filter_groups="H,I"), None,
        "Topic:T Get, Group:G Get, Group:H Get, Group:I Get",
    ),
    R.QUERY_CONSUME_TIME_SPAN: (
        h.GroupAndTopicHeader(group="G", topic="T"), None, "Group:G Get, Topic:T Get",
    ),
    R.UPDATE_AND_GET_GROUP_FORBIDDEN: (
        h.GroupForbiddenHeader(group="G", topic="T", readable=False), None, "Group:G Update, Topic:T Update",
    ),
    R.QUERY_SUBSCRIPTION_BY_CONSUMER: (
        h.SubscriptionHeader(group="G", topic="T"), None, "Group:G Get, Topic:T Get",
    ),
    R.QUERY_CONSUME_QUEUE: (
        h.ConsumeQueueHeader(topic="T", queue_id=0, index=0, count=1, consumer_group="G"), None,
        "Topic:T Get, Group:G Get",
    ),
    R.GET_BROKER_CONSUME_STATS: (h.BrokerConsumeStatsHeader(), None, _CLUSTER_LIST),
    R.GET_ALL_PRODUCER_INFO: (None, None, _CLUSTER_LIST),
    R.VIEW_BROKER_STATS_DATA: (
        h.StatsDataHeader(stats_name="TOPIC_PUT_NUMS", stats_key="T"), None, _CLUSTER_GET,
    ),
    R.GET_BROKER_CONFIG: (None, None, _CLUSTER_GET),
    R.UPDATE_BROKER_CONFIG: (None, None, _CLUSTER_UPDATE),
    R.GET_CONSUMER_RUNNING_INFO: (
        h.RunningInfoHeader(consumer_group="G", client_id="c"), None, "Group:G Get",
    ),
    R.CONSUME_MESSAGE_DIRECTLY: (
        h.ConsumeDirectlyHeader(consumer_group="G", client_id="c", msg_id="x", topic="T"), None,
        "Group:G Update, Topic:T Update",
    ),
    R.INVOKE_BROKER_TO_GET_CONSUMER_STATUS: (
        h.ConsumerStatusHeader(group="G", topic="T"), None, "Group:G Get, Topic:T Get",
    ),
    R.RESUME_CHECK_HALF_MESSAGE: (h.ResumeCheckHeader(msg_id="0" * 32), None, _CLUSTER_UPDATE),
    R.NOTIFY_MIN_BROKER_ID_CHANGE: (h.LowestIdHeader(min_broker_id=1), None, _CLUSTER_UPDATE),
    R.EXCHANGE_BROKER_HA_INFO: (h.HAInfoHeader(), None, _CLUSTER_UPDATE),
    # Users and policies.
    R.AUTH_CREATE_USER: (
        h.UserHeader(username="alice"), UserInfo(username="alice", password="x"), _CLUSTER_UPDATE,
    ),
    R.AUTH_UPDATE_USER: (
        h.UserHeader(username="alice"), UserInfo(username="alice", password="y"), _CLUSTER_UPDATE,
    ),
    R.AUTH_DELETE_USER: (h.UserHeader(username="alice"), None, _CLUSTER_UPDATE),
    R.AUTH_GET_USER: (h.UserHeader(username="alice"), None, _CLUSTER_GET),
    R.AUTH_LIST_USER: (h.UserFilterHeader(), None, _CLUSTER_GET),
    R.AUTH_CREATE_ACL: (h.SubjectHeader(subject="User:alice"), AclInfo(), _CLUSTER_UPDATE),
    R.AUTH_UPDATE_ACL: (h.SubjectHeader(subject="User:alice"), AclInfo(), _CLUSTER_UPDATE),
    R.AUTH_DELETE_ACL: (h.DeletePoliciesHeader(subject="User:alice"), None, _CLUSTER_UPDATE),
    R.AUTH_GET_ACL: (h.SubjectHeader(subject="User:alice"), None, _CLUSTER_GET),
    R.AUTH_LIST_ACL: (h.PolicyFilterHeader(), None, _CLUSTER_GET),
    R.SLAVE_USERS: (None, None, _CLUSTER_LIST),
    R.RESET_MASTER_FLUSH_OFFSET: (h.MasterFlushOffsetHeader(master_flush_offset=1), None, _CLUSTER_UPDATE),
}  # fmt: skip
