"""Users and policies at a broker: the auth requests, their permissions, persistence and effect."""

import json
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import generate_latest

from libramq.broker.broker_conf import broker_config
from libramq.broker.config import BrokerConfig
from libramq.broker.files.persistence import FOLD_MS
from libramq.broker.metrics_server import MetricsServer
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.filesystem import LocalFileSystem
from libramq.formats.access import UserInfo
from libramq.formats.document import encode_body
from libramq.kernel.effect import Thread
from libramq.message import properties as p
from libramq.message.properties import properties_to_text
from libramq.remoting import headers as h
from libramq.remoting.body.heartbeat import ConsumerData, HeartbeatData, ProducerData
from libramq.remoting.command import Command
from libramq.remoting.credentials import Credentials, sign, sign_for
from tests.broker.brokers import Conversation, send_header, subscription
from tests.broker.test_cold_reads import ColdPages
from tests.fakes import FakePeer
from tests.secrets import secrets_in

ROOT, ALICE, BROKERS = (
    Credentials("root", "r00t"),
    Credentials("alice", "wonder"),
    Credentials("peers", "p33rs"),
)


class Secured(Conversation):
    """A broker with access control, whose clients sign."""

    def __init__(self, root: Path, **options: object) -> None:
        defaults: dict[str, object] = {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "init_authentication_user": UserInfo(username="root", password="r00t"),
            "credentials": BROKERS,
        }
        super().__init__(root, **(defaults | options))
        self.peer = FakePeer()
        self.metrics = MetricsServer("127.0.0.1", 0)
        self.metrics.observe(self.broker)

    def close(self) -> None:
        assert secrets_in(generate_latest(self.metrics.registry)) == []
        super().close()

    def signed(
        self, who: Credentials, code: int, header: h.Header | None = None, body: object = b""
    ) -> Command:
        """Make a request and return its answer."""
        self.opaque += 1
        data = body if isinstance(body, bytes) else encode_body(body)
        ext = h.encode_header(header) if header is not None else {}
        command = sign(Command(code=code, ext=ext, body=data, opaque=self.opaque), who)
        self.give(self.peer, command)
        return next(each for each in reversed(self.peer.replies) if each.opaque == command.opaque)

    def make(self, name: str, password: str = "wonder", who: Credentials = ROOT, **fields: str) -> Command:
        info = UserInfo(username=name, password=password, **fields)  # type: ignore[arg-type]
        return self.signed(who, R.AUTH_CREATE_USER, h.UserHeader(username=name), info)

    def allow(
        self, *resources: str, actions: str = "All", who: Credentials = ROOT, deny: bool = False
    ) -> Command:
        decision = "Deny" if deny else "Allow"
        entries = [
            {"resource": each, "actions": actions.split(","), "decision": decision} for each in resources
        ]
        body = json.dumps({"subject": "User:alice", "policies": [{"entries": entries}]}).encode()
        return self.signed(who, R.AUTH_CREATE_ACL, h.SubjectHeader(subject="User:alice"), body)

    def sends(self, who: Credentials, topic: str = "T", **fields: Any) -> Command:
        return self.signed(who, R.SEND_MESSAGE_V2, send_header(topic, **fields), b"x")


@pytest.fixture
def secured(tmp_path: Path):
    made = Secured(tmp_path)
    yield made
    made.close()


def test_who_may_read_as_a_group_creates_retry_topics_of_existing_topics_only(secured: Secured):
    """These are the group's, so its members may send to them; any number of names would be created."""
    secured.make("alice")
    assert secured.allow("Group:G", actions="Sub").code == C.SUCCESS
    before = [each.topic_name for each in secured.broker.tables.topics]
    for number in range(3):
        assert secured.sends(ALICE, f"%RETRY%G+x{number}").code == C.TOPIC_NOT_EXIST
    assert [each.topic_name for each in secured.broker.tables.topics] == before
    assert secured.sends(ROOT, "T").code == C.SUCCESS
    assert secured.sends(ALICE, "%RETRY%G+T").code == C.SUCCESS
    assert secured.sends(ALICE, "%RETRY%G").code == C.SUCCESS


