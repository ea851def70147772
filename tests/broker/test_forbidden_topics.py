"""Topics that Apache's broker was asked to forbid a group (request 353) stay forbidden in ours."""

import json

from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation

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
