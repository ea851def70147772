"""Changes that operators make at a name server, as Apache's mqadmin requests them."""

import json

import pytest

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import ConfigError
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.formats.route import QueueData, TopicRouteData
from libramq.kernel.effect import Thread
from libramq.nameserver.config import NameServerConfig, name_server_config
from libramq.nameserver.kv_config import KVConfig
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.command import Command
from libramq.remoting.headers import encode_header
from tests.fakes import FakePeer
from tests.nameserver.tables import header, table
from tests.nameserver.test_processor import Server
from tests.store.stores import Disk

ORDER = "ORDER_TOPIC_CONFIG"


@pytest.fixture
def server() -> Server:
    return Server()


def put(server: Server, key: str, value: str, namespace: str = ORDER) -> Command:
    return server.ask(R.PUT_KV_CONFIG, {"namespace": namespace, "key": key, "value": value})


def route(server: Server, topic: str) -> dict:
    return json.loads(server.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).body)


def test_a_value_is_put_read_listed_and_deleted(server):
    assert put(server, "T", "broker-a:4").code == ResponseCode.SUCCESS
    assert server.ask(R.GET_KV_CONFIG, {"namespace": ORDER, "key": "T"}).ext == {"value": "broker-a:4"}
    listed = server.ask(R.GET_KVLIST_BY_NAMESPACE, {"namespace": ORDER})
    assert fastjson.loads(listed.body) == {"table": {"T": "broker-a:4"}}
    assert server.ask(R.DELETE_KV_CONFIG, {"namespace": ORDER, "key": "T"}).code == ResponseCode.SUCCESS
    missing = server.ask(R.GET_KV_CONFIG, {"namespace": ORDER, "key": "T"})
    assert (missing.code, missing.remark) == (
        ResponseCode.QUERY_NOT_FOUND,
        "No config item, Namespace: ORDER_TOPIC_CONFIG Key: T",
    )
    assert server.ask(R.GET_KVLIST_BY_NAMESPACE, {"namespace": "other"}).code == ResponseCode.QUERY_NOT_FOUND


def test_values_are_bounded(server):
    assert "255 are allowed" in (put(server, "k" * 256, "v").remark or "")
    assert "65536 are allowed" in (put(server, "k", "v" * 65_537).remark or "")
    assert "empty" in (put(server, "", "v").remark or "")
    kv = KVConfig()
    for number in range(64):
        kv.put("n", str(number), "v" * 65_000)
    with pytest.raises(Exception, match="delete some first"):
        kv.put("n", "one more", "v" * 65_000)
    kv.put("n", "1", "")  # A shorter value makes room.
    kv.put("n", "one more", "v" * 60_000)


def test_values_are_on_the_disk_before_they_are_acknowledged_and_after_a_restart(tmp_path):
    disk, path = Disk(), tmp_path / "namesrv" / "kvConfig.json"
    server = Server(kv=KVConfig(disk, path))
    peer = FakePeer()
    request = Command(
        code=R.PUT_KV_CONFIG, ext={"namespace": ORDER, "key": "T", "value": "broker-a:4"}, opaque=1
    )
    server.performer.received(peer, [request])
    assert peer.replies == []
    server.threads.run_all(Thread.DISK)
    assert [reply.code for reply in peer.replies] == [ResponseCode.SUCCESS]
    assert fastjson.loads(path.read_bytes()) == {"configTable": {ORDER: {"T": "broker-a:4"}}}
    assert KVConfig(disk, path).get(ORDER, "T") == "broker-a:4"


def test_changes_that_come_while_the_file_is_written_are_in_one_further_write(tmp_path):
    """The file has at most 4 MB: a hundred requests in one read would leave 400 MB waiting for the disk."""
    path = tmp_path / "kvConfig.json"
    server = Server(kv=KVConfig(Disk(), path))
    peer, gone = FakePeer(), FakePeer()

    def change(number: int) -> Command:
        ext = {"namespace": "n", "key": "k", "value": str(number)}
        return Command(code=R.PUT_KV_CONFIG, ext=ext, opaque=number)

    server.performer.received(gone, [change(0)])
    server.performer.closed(gone)
    server.performer.received(peer, [change(number) for number in range(1, 100)])
    (first,) = server.threads.work
    server.threads.work.clear()
    server.threads.finish(first)
    assert peer.replies == []
    (second,) = server.threads.work
    server.threads.work.clear()
    server.threads.finish(second)
    assert [reply.opaque for reply in peer.replies] == list(range(1, 100))
    assert server.threads.work == []
    assert fastjson.loads(path.read_bytes()) == {"configTable": {"n": {"k": "99"}}}


def test_a_disk_that_refuses_is_reported(tmp_path):
    server = Server(kv=KVConfig(Disk(), tmp_path / "namesrv" / "kvConfig.json"))
    (tmp_path / "namesrv").write_text("a file where the directory should be")
    peer = FakePeer()
    request = Command(code=R.PUT_KV_CONFIG, ext={"namespace": "n", "key": "k", "value": "v"}, opaque=1)
    server.performer.received(peer, [request])
    server.threads.run_all(Thread.DISK)
    (reply,) = peer.replies
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "not in the file" in (reply.remark or "")


def test_a_broken_file_stops_the_start_with_the_remedy(tmp_path):
    path = tmp_path / "kvConfig.json"
    path.write_text('{"configTable":[1]}')
    with pytest.raises(ConfigError, match="repair it, or remove it"):
        KVConfig(Disk(), path)