def test_the_first_user_makes_others_and_policies_let_them_work(secured: Secured):
    assert secured.sends(ALICE).remark == "User:alice is not found."
    assert secured.make("alice").code == C.SUCCESS
    assert secured.sends(ALICE).code == C.NO_PERMISSION
    assert secured.allow("Topic:T", actions="Pub").code == C.SUCCESS
    assert secured.sends(ALICE).code == C.SUCCESS
    assert secured.sends(ALICE, "U").remark == (
        "User:alice has no permission to access Topic:U from 127.0.0.1, no matched policies."
    )
    assert secured.allow("Topic:T", actions="Pub", deny=True).code == C.SUCCESS
    assert secured.sends(ALICE).remark.endswith("the decision is deny.")


def test_a_disabled_user_is_refused_on_its_open_connection(secured: Secured):
    secured.make("alice")
    secured.allow("*")
    assert secured.sends(ALICE).code == C.SUCCESS
    off = UserInfo(user_status="disable")
    assert secured.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), off).code == C.SUCCESS
    assert secured.sends(ALICE).remark == "User:alice is disabled."


@pytest.mark.parametrize("code", [R.PULL_MESSAGE, R.POP_MESSAGE])
def test_a_held_pull_ends_with_the_permission(secured: Secured, code: R):
    secured.make("alice")
    secured.allow("*")
    secured.sends(ALICE)
    pull = secured.pull_command(queue_offset=1, suspend_timeout_millis=15_000)
    if code == R.POP_MESSAGE:
        header = h.PopMessageHeader(
            consumer_group="G", topic="U", queue_id=-1, max_msg_nums=1, invisible_time=60_000,
            poll_time=15_000, init_mode=0, born_time=int(secured.clock.wall_ms()),
        )  # fmt: skip
        secured.sends(ROOT, "U", queue_id=3)
        pull = secured.command(R.POP_MESSAGE, header)
        secured.give(secured.peer, sign(pull, ALICE))
        secured.peer.replies.clear()
    reader = FakePeer()
    secured.give(reader, sign(pull, ALICE))
    assert reader.replies == [], "it is held"
    secured.allow("Topic:T", "Topic:U", deny=True)
    (ended,) = reader.replies
    assert ended.code in (C.PULL_NOT_FOUND, C.POLLING_TIMEOUT)
    secured.sends(ROOT)
    secured.sends(ROOT, "U")
    secured.give(reader, sign(secured.command(code, dict(pull.ext)), ALICE))
    assert reader.replies[-1].code == C.NO_PERMISSION


@pytest.mark.parametrize("code", [R.PULL_MESSAGE, R.POP_MESSAGE])
@pytest.mark.parametrize("change", ["second withdrawn", "first withdrawn", "disabled", "deleted", "policy"])
def test_a_message_that_comes_with_the_change_goes_to_no_held_pull(secured: Secured, code: R, change: str):
    """Both arrive in one read: held pulls were ended only in the next turn, after they got the message."""
    secured.make("alice")
    secured.allow("*")
    both = UserInfo(second_password="another")
    assert secured.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), both).code == C.SUCCESS
    secured.sends(ROOT, "T")
    pull = secured.pull_command(queue_offset=1, suspend_timeout_millis=15_000)
    if code == R.POP_MESSAGE:
        header = h.PopMessageHeader(
            consumer_group="G", topic="T", queue_id=-1, max_msg_nums=1, invisible_time=60_000,
            poll_time=15_000, init_mode=0, born_time=int(secured.clock.wall_ms()),
        )  # fmt: skip
        pull = secured.command(R.POP_MESSAGE, header)
        secured.give(FakePeer(), sign(pull, ALICE))
    who = Credentials("alice", "another") if change == "second withdrawn" else ALICE
    reader = FakePeer()
    secured.give(reader, sign(pull, who))
    assert reader.replies == [], "it is held"
    header = h.UserHeader(username="alice")
    changes = {
        "second withdrawn": secured.command(R.AUTH_UPDATE_USER, header, UserInfo(withdraw="second")),
        "first withdrawn": secured.command(R.AUTH_UPDATE_USER, header, UserInfo(withdraw="first")),
        "disabled": secured.command(R.AUTH_UPDATE_USER, header, UserInfo(user_status="disable")),
        "deleted": secured.command(R.AUTH_DELETE_USER, header),
        "policy": secured.command(R.AUTH_DELETE_ACL, h.DeletePoliciesHeader(subject="User:alice")),
    }
    send = secured.command(R.SEND_MESSAGE_V2, send_header("T"), b"after")
    secured.give(secured.peer, sign(changes[change], ROOT), sign(send, ROOT))
    assert [each.code for each in secured.peer.replies[-2:]] == [C.SUCCESS, C.SUCCESS]
    (ended,) = reader.replies
    assert ended.code in (C.PULL_NOT_FOUND, C.POLLING_TIMEOUT)
    assert ended.body == b""
    secured.give(reader, sign(secured.command(code, dict(pull.ext)), who))
    assert reader.replies[-1].code == C.NO_PERMISSION


