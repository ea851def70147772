"""Apache's mqadmin at a name server: KV and order configuration, write permission, server configuration."""

import pytest

from tests.interop.cluster import Cluster
from tests.interop.process import PATIENCE_S

pytestmark = pytest.mark.interop


def perms(cluster: Cluster, topic: str) -> set[int]:
    route = cluster.route(topic)
    assert route is not None
    return {queues["perm"] for queues in route["queueDatas"]}


def test_values_by_namespace_and_key(cluster: Cluster) -> None:
    key = cluster.fresh_name("key")
    set_ = cluster.admin("updateKvConfig", "-s", "libra-test", "-k", key, "-v", "some value")
    assert "create or update kv config to namespace success" in set_
    assert "delete kv config from namespace success" in cluster.admin(
        "deleteKvConfig", "-s", "libra-test", "-k", key
    )


def test_an_order_configuration_is_put_read_routed_and_deleted(cluster: Cluster) -> None:
    """Routes have the order configuration only while the name server's `orderMessageEnable` is set."""
    topic = cluster.fresh_name("Ordered")
    cluster.create_topic(topic, 4)
    order = f"{cluster.broker_name}:3"
    assert "update orderConf success" in cluster.admin(
        "updateOrderConf", "-t", topic, "-m", "put", "-v", order
    )
    assert f"orderConf=[{order}]" in cluster.admin("updateOrderConf", "-t", topic, "-m", "get")
    assert "orderTopicConf" not in (cluster.route(topic) or {})
    try:
        changed = cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "true")
        assert "update name server config success" in changed
        assert (cluster.route(topic) or {})["orderTopicConf"] == order
        assert "orderMessageEnable" in cluster.admin("getNamesrvConfig")
    finally:
        cluster.admin("updateNamesrvConfig", "-k", "orderMessageEnable", "-v", "false")
    assert "orderTopicConf" not in (cluster.route(topic) or {})
    assert "delete orderConf success" in cluster.admin("updateOrderConf", "-t", topic, "-m", "delete")
    with pytest.raises(AssertionError, match="No config item"):
        cluster.admin("updateOrderConf", "-t", topic, "-m", "get")


def test_the_write_permission_of_a_broker_is_wiped_and_added(cluster: Cluster) -> None:
    """Only a change of the broker's topics would restore the permission, and none happens in between."""
    topic = cluster.fresh_name("Wiped")
    cluster.create_topic(topic, 2)
    try:
        printed = cluster.admin("wipeWritePerm", "-b", cluster.broker_name)
        assert f"wipe write perm of broker[{cluster.broker_name}] in name server" in printed
        assert perms(cluster, topic) == {4}
    finally:
        printed = cluster.admin("addWritePerm", "-b", cluster.broker_name)
        assert f"add write perm of broker[{cluster.broker_name}] in name server" in printed
    cluster.wait_until(lambda: perms(cluster, topic) == {6}, "no write permission", within_s=PATIENCE_S)
