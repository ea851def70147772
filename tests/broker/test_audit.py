"""The audit of a broker: changes, sign-ins and refusals with their users, as messages of LIBRA_AUDIT."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.auth.audit import COLLECTED_MS, KINDS_MAX, OTHERS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.access import UserInfo
from libramq.message.names import AUDIT_TOPIC
from libramq.remoting import headers as h
from libramq.remoting.credentials import Credentials, sign
from tests.broker.brokers import Conversation
from tests.broker.test_users import ALICE, BROKERS, ROOT, Secured
from tests.fakes import FakePeer


def events(talk: Conversation, kind: str | None = None) -> list[dict[str, Any]]:
    """Return the recorded events once the second is over."""
    talk.advance(COLLECTED_MS)
    talk.tick()
    found = [json.loads(message.body) for message in talk.messages(AUDIT_TOPIC)]
    return [each for each in found if kind in (None, each["kind"])]


@pytest.fixture
def secured(tmp_path: Path) -> Iterator[Secured]:
    made = Secured(tmp_path)
    yield made
    made.close()


def named(event: dict[str, Any]) -> tuple[Any, ...]:
    return event["kind"], event["user"], event["request"], *event["resources"]


def made_topic(name: str) -> h.CreateTopicHeader:
    return h.CreateTopicHeader(
        topic=name,
        default_topic="TBW102",
        read_queue_nums=1,
        write_queue_nums=1,
        perm=6,
        topic_filter_type="SINGLE_TAG",
    )


def test_changes_are_recorded_with_who_made_them(secured: Secured):
    secured.make("alice")
    secured.allow("Topic:orders", "Group:G")
    assert (
        secured.signed(
            ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), UserInfo(user_status="enable")
        ).code
        == 0
    )
    assert secured.signed(ALICE, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, b'{"groupName":"G"}').code == 0
    assert secured.sends(ALICE, "orders").code == C.SUCCESS
    assert secured.signed(ALICE, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="orders")).code == 0
    assert secured.signed(ROOT, R.AUTH_DELETE_USER, h.UserHeader(username="alice")).code == 0
    changes = [named(each) for each in events(secured) if each["kind"] not in ("signedIn", "refused")]
    assert changes == [
        ("created", "root", "AUTH_CREATE_USER", "User:alice"),
        ("created", "root", "AUTH_CREATE_ACL", "User:alice"),
        ("changed", "root", "AUTH_UPDATE_USER", "User:alice"),
        ("created", "alice", "UPDATE_AND_CREATE_SUBSCRIPTIONGROUP", "Group:G"),
        ("deleted", "alice", "DELETE_TOPIC_IN_BROKER", "Topic:orders"),
        ("deleted", "root", "AUTH_DELETE_USER", "User:alice"),
    ]
    assert {each["host"] for each in events(secured)} == {"127.0.0.1"}


def test_a_change_that_fails_is_none(secured: Secured):
    assert secured.make("root").code == C.NO_PERMISSION, "it exists"
    assert secured.signed(ROOT, R.UPDATE_AND_CREATE_TOPIC, made_topic(AUDIT_TOPIC)).code != C.SUCCESS
    assert events(secured, "created") == []


def test_long_work_is_recorded_when_it_is_done(secured: Secured):
    assert secured.signed(ROOT, R.UPDATE_AND_CREATE_TOPIC, made_topic("orders")).code == C.SUCCESS
    assert [named(each) for each in events(secured, "created")] == [
        ("created", "root", "UPDATE_AND_CREATE_TOPIC", "Topic:orders")
    ]


def test_refusals_are_counted_and_a_flood_is_bounded(secured: Secured):
    secured.make("alice")
    for _ in range(200):
        secured.sends(ALICE)
        secured.sends(Credentials("alice", "guessed"))
        secured.send(secured.peer)
    refused = {(each["user"], each["reason"]): each["count"] for each in events(secured, "refused")}
    assert refused == {
        ("alice", "User:alice has no permission to access Topic:T from 127.0.0.1, no matched policies."): 200,
        ("alice", "check signature failed."): 200,
        (None, "username cannot be null."): 200,
    }
    for number in range(3 * KINDS_MAX):
        secured.sends(Credentials(f"eve-{number}", "guessed"))
    assert len(events(secured, "refused")) == 3 + KINDS_MAX + 1


def test_sign_ins_are_recorded_and_peers_are_not(secured: Secured):
    secured.make("alice")
    for _ in range(3):
        secured.sends(ALICE)
        secured.sends(ROOT)
        secured.sends(BROKERS)
    assert [named(each) for each in events(secured, "signedIn")] == [
        ("signedIn", "root", "RocketMQ"),
        ("signedIn", "alice", "RocketMQ"),
    ]


def test_nobody_writes_to_it_and_policies_say_who_reads(secured: Secured):
    secured.make("alice")
    secured.allow("Group:G", actions="Sub")
    assert secured.sends(ROOT, AUDIT_TOPIC).code == C.NO_PERMISSION
    pull = secured.pull_command(topic=AUDIT_TOPIC)
    secured.give(secured.peer, sign(secured.pull_command(topic=AUDIT_TOPIC), ALICE))
    assert secured.peer.replies[-1].code == C.NO_PERMISSION
    secured.allow(f"Topic:{AUDIT_TOPIC}", actions="Sub")
    events(secured)
    secured.give(secured.peer, sign(pull, ALICE))
    assert secured.peer.replies[-1].code == C.SUCCESS
    assert b"AUTH_CREATE_USER" in secured.peer.replies[-1].body


def test_no_secret_is_in_it(secured: Secured):
    secured.make("alice", "hush-hush")
    secured.signed(
        ROOT, R.AUTH_UPDATE_USER, h.UserHeader(username="alice"), UserInfo(second_password="hush-two")
    )
    secured.sends(Credentials("alice", "hush-three"))
    secured.signed(ROOT, R.UPDATE_BROKER_CONFIG, None, b"longPollingEnable=false")
    text = json.dumps(events(secured))
    assert "UPDATE_BROKER_CONFIG" in text
    assert "hush" not in text
    assert "longPolling" not in text


def test_it_survives_a_clean_stop(tmp_path: Path):
    first = Secured(tmp_path)
    first.sends(Credentials("eve", "guessed"))
    first.close()
    again = Secured(tmp_path)
    assert [each["user"] for each in events(again, "refused")] == ["eve"]
    again.close()


@pytest.mark.parametrize("options", [{"authentication_enabled": False}, {"audit_enabled": False}])
def test_without_authentication_or_switched_off_there_is_none(tmp_path: Path, options: dict[str, Any]):
    fields = {
        "authentication_enabled": True,
        "authorization_enabled": options.get("authentication_enabled", True),
    }
    talk = Conversation(tmp_path, **(fields | options))
    talk.send(FakePeer())
    assert AUDIT_TOPIC not in talk.broker.topics
    assert talk.broker.audit is None
    talk.close()


def test_a_slave_writes_it_to_its_log(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    """A slave's store belongs to its master."""
    caplog.set_level("INFO")
    slave = Secured(tmp_path, broker_role="SLAVE", broker_id=1, namesrv_addr="127.0.0.1:1")
    slave.sends(Credentials("eve", "guessed"))
    assert events(slave) == []
    assert "audit" in caplog.text
    assert "User:eve is not found." in caplog.text
    slave.close()


def test_a_flood_from_one_address_does_not_hide_the_refusals_of_another(secured: Secured):
    """The other address has its own connection; the number of omitted refusals of the flood is recorded."""
    flood, other = secured.peer, FakePeer("10.0.0.9:40000")
    for second in range(3):
        for number in range(3 * KINDS_MAX):
            secured.give(
                flood, sign(secured.pull_command(), Credentials(f"eve-{second}-{number}", "guessed"))
            )
        secured.give(other, sign(secured.pull_command(), Credentials("mallory", "guessed")))
        refused = events(secured, "refused")
        assert sum(each["user"] == "mallory" for each in refused) == second + 1
    assert sum(each["count"] for each in refused) == 3 * (3 * KINDS_MAX + 1)
    assert {each["host"] for each in refused if each["reason"] == OTHERS} == {"127.0.0.1"}