def test_a_pull_that_is_read_while_users_change_gets_nothing(tmp_path: Path):
    """A thread reads for it from the disk; it used to be answered under the former permissions."""
    first = Secured(tmp_path)
    first.make("alice")
    first.allow("*")
    first.sends(ROOT, "T")
    first.close()
    secured, reader = Secured(tmp_path), FakePeer()
    ColdPages(secured)
    secured.give(reader, sign(secured.pull_command(suspend_timeout_millis=15_000), ALICE))
    assert reader.replies == [], "a thread reads"
    off = UserInfo(user_status="disable")
    assert secured.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), off).code == C.SUCCESS
    while not reader.replies:
        secured.threads.run_all(Thread.READ)
        secured.performer.follow()
    (ended,) = reader.replies
    assert (ended.code, ended.body, ended.ext["nextBeginOffset"]) == (C.PULL_RETRY_IMMEDIATELY, b"", "0")
    secured.close()


@pytest.mark.parametrize("is_held", [False, True], ids=["at once", "held"])
def test_a_pop_takes_nothing_of_a_group_whose_name_ends_with_the_topic(secured: Secured, is_held: bool):
    """`%RETRY%G_T` was POP's retry topic of group G and topic T, and is that of a group "G_T"."""
    secured.make("alice")
    secured.allow("Topic:T", "Group:G", actions="Sub")
    secured.sends(ROOT, "T")
    secured.signed(ROOT, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"G_T"}')

    def pop(topic: str = "T", poll_ms: int = 0) -> Command:
        fields = {"max_msg_nums": 32, "invisible_time": 30_000, "init_mode": 0, "queue_id": -1}
        header = h.PopMessageHeader(consumer_group="G", topic=topic, poll_time=poll_ms, **fields)
        return sign(Command(code=R.POP_MESSAGE, ext=h.encode_header(header), opaque=5_000 + poll_ms), ALICE)

    secured.give(secured.peer, pop())
    if is_held:
        secured.give(secured.peer, pop(poll_ms=20_000))
    secured.sends(ROOT, "%RETRY%G_T")
    secured.give(secured.peer, *([pop()] * 4))
    secured.advance(21_000)
    bodies = [each.body for each in secured.peer.replies if each.opaque in (5_000, 25_000)]
    assert [bool(body) for body in bodies] == [True, *[False] * (len(bodies) - 1)]
    assert len(bodies) == (6 if is_held else 5)


def test_unsigned_and_wrongly_signed_requests_are_refused(secured: Secured):
    assert secured.ask(secured.peer, R.GET_BROKER_RUNTIME_INFO).remark == "authentication field is null"
    assert secured.send(secured.peer).remark == "username cannot be null."
    assert secured.sends(Credentials("root", "guess")).remark == "check signature failed."


@pytest.mark.parametrize("version", [399, 400])
def test_old_clients_do_not_sign_the_mark_of_a_query(secured: Secured, version: int):
    header = h.QueryMessageHeader(topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=1)
    fields = h.encode_header(header)
    del fields["_UNIQUE_KEY_QUERY"]
    command = sign(Command(code=R.QUERY_MESSAGE, ext=fields, opaque=7), ROOT)
    command.ext["_UNIQUE_KEY_QUERY"] = "true"
    command.version = version
    secured.give(secured.peer, command)
    is_believed = secured.answer_later(secured.peer, command).remark != "check signature failed."
    assert is_believed == (version <= 399)


def test_no_answer_has_a_password(secured: Secured):
    secured.make("alice")
    one = secured.signed(ROOT, R.AUTH_GET_USER, h.UserHeader(username="alice"))
    every = secured.signed(ROOT, R.AUTH_LIST_USER, h.UserFilterHeader())
    options = secured.signed(ROOT, R.GET_BROKER_CONFIG)
    assert json.loads(one.body) == {"username": "alice", "userType": "Normal", "userStatus": "enable"}
    assert [each["username"] for each in json.loads(every.body)] == ["alice", "root"]
    for reply in (one, every, options):
        assert not any(secret in reply.body for secret in (b"wonder", b"r00t", b"p33rs"))
    assert secured.signed(ROOT, R.AUTH_GET_USER, h.UserHeader(username="eve")).body == b""


