"""The requests of administration as tests make them: each code's header, its body, and what it touches."""

from collections.abc import Mapping
from typing import Any

from libramq.codes import RequestCode as R
from libramq.formats.route import TopicRouteData
from libramq.remoting import admin_headers as a
from libramq.remoting import headers as h

_CLUSTER_UPDATE, _CLUSTER_GET, _CLUSTER_LIST = "Cluster:* Update", "Cluster:* Get", "Cluster:* List"

ADMIN_REQUESTS: Mapping[R, tuple[h.Header | None, Any, str]] = {
    # Name server.
    R.PUT_KV_CONFIG: (a.PutKVHeader(namespace="n", key="k", value="v"), None, _CLUSTER_UPDATE),
    R.GET_KV_CONFIG: (a.KVHeader(namespace="n", key="k"), None, _CLUSTER_GET),
    R.DELETE_KV_CONFIG: (a.KVHeader(namespace="n", key="k"), None, _CLUSTER_UPDATE),
    R.GET_KVLIST_BY_NAMESPACE: (a.KVNamespaceHeader(namespace="n"), None, _CLUSTER_GET),
    R.WIPE_WRITE_PERM_OF_BROKER: (a.BrokerNameHeader(broker_name="B"), None, _CLUSTER_UPDATE),
    R.ADD_WRITE_PERM_OF_BROKER: (a.BrokerNameHeader(broker_name="B"), None, _CLUSTER_UPDATE),
    R.REGISTER_TOPIC_IN_NAMESRV: (h.TopicHeader(topic="T"), TopicRouteData(), "Topic:T Create"),
    R.GET_UNIT_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_HAS_UNIT_SUB_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: (None, None, _CLUSTER_LIST),
    R.GET_BROKER_MEMBER_GROUP: (
        a.BrokerMemberGroupHeader(cluster_name="C", broker_name="B"), None, "Cluster:C Get",
    ),
    R.UPDATE_NAMESRV_CONFIG: (None, None, _CLUSTER_UPDATE),
    R.GET_NAMESRV_CONFIG: (None, None, _CLUSTER_GET),
}  # fmt: skip
