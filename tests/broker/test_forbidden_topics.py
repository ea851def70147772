"""Topics that a group is forbidden to read: by request 353, here or at Apache's broker before."""

import json

from libramq.catalog import group_table
from libramq.catalog.group_table import GroupTable
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.formats.tables import SubscriptionGroupWrapper
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer

#: As Apache's SubscriptionGroupManager writes it; 4 is 1 << PermName.INDEX_PERM_READ, 2 the bit of writing.
GROUPS = {
    "dataVersion": {"counter": 1, "stateVersion": 0, "timestamp": 1_700_000_000_000},
    "forbiddenTable": {"G": {"T": 4, "Written": 2}},
    "subscriptionGroupTable": {"G": {"groupName": "G"}},
}


def test_a_group_does_not_read_a_topic_that_it_was_forbidden(tmp_path, peer):
    path = tmp_path / "config" / "subscriptionGroup.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps(GROUPS))
    talk = Conversation(tmp_path)
    for topic in ("T", "Written", "Other"):
        talk.send(peer, topic)
    reply = talk.pull(peer)
    assert reply is not None
    assert (reply.code, reply.remark) == (C.NO_PERMISSION, "the consumer group[G] is forbidden for topic[T]")
    for group, topic in (("G", "Written"), ("G", "Other"), ("H", "T")):
        reply = talk.pull(peer, group, topic)
        assert reply is not None
        assert reply.code == C.SUCCESS
    talk.ask(peer, R.DELETE_SUBSCRIPTIONGROUP, h.DeleteGroupHeader(group_name="G"))
    reply = talk.pull(peer)  # As Apache's: a group of that name that is created later is another.
    assert reply is not None
    assert reply.code == C.SUCCESS
    talk.close()


def forbid(talk: Conversation, peer, group: str, topic: str, readable: bool | None = None) -> object:
    header = h.GroupForbiddenHeader(group=group, topic=topic, readable=readable)
    reply = talk.ask(peer, R.UPDATE_AND_GET_GROUP_FORBIDDEN, header)
    return json.loads(reply.body) if reply.code == C.SUCCESS else reply.code


def test_a_group_is_forbidden_a_topic_and_allowed_it_again(tmp_path, peer):
    """It survives a kill at once, and a slave takes it over."""
    talk = Conversation(tmp_path)
    for topic in ("T", "U"):
        talk.send(peer, topic)
        talk.pull(peer, "G", topic)
    assert forbid(talk, peer, "G", "T") == {"group": "G", "topic": "T", "readable": True}
    assert forbid(talk, peer, "G", "T", False) == {"group": "G", "topic": "T", "readable": False}
    forbid(talk, peer, "G", "U", False)
    assert talk.pull(peer, "G", "T").code == C.NO_PERMISSION
    assert talk.pull(peer, "H", "T").code == C.SUCCESS
    talk.kill()

    again = Conversation(tmp_path, clock=talk.clock)
    assert forbid(again, peer, "G", "T")["readable"] is False
    assert forbid(again, peer, "G", "T", True)["readable"] is True
    assert [again.pull(peer, "G", topic).code for topic in ("T", "U")] == [C.SUCCESS, C.NO_PERMISSION]
    wrapper = again.broker.tables.groups.wrapper()
    assert wrapper.forbidden_table == {"G": {"U": 4}}
    assert wrapper.subscription_group_table["G"].forbidden_topics is None
    slave = GroupTable(loaded=SubscriptionGroupWrapper())
    for group, config in wrapper.subscription_group_table.items():
        slave.copy(group, config)
    slave.copy_forbidden(wrapper.forbidden_table)
    assert not slave.may_read("G", "U")
    slave.copy_forbidden({})
    assert slave.may_read("G", "U")
    again.close()
    file = json.loads((tmp_path / "config" / "subscriptionGroup.json").read_text())
    assert file["forbiddenTable"] == {"G": {"U": 4}}
    assert "forbiddenTopics" not in file["subscriptionGroupTable"]["G"]


def test_a_pull_that_waits_is_refused_at_once(tmp_path, peer):
    """It would get the next message, and the members' client pulls again only seconds later."""
    talk = Conversation(tmp_path)
    talk.send(peer, "T")
    held, others = FakePeer(), FakePeer()
    for waiting, group in ((held, "G"), (others, "H")):
        assert talk.pull(waiting, group, "T", queue_offset=1, suspend_timeout_millis=9_000) is None
    forbid(talk, peer, "G", "T", False)
    assert [reply.code for reply in held.replies] == [C.NO_PERMISSION]
    talk.send(peer, "T")
    assert ([reply.code for reply in others.replies], len(held.replies)) == ([C.SUCCESS], 1)
    talk.close()


def test_forbidding_is_bounded_and_names_a_topic(tmp_path, peer, monkeypatch):
    monkeypatch.setattr(group_table, "FORBIDDEN_MAX", 1)
    talk = Conversation(tmp_path)
    forbid(talk, peer, "G", "T", False)
    assert forbid(talk, peer, "G", "U", False) == C.SYSTEM_ERROR
    assert forbid(talk, peer, "G", "a/b", False) not in (C.SUCCESS, C.SYSTEM_BUSY)
    assert forbid(talk, peer, "G", "T", True)["readable"] is True
    talk.close()
    closed = Conversation(tmp_path / "2", auto_create_subscription_group=False)
    assert forbid(closed, peer, "nobody", "T", False) == C.SUBSCRIPTION_GROUP_NOT_EXIST
    closed.close()