def test_policies_are_shown_changed_and_deleted(secured: Secured):
    secured.make("alice")
    secured.allow("Topic:T", "Group:G*", actions="Pub,Sub")
    subject = h.SubjectHeader(subject="User:alice")
    shown = json.loads(secured.signed(ROOT, R.AUTH_GET_ACL, subject).body)
    assert shown["subject"] == "User:alice"
    assert [entry["resource"] for entry in shown["policies"][0]["entries"]] == ["Topic:T", "Group:G*"]
    assert shown["policies"][0]["entries"][0]["actions"] == ["Pub", "Sub"]
    gone = h.DeletePoliciesHeader(subject="User:alice", resource="Topic:T")
    assert secured.signed(ROOT, R.AUTH_DELETE_ACL, gone).code == C.SUCCESS
    listed = json.loads(secured.signed(ROOT, R.AUTH_LIST_ACL, h.PolicyFilterHeader()).body)
    assert [each["resource"] for each in listed[0]["policies"][0]["entries"]] == ["Group:G*"]
    assert secured.signed(ROOT, R.AUTH_DELETE_ACL, h.DeletePoliciesHeader(subject="User:alice")).code == 0
    assert secured.signed(ROOT, R.AUTH_GET_ACL, subject).body == b""


def test_who_is_no_super_user_cannot_make_or_change_one(secured: Secured):
    secured.make("alice")
    secured.allow("Cluster:*")
    assert secured.make("bob", who=ALICE).code == C.SUCCESS
    made = secured.make("eve", who=ALICE, user_type="super")
    assert (made.code, made.remark) == (C.SYSTEM_ERROR, "The super user can only be create by super user")
    for name, info in (("root", UserInfo(password="mine")), ("alice", UserInfo(user_type="Super"))):
        reply = secured.signed(ALICE, R.AUTH_UPDATE_USER, h.UserHeader(username=name), info)
        assert reply.remark == "The super user can only be update by super user"
    assert secured.signed(ALICE, R.AUTH_DELETE_USER, h.UserHeader(username="root")).code == C.NO_PERMISSION
    assert secured.sends(ROOT).code == C.SUCCESS


def test_users_survive_a_kill_in_files_that_others_cannot_read(tmp_path: Path):
    first = Secured(tmp_path)
    first.make("alice")
    first.allow("Topic:T", actions="Pub")
    first.kill()
    again = Secured(tmp_path)
    assert again.sends(ALICE).code == C.SUCCESS
    assert again.sends(ALICE, "U").code == C.NO_PERMISSION
    again.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="root"), UserInfo(password="n3w"))
    again.close()
    files = list((tmp_path / "config").glob("users.json*"))
    assert {each.name for each in files} >= {"users.json", "users.json.bak"}
    assert {each.stat().st_mode & 0o777 for each in files} == {0o600}
    third = Secured(tmp_path)
    assert third.sends(ROOT).remark == "check signature failed.", "the first user is made once"
    assert third.sends(Credentials("root", "n3w")).code == C.SUCCESS
    third.kill()
    (tmp_path / "other").mkdir()
    LocalFileSystem().replace_text(tmp_path / "other" / "topics.json", "{}")
    assert (tmp_path / "other" / "topics.json").stat().st_mode & 0o077


def test_two_passwords_survive_a_kill_and_slaves_get_both(tmp_path: Path):
    first, new = Secured(tmp_path), Credentials("alice", "new")
    first.make("alice")
    first.allow("Topic:T", actions="Pub")
    added = UserInfo(second_password="new")
    assert first.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), added).code == C.SUCCESS
    listed = first.signed(ROOT, R.AUTH_LIST_USER, h.UserFilterHeader()).body
    assert json.loads(listed)[0] == {
        "username": "alice",
        "userType": "Normal",
        "userStatus": "enable",
        "passwords": 2,
    }
    first.kill()
    again = Secured(tmp_path)
    assert [again.sends(each).code for each in (ALICE, new)] == [C.SUCCESS, C.SUCCESS]
    command = sign_for(Command(code=R.SLAVE_USERS, opaque=99), BROKERS, again.config.address)
    again.give(again.peer, command)
    assert b'"secondPassword":"new"' in again.answer_later(again.peer, command).body
    withdraw = UserInfo(withdraw="first")
    again.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), withdraw)
    assert [again.sends(each).code for each in (ALICE, new)] == [C.NO_PERMISSION, C.SUCCESS]
    again.close()
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "config").glob("users.json*")} == {0o600}


