"""A name server's answers, as Apache's tools and clients read them."""

import json
from pathlib import Path

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.formats import fastjson
from libramq.formats.access import UserInfo
from libramq.formats.document import encode_body
from libramq.nameserver.audit_file import AuditFile
from libramq.nameserver.engine import CHANGES, name_server_engine
from libramq.nameserver.kv_config import KVConfig
from libramq.nameserver.route_info import RouteInfo
from libramq.remoting.body.cluster import RegisterBrokerBody
from libramq.remoting.command import FLAG_ONEWAY, Command, Serialization
from libramq.remoting.credentials import Credentials, sign
from libramq.remoting.headers import encode_header
from libramq.rpc.request_table import NAME_SERVER_REQUESTS, REQUESTS
from libramq.runtime.performer import Performer
from libramq.runtime.seams import Seams
from tests.fakes import FakePeer, ManualClock, ManualThreads, ManualTimers, raise_it
from tests.nameserver.tables import header, table

BROKER_EXT = {
    "clusterName": "DefaultCluster",
    "brokerAddr": "10.0.0.1:10911",
    "brokerName": "broker-a",
    "brokerId": "0",
}


class Server:
    """A name server without sockets."""

    def __init__(
        self,
        credentials: Credentials | None = None,
        kv: KVConfig | None = None,
        operator: UserInfo | None = None,
        audit_path: Path | None = None,
    ) -> None:
        self.clock = ManualClock()
        self.audit_file = AuditFile(self.clock, audit_path)
        self.routes = RouteInfo()
        self.engine = name_server_engine(
            self.routes,
            clock=self.clock,
            operator=operator,
            credentials=credentials,
            kv=kv,
            audit_file=self.audit_file,
        )
        self.timers, self.threads = ManualTimers(), ManualThreads()
        self.performer = Performer(
            self.engine,
            Seams(remotes=None, timers=self.timers, threads=self.threads),
            monotonic_ms=self.clock.monotonic_ms,
            listen=lambda listening: listening(),
            failed=raise_it,
        )
        self.broker = FakePeer()

    def ask(self, code: int, ext=None, body=b"", *, peer=None, version=479, flag=0) -> Command:
        peer = peer or self.broker
        peer.replies.clear()
        request = Command(code=code, ext=ext or {}, body=body, version=version, opaque=77, flag=flag)
        self.performer.received(peer, [request])
        if flag & FLAG_ONEWAY:
            assert peer.replies == []
            return request
        (reply,) = peer.replies
        assert reply.opaque == 77
        assert reply.is_response
        return reply

    def register(self, *topics: str, **more) -> Command:
        body = encode_body(RegisterBrokerBody(topic_config_serialize_wrapper=table(*topics)))
        return self.ask(RequestCode.REGISTER_BROKER, encode_header(header(**more)), body)


@pytest.fixture
def server() -> Server:
    return Server()


def test_a_name_server_serves_the_rows_of_its_table(server):
    refused = {code for code in REQUESTS if server.ask(code).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    assert refused == REQUESTS.keys() - NAME_SERVER_REQUESTS.keys()


@pytest.mark.parametrize("code", sorted(CHANGES))
def test_only_the_operator_and_the_cluster_s_brokers_change_a_name_server(code: RequestCode):
    brokers = Credentials("brokers", "theirs")
    server = Server(brokers, operator=UserInfo(username="alice", password="secret"))
    refused = (None, Credentials("alice", "guessed"), Credentials("bob", "secret"))
    for user in (*refused, Credentials("alice", "secret"), brokers):
        request = Command(
            code=code, ext=dict.fromkeys(("namespace", "key", "value", "topic", "brokerName"), "x")
        )
        if user is not None:
            request = sign(request, user)
        answer = server.ask(code, request.ext, request.body)
        assert (answer.code == ResponseCode.NO_PERMISSION) == (user in refused), (user, answer)


def test_an_operator_may_have_two_passwords():
    operator = UserInfo(username="alice", password="secret", second_password="next")
    server = Server(Credentials("brokers", "theirs"), operator=operator)
    for password, code in (("secret", ResponseCode.SUCCESS), ("next", ResponseCode.SUCCESS), ("other", 16)):
        ext = {"namespace": "n", "key": "k", "value": "v"}
        request = sign(Command(code=RequestCode.PUT_KV_CONFIG, ext=ext), Credentials("alice", password))
        assert server.ask(RequestCode.PUT_KV_CONFIG, request.ext).code == code


def test_lookups_need_no_signature_where_an_operator_is_named():
    server = Server(operator=UserInfo(username="alice", password="secret"))
    assert server.register("T", "U").code == ResponseCode.SUCCESS
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert server.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER).code == ResponseCode.SUCCESS
    assert b"secret" not in server.ask(RequestCode.GET_NAMESRV_CONFIG).body


def test_a_registration_is_answered_with_a_table(server):
    reply = server.register("T", "U")
    assert reply.code == ResponseCode.SUCCESS
    assert fastjson.loads(reply.body) == {"table": {}}
    assert reply.ext == {}


def test_a_slave_gets_its_masters_address(server):
    server.register("T", "U", ha="10.0.0.1:10912")
    reply = server.register("T", "U", address="10.0.0.2:10911", id_=1)
    assert reply.ext == {"masterAddr": "10.0.0.1:10911", "haServerAddr": "10.0.0.1:10912"}


