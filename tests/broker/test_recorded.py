"""Under SYNC_FLUSH changes of tables are on the disk before any client sees them."""

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import GroupJoinBody
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, find_answer
from tests.fakes import FakePeer


def create_topic(talk: Conversation) -> Command:
    header = h.CreateTopicHeader(topic="T", read_queue_nums=4, write_queue_nums=4, perm=6)
    return talk.command(RequestCode.UPDATE_AND_CREATE_TOPIC, header)


def create_group(talk: Conversation) -> Command:
    body = SubscriptionGroupConfig(group_name="G")
    return talk.command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, body)


@pytest.mark.parametrize("create", [create_topic, create_group])
def test_a_creation_is_acknowledged_when_its_journal_is_synced(tmp_path, create):
    talk, peer = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH"), FakePeer()
    talk.disk.synced.clear()
    command = create(talk)
    talk.give(peer, command)
    assert find_answer(peer, command) is None
    assert talk.disk.synced == []
    talk.flush()
    answered = find_answer(peer, command)
    assert answered is not None
    assert answered.code == ResponseCode.SUCCESS
    talk.close()


def test_members_are_notified_when_their_groups_journal_is_synced(tmp_path):
    """A join is answered only once its journal is synced, which one flush does."""
    talk, peer = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH"), FakePeer()
    talk.give(peer, create_topic(talk))
    talk.flush()
    header = h.GroupJoinHeader(consumer_group="G", client_id="alice", lb_session_ms=60_000)
    joining = talk.command(RequestCode.GROUP_JOIN, header, GroupJoinBody(subscriptions={"T": "*"}))
    talk.give(peer, joining)
    talk.coordinate()
    assert find_answer(peer, joining) is None
    talk.flush()
    answered = find_answer(peer, joining)
    assert answered is not None
    assert answered.code == ResponseCode.SUCCESS
    talk.close()