def test_routes_have_the_order_configuration_once_it_is_enabled(server):
    server.register("T", "U")
    put(server, "T", "broker-a:4")
    assert "orderTopicConf" not in route(server, "T")
    changed = server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"orderMessageEnable=true\n")
    assert changed.code == ResponseCode.SUCCESS
    assert route(server, "T")["orderTopicConf"] == "broker-a:4"
    assert "orderTopicConf" not in route(server, "U")
    assert fastjson.loads(server.register("T", "U").body) == {"table": {"T": "broker-a:4"}}
    server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"returnOrderTopicConfigToBroker=false\n")
    assert fastjson.loads(server.register("T", "U").body) == {"table": {}}


def test_options_are_shown_changed_and_refused(server):
    shown = server.ask(R.GET_NAMESRV_CONFIG).body.decode()
    assert "orderMessageEnable=false\n" in shown
    assert "enableTopicList=true\n" in shown
    server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"enableAllTopicList=false\nenableTopicList=false\n")
    for code, ext in (
        (R.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, {}),
        (R.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
        (R.GET_UNIT_TOPIC_LIST, {}),
    ):
        reply = server.ask(code, ext)
        assert (reply.code, reply.remark) == (ResponseCode.SYSTEM_ERROR, "disable")
    assert "enableTopicList=false\n" in server.ask(R.GET_NAMESRV_CONFIG).body.decode()
    black = server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"kvConfigPath=/tmp/x\n")
    assert (black.code, black.remark) == (
        ResponseCode.NO_PERMISSION,
        "Can not update config in black list.",
    )
    unknown = server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"waitSecondsForService=3\nenableTopicList=true\n")
    assert unknown.code == ResponseCode.INVALID_PARAMETER
    assert "waitSecondsForService cannot be changed here" in (unknown.remark or "")
    wrong = server.ask(R.UPDATE_NAMESRV_CONFIG, body=b"enableTopicList=maybe\n")
    assert (wrong.code, wrong.remark) == (
        ResponseCode.INVALID_PARAMETER,
        "enableTopicList=maybe; true or false is allowed",
    )
    assert "enableTopicList=false\n" in server.ask(R.GET_NAMESRV_CONFIG).body.decode(), "nothing was changed"


def test_a_properties_file_sets_options():
    config, unknown = name_server_config(
        {"orderMessageEnable": "true", "listenPort": "9", "listenBacklog": "9"}
    )
    assert config == NameServerConfig(order_message_enable=True, listen_port=9)
    assert unknown == ["listenBacklog"]


def test_write_permission_is_wiped_until_it_is_added_or_the_topics_change(server):
    server.register("T", "U", "V")
    wiped = server.ask(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert wiped.ext == {"wipeTopicCount": "3"}
    assert route(server, "T")["queueDatas"][0]["perm"] == 4
    server.register("T", "U", "V")  # The version is the same, so nothing is adopted.
    assert route(server, "T")["queueDatas"][0]["perm"] == 4
    added = server.ask(R.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    assert added.ext == {"addTopicCount": "3"}
    assert route(server, "T")["queueDatas"][0]["perm"] == 6
    server.ask(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=table("T", "U", "V", counter=2)))
    server.ask(R.REGISTER_BROKER, encode_header(header()), body)
    assert route(server, "T")["queueDatas"][0]["perm"] == 6
    nobody = server.ask(R.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-z"})
    assert (nobody.code, nobody.ext) == (ResponseCode.SUCCESS, {"wipeTopicCount": "0"})


def test_a_topic_is_registered_at_known_brokers_only(server):
    server.register("T", "U")

    def register(topic: str, broker: str, queues: int = 4) -> int:
        data = QueueData(broker_name=broker, read_queue_nums=queues, write_queue_nums=queues, perm=6)
        body = encode_body(TopicRouteData(queue_datas=[data]))
        return server.ask(R.REGISTER_TOPIC_IN_NAMESRV, {"topic": topic}, body).code

    assert register("Static", "broker-a") == ResponseCode.SUCCESS
    assert route(server, "Static")["queueDatas"][0]["readQueueNums"] == 4
    assert register("Nowhere", "broker-z") == ResponseCode.SUCCESS
    reply = server.ask(R.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nowhere"})
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert register("Large", "broker-a", 1 << 20) == ResponseCode.SYSTEM_ERROR
    assert register("", "broker-a") == ResponseCode.SYSTEM_ERROR


def test_topics_are_listed_by_their_unit_flags(server):
    from libramq.formats.tables import DataVersion, TopicConfig, TopicConfigSerializeWrapper

    flags = {"None": 0, "Unit": 1, "Sub": 2, "Both": 3}
    topics = {name: TopicConfig(topic_name=name, topic_sys_flag=number) for name, number in flags.items()}
    wrapper = TopicConfigSerializeWrapper(data_version=DataVersion(counter=1), topic_config_table=topics)
    body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=wrapper))
    server.ask(R.REGISTER_BROKER, encode_header(header()), body)

    def listed(code: int) -> set[str]:
        return set(fastjson.loads(server.ask(code).body)["topicList"])

    assert listed(R.GET_UNIT_TOPIC_LIST) == {"Unit", "Both"}
    assert listed(R.GET_HAS_UNIT_SUB_TOPIC_LIST) == {"Sub", "Both"}
    assert listed(R.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST) == {"Sub"}


def test_the_members_of_a_broker_name(server):
    server.register("T", "U")
    reply = server.ask(R.GET_BROKER_MEMBER_GROUP, {"clusterName": "DefaultCluster", "brokerName": "broker-a"})
    group = fastjson.loads(reply.body)["brokerMemberGroup"]
    assert (group["cluster"], group["brokerName"]) == ("DefaultCluster", "broker-a")
    assert group["brokerAddrs"] == {0: "10.0.0.1:10911"}