def test_a_registration_without_its_mandatory_fields_is_refused(server):
    reply = server.ask(RequestCode.REGISTER_BROKER, {"brokerName": "b"})
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert "brokerAddr" in (reply.remark or "")


def test_an_unknown_topic_is_answered_with_apaches_remark(server):
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Nope"})
    assert reply.code == ResponseCode.TOPIC_NOT_EXIST
    assert reply.remark == (
        "No topic route info in name server for the topic: Nope"
        "\nSee https://rocketmq.apache.org/docs/bestPractice/06FAQ for further details."
    )


@pytest.mark.parametrize(
    ("version", "flag", "standard"),
    [(401, None, True), (479, "false", True), (400, None, False), (400, "true", True), (393, "false", False)],
)
def test_the_dialect_of_a_route_depends_on_the_client(server, version, flag, standard):
    server.register("T", "U")
    ext = {"topic": "T"} | ({"acceptStandardJsonOnly": flag} if flag else {})
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, ext, version=version)
    assert (b'"brokerAddrs":{"0":"10.0.0.1:10911"}' in reply.body) == standard
    assert (b'"brokerAddrs":{0:"10.0.0.1:10911"}' in reply.body) != standard
    if standard:
        json.loads(reply.body)
    assert b"null" not in reply.body
    route = fastjson.loads(reply.body)
    assert route["queueDatas"] == [
        {"brokerName": "broker-a", "perm": 6, "readQueueNums": 4, "topicSysFlag": 0, "writeQueueNums": 4}
    ]
    assert route["filterServerTable"] == {}


def test_standard_json_is_ascii(server):
    server.register("T", "U", name="bröker")
    reply = server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"})
    assert reply.body.isascii()
    assert json.loads(reply.body)["brokerDatas"][0]["brokerName"] == "bröker"


def test_cluster_info_always_has_the_loose_dialect(server):
    server.register("T", "U")
    reply = server.ask(RequestCode.GET_BROKER_CLUSTER_INFO)
    assert b'"brokerAddrs":{0:"10.0.0.1:10911"}' in reply.body
    assert fastjson.loads(reply.body)["clusterAddrTable"] == {"DefaultCluster": ["broker-a"]}


def test_topics_are_listed(server):
    server.register("T", "U")
    assert fastjson.loads(server.ask(206).body) == {"topicList": ["T", "U"]}
    assert fastjson.loads(server.ask(224, {"cluster": "DefaultCluster"}).body) == {"topicList": ["T", "U"]}
    assert fastjson.loads(server.ask(224, {"cluster": "Nope"}).body) == {"topicList": []}
    assert fastjson.loads(server.ask(304).body) == {
        "topicList": ["DefaultCluster", "broker-a"],
        "brokerAddr": "10.0.0.1:10911",
    }


def test_the_data_version_decides_whether_to_register_again(server):
    version = {"stateVersion": 0, "timestamp": 1, "counter": 1}
    unknown = server.ask(RequestCode.QUERY_DATA_VERSION, BROKER_EXT, json.dumps(version).encode())
    assert unknown.ext == {"changed": "true"}
    assert unknown.body == b""
    server.register("T", "U")
    same = server.ask(RequestCode.QUERY_DATA_VERSION, BROKER_EXT, json.dumps(version).encode())
    assert same.ext == {"changed": "false"}
    assert fastjson.loads(same.body) == version
    newer = json.dumps(version | {"counter": 2}).encode()
    assert server.ask(RequestCode.QUERY_DATA_VERSION, BROKER_EXT, newer).ext == {"changed": "true"}


@pytest.mark.parametrize("code", [RequestCode.QUERY_DATA_VERSION, RequestCode.BROKER_HEARTBEAT])
def test_heartbeats_keep_a_broker(server, code):
    server.register("T", "U")
    server.clock.advance(100_000)
    body = b'{"counter":1,"stateVersion":0,"timestamp":1}' if code == RequestCode.QUERY_DATA_VERSION else b""
    assert server.ask(code, BROKER_EXT, body).code == ResponseCode.SUCCESS
    server.clock.advance(100_000)
    assert server.routes.expire(server.clock.monotonic_ms()) == ([], [])


def test_a_broker_unregisters_only_itself(server):
    server.register("T", "U")
    stranger = FakePeer("127.0.0.1:6")
    refused = server.ask(RequestCode.UNREGISTER_BROKER, BROKER_EXT, peer=stranger)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.SUCCESS
    assert server.ask(RequestCode.UNREGISTER_BROKER, BROKER_EXT).code == ResponseCode.SUCCESS
    assert server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}).code == ResponseCode.TOPIC_NOT_EXIST


def test_a_topic_is_deleted(server):
    server.register("T", "U")
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T", "clusterName": "Other"})
    assert server.routes.route("T") is not None
    server.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "T"})
    assert server.routes.route("T") is None


def test_unsupported_requests_are_refused(server):
    reply = server.ask(RequestCode.PULL_MESSAGE)
    assert (reply.code, reply.remark) == (3, " request type 11 not supported")


def test_a_one_way_request_is_not_answered(server):
    server.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "T"}, flag=FLAG_ONEWAY)


def test_the_answer_is_in_the_header_form_of_the_request(server):
    for form in Serialization:
        server.broker.replies.clear()
        request = Command(code=206, serialization=form)
        server.performer.received(server.broker, [request])
        assert server.broker.replies[0].serialization == form