def test_a_withdrawn_password_is_gone_from_the_files_after_half_a_second(tmp_path: Path):
    """From the table, its backup and its journals; docs/security.md says so."""
    secured = Secured(tmp_path)
    secured.make("alice", "the-withdrawn-one")
    header, added = h.UserHeader(username="alice"), UserInfo(second_password="the-one-that-stays")
    assert secured.signed(ROOT, R.AUTH_UPDATE_USER, header, added).code == C.SUCCESS
    fold(secured)
    withdraw = UserInfo(withdraw="first")
    assert secured.signed(ROOT, R.AUTH_UPDATE_USER, header, withdraw).code == C.SUCCESS
    assert names_with(tmp_path, b"the-withdrawn-one"), "the journal has the withdrawal, the table is older"
    fold(secured)
    assert names_with(tmp_path, b"the-withdrawn-one") == set()
    assert names_with(tmp_path, b"the-one-that-stays") == {"users.json", "users.json.bak"}
    assert {each.stat().st_mode & 0o777 for each in (tmp_path / "config").glob("users.json*")} == {0o600}
    secured.close()


def fold(secured: Secured) -> None:
    """Let the half second pass after which changed tables are written."""
    secured.advance(FOLD_MS)
    secured.threads.run_all()


def names_with(directory: Path, secret: bytes) -> set[str]:
    """Return the names of the files that have a secret in them."""
    return {each.name for each in directory.rglob("*") if each.is_file() and secret in each.read_bytes()}


def test_slaves_get_the_table_with_the_brokers_signature_alone(secured: Secured):
    secured.make("alice")
    assert secured.signed(ROOT, R.SLAVE_USERS).code == C.NO_PERMISSION
    assert secured.signed(BROKERS, R.SLAVE_USERS).code == C.NO_PERMISSION, "signed for no purpose"
    command = sign_for(Command(code=R.SLAVE_USERS, opaque=99), BROKERS, secured.config.address)
    secured.give(secured.peer, command)
    assert (
        json.loads(secured.answer_later(secured.peer, command).body)["users"]["alice"]["password"] == "wonder"
    )


def test_while_nobody_is_authenticated_users_cannot_be_changed(tmp_path: Path):
    open_to_all = Conversation(tmp_path)
    peer = FakePeer()
    reply = open_to_all.ask(peer, R.AUTH_CREATE_USER, h.UserHeader(username="eve"), UserInfo(password="x"))
    assert reply.code == C.NO_PERMISSION
    assert "set authenticationEnabled=true" in reply.remark
    open_to_all.close()


def test_authentication_alone_lets_every_user_do_everything(tmp_path: Path):
    secured = Secured(tmp_path, authorization_enabled=False)
    secured.make("alice")
    assert secured.sends(ALICE).code == C.SUCCESS
    assert secured.send(secured.peer).code == C.NO_PERMISSION
    secured.close()


def test_white_lists_exempt_requests_by_code(tmp_path: Path):
    send = int(R.SEND_MESSAGE_V2)
    secured = Secured(tmp_path, authentication_whitelist=frozenset({send}))
    assert secured.send(secured.peer).remark == "username cannot be null.", "it needs a permission"
    assert secured.sends(ROOT).code == C.SUCCESS, "a signature is still accepted"
    secured.close()
    codes = frozenset({send})
    secured = Secured(tmp_path, authentication_whitelist=codes, authorization_whitelist=codes)
    assert secured.send(secured.peer).code == C.SUCCESS
    assert secured.ask(secured.peer, R.GET_BROKER_RUNTIME_INFO).code == C.NO_PERMISSION
    secured.close()


def test_a_dry_run_logs_what_it_would_refuse(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """Each kind is logged once a minute; meanwhile no one can create a user for later."""
    secured = Secured(tmp_path, authorization_dry_run=True)
    secured.make("alice")

    def logged() -> list[str]:
        found = [record.getMessage() for record in caplog.records if "would" in record.getMessage()]
        caplog.clear()
        return found

    for _ in range(3):
        assert secured.sends(ALICE).code == C.SUCCESS
        assert secured.send(secured.peer).code == C.SUCCESS
    unsigned, nobody, denied = sorted(logged(), key=lambda line: ("from 127" in line, "alice" in line))
    assert "username cannot be null." in unsigned
    assert "username cannot be null. (from 127.0.0.1)" in nobody
    assert "User:alice has no permission to access Topic:T" in denied
    secured.clock.advance(60_000)
    assert secured.sends(ALICE).code == C.SUCCESS
    assert any("times=6" in line for line in logged())
    secured.allow("Topic:T", actions="Pub")
    assert secured.sends(ALICE).code == C.SUCCESS
    assert logged() == []
    eve = UserInfo(username="eve", password="x")
    for who in (ALICE, None):
        command = secured.command(R.AUTH_CREATE_USER, h.UserHeader(username="eve"), eve)
        secured.give(secured.peer, command if who is None else sign(command, who))
        assert secured.peer.replies[-1].code == C.NO_PERMISSION
    secured.close()


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"authenticationEnabled": "true", "authorizationDryRun": "true"}, "which it tries out"),
        ({"authorizationEnabled": "true"}, "anyone could use any user's name"),
        (
            {
                "authenticationEnabled": "true", "brokerRole": "SLAVE", "brokerId": "1",
                "namesrvAddr": "127.0.0.1:9876",
            },
            "innerClientAuthenticationCredentials",
        ),
        ({"aclEnable": "true"}, "users and policies are those of ACL 2.0"),
        ({"authenticationProvider": "org.example.Ldap"}, "only Apache.s own providers"),
        ({"authenticationWhitelist": "105;34"}, "is not the code of a request"),
        ({"initAuthenticationUser": "root:hush"}, "cannot be read"),
        ({"initAuthenticationUser": '{"username":"root"}'}, "neither empty"),
        ({"authenticationEnable": "true"}, "did you mean authenticationEnabled"),
    ],
)  # fmt: skip
def test_options_that_would_not_hold_stop_the_start(options: dict[str, str], reason: str):
    with pytest.raises(ConfigError, match=reason) as refused:
        broker_config(options)
    assert "hush" not in str(refused.value)


def test_apaches_options_are_read():
    config, unknown = broker_config(
        {
            "authenticationEnabled": "true",
            "authenticationProvider": (
                "org.apache.rocketmq.auth.authentication.provider.DefaultAuthenticationProvider"
            ),
            "initAuthenticationUser": '{"username":"root","password":"secret"}',
            "authorizationEnabled": "true",
            "authenticationWhitelist": "105, 34",
        }
    )
    assert unknown == []
    assert isinstance(config, BrokerConfig)
    assert config.authentication_whitelist == {105, 34}
    assert config.init_authentication_user is not None
    assert "secret" not in repr(config)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_clients_of_a_user_who_is_gone_are_sent_nothing_any_more(secured: Secured, is_deleted: bool):
    """Replies, checks of transactions, and retries that a member passes on, come without a request."""
    secured.make("alice")
    secured.allow("Topic:T", "Group:G")
    secured.make("bob")
    data = HeartbeatData(
        client_id="alice@1",
        producer_data_set=[ProducerData(group_name="requesters")],
        consumer_data_set=[ConsumerData(group_name="G", subscription_data_set=[subscription()])],
    )
    assert secured.signed(ALICE, R.HEART_BEAT, None, data).code == C.SUCCESS
    producers, consumers = secured.broker.members.producers, secured.broker.members.consumers
    assert producers.connection("alice@1") is secured.peer
    secured.signed(
        ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="bob"), UserInfo(username="bob", password="b")
    )
    assert producers.connection("alice@1") is secured.peer, "nothing has changed for alice"
    if is_deleted:
        secured.signed(ROOT, R.AUTH_DELETE_USER, h.UserHeader(username="alice"))
    else:
        disabled = UserInfo(username="alice", user_status="disable")
        secured.signed(ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), disabled)
    secured.tick()
    assert producers.connection("alice@1") is None
    assert consumers.group("G") is None
    properties = properties_to_text({p.REPLY_TO_CLIENT: "alice@1"})
    header = send_header("DefaultCluster_REPLY_TOPIC", properties=properties)
    assert "not found" in (secured.signed(ROOT, R.SEND_REPLY_MESSAGE_V2, header, b"late").remark or "")
