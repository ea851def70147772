"""Committed offsets: permitted commits, the answer without one, and the state after a crash."""

from hashlib import sha256

import pytest

from libramq.broker.groups import offset_commits
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import BrokerError
from libramq.offsets import commits_ahead
from libramq.remoting import headers as h
from tests.broker.brokers import Conversation, answer
from tests.fakes import FakePeer
from tests.store.stores import remove_old_files


def commit(
    offset: int, group: str = "G", topic: str = "T", queue_id: int = 0
) -> h.UpdateConsumerOffsetHeader:
    return h.UpdateConsumerOffsetHeader(
        consumer_group=group, topic=topic, queue_id=queue_id, commit_offset=offset
    )


def query(talk: Conversation, peer: FakePeer, zero: bool | None = None, queue_id: int = 0, topic: str = "T"):
    header = h.QueryConsumerOffsetHeader(
        consumer_group="G", topic=topic, queue_id=queue_id, set_zero_if_not_found=zero
    )
    reply = talk.ask(peer, R.QUERY_CONSUMER_OFFSET, header)
    return int(reply.ext["offset"]) if reply.code == C.SUCCESS else reply.code


@pytest.fixture
def filled(talk: Conversation, peer: FakePeer) -> Conversation:
    """A topic with ten messages in queue 0, and a group."""
    for n in range(10):
        talk.send(peer, body=str(n).encode())
    talk.beat(peer, "alice")
    return talk


def test_the_committed_offset_is_returned(filled, peer):
    assert filled.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(7)).code == C.SUCCESS
    assert query(filled, peer) == 7
    filled.tell(peer, R.UPDATE_CONSUMER_OFFSET, commit(9))
    assert query(filled, peer) == 9
    assert query(filled, peer, queue_id=1, zero=False) == C.QUERY_NOT_FOUND


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (commit(1, group="Unknown", topic="NoSuch"), C.SUBSCRIPTION_GROUP_NOT_EXIST),
        (commit(1, topic="NoSuch", queue_id=99), C.TOPIC_NOT_EXIST),
        (commit(1, queue_id=4), C.INVALID_PARAMETER),
        (commit(1, queue_id=-1), C.INVALID_PARAMETER),
    ],
)
def test_commits_are_checked_in_upstreams_order(filled, peer, header, code):
    assert filled.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == code


def test_commits_stay_within_the_queue(filled, peer):
    filled.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(1 << 60))
    assert query(filled, peer) == 10
    filled.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(-5))
    assert query(filled, peer) == 0


def test_without_a_commit_a_young_queue_begins_at_0_unless_the_client_declines(filled, peer):
    assert query(filled, peer) == 0
    assert query(filled, peer, zero=True) == 0
    assert query(filled, peer, zero=False) == C.QUERY_NOT_FOUND


def test_a_queue_whose_first_messages_are_gone_is_not_young(tmp_path, peer):
    """Otherwise a new group would start at an offset that no longer exists."""
    talk = Conversation(tmp_path, commit_log_file_bytes=4_096)
    for _ in range(30):
        talk.send(peer, body=bytes(500))
    talk.flush()
    assert remove_old_files(talk.broker.store) > 0
    assert talk.broker.store.min_offset("T", 0) > 0
    assert query(talk, peer) == C.QUERY_NOT_FOUND
    talk.close()


def test_commits_of_one_read_are_one_write_before_any_answer(filled, peer):
    filled.disk.writes.clear()
    commands = [filled.command(R.UPDATE_CONSUMER_OFFSET, commit(n)) for n in range(1, 6)]
    bad = filled.command(R.UPDATE_CONSUMER_OFFSET, commit(1, topic="NoSuch"))
    filled.give(peer, *commands[:2], bad, *commands[2:])
    assert len(filled.disk.writes) == 1
    assert [answer(peer, command).code for command in commands] == [C.SUCCESS] * 5
    assert answer(peer, bad).code == C.TOPIC_NOT_EXIST


def test_an_acknowledged_commit_outlives_a_kill(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.send(peer)
    talk.beat(peer, "alice")
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(1)).code == C.SUCCESS
    talk.kill()
    talk = Conversation(tmp_path)
    assert query(talk, peer) == 1
    talk.close()


def test_what_a_disk_refused_is_written_at_a_stop_in_which_something_else_fails(tmp_path, peer, monkeypatch):
    talk = Conversation(tmp_path)
    talk.send(peer)
    talk.beat(peer, "alice")
    talk.disk.bytes_left = 0
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(1)).code == C.SYSTEM_ERROR
    talk.disk.bytes_left = None
    monkeypatch.setattr(talk.broker.events, "close", lambda: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        talk.close()
    talk = Conversation(tmp_path)
    assert query(talk, peer) == 1
    talk.close()


def test_no_commit_is_acknowledged_while_the_disk_refuses_the_journal(tmp_path, peer):
    """Repeating the commit, which changes nothing in memory, is not acknowledged either."""
    talk = Conversation(tmp_path)
    for _ in range(5):
        talk.send(peer)
    talk.beat(peer, "alice")
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(1)).code == C.SUCCESS
    talk.disk.bytes_left = 10
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(3)).code == C.SYSTEM_ERROR
    talk.disk.bytes_left = 0
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(3)).code == C.SYSTEM_ERROR
    talk.disk.bytes_left = None
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(3)).code == C.SUCCESS
    talk.kill()
    talk = Conversation(tmp_path)
    assert query(talk, peer) == 3
    talk.close()


def test_commits_that_wait_for_a_disk_are_limited(tmp_path, peer, monkeypatch):
    monkeypatch.setattr(offset_commits, "UNWRITTEN_MAX", 50)
    talk = Conversation(tmp_path)
    for _ in range(200):
        talk.send(peer)
    talk.beat(peer, "alice")
    talk.disk.bytes_left = 0
    for n in range(1, 200):
        talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(n, queue_id=n % 2))
    assert len(talk.broker.offsets._unwritten) <= 51
    talk.disk.bytes_left = None
    talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(199))
    talk.kill()
    talk = Conversation(tmp_path)
    assert query(talk, peer) == 199
    talk.close()


def test_offsets_of_lost_messages_return_to_the_end_of_the_queue(tmp_path, peer):
    talk = Conversation(tmp_path)
    for _ in range(5):
        talk.send(peer)
    talk.beat(peer, "alice")
    talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(5))
    end = talk.messages("T")[3].physical_offset
    talk.kill()
    log = next((tmp_path / "commitlog").iterdir())
    with log.open("r+b") as file:
        file.seek(end)
        file.write(bytes(4_000))
    talk = Conversation(tmp_path)
    assert talk.broker.store.max_offset("T", 0) == 3
    assert query(talk, peer) == 3
    talk.close()


# The ends of queues.


def test_the_first_and_last_offsets_of_a_queue_are_returned(filled, peer):
    def ask(code: R, header: h.Header) -> dict[str, str]:
        reply = filled.ask(peer, code, header)
        assert reply.code == C.SUCCESS
        return reply.ext

    queue, empty = h.QueueHeader(topic="T", queue_id=0), h.QueueHeader(topic="T", queue_id=1)
    stored_ms = filled.clock.wall_ms()
    assert ask(R.GET_MAX_OFFSET, queue) == {"offset": "10"}
    assert ask(R.GET_MIN_OFFSET, queue) == {"offset": "0"}
    assert ask(R.GET_EARLIEST_MSG_STORETIME, queue) == {"timestamp": str(stored_ms)}
    assert ask(R.GET_MAX_OFFSET, empty) == {"offset": "0"}
    assert ask(R.GET_EARLIEST_MSG_STORETIME, empty) == {"timestamp": "-1"}


def test_offsets_are_found_by_time(filled, peer):
    first_ms = filled.clock.wall_ms()
    filled.clock.advance(1_000)
    for _ in range(3):
        filled.send(peer)

    def search(timestamp_ms: int, boundary: str | None = None) -> int:
        header = h.SearchOffsetHeader(topic="T", queue_id=0, timestamp=timestamp_ms, boundary_type=boundary)
        return int(filled.ask(peer, R.SEARCH_OFFSET_BY_TIMESTAMP, header).ext["offset"])

    assert search(first_ms) == 0
    assert search(first_ms + 1) == 10
    assert search(first_ms + 1_000) == 10
    assert search(first_ms + 1_000, "UPPER") == 12
    assert search(first_ms, "upper") == 9
    assert search(first_ms + 5_000) >= 12


def test_a_message_is_viewed_by_its_physical_offset(filled, peer):
    third = filled.messages("T")[2]
    reply = filled.ask(peer, R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=third.physical_offset))
    assert reply.code == C.SUCCESS
    assert b"2" in reply.body
    for offset in (third.physical_offset + 1, -1, 1 << 50):
        assert (
            filled.ask(peer, R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=offset)).code == C.SYSTEM_ERROR
        )


def test_a_record_of_a_deleted_topic_is_sent_to_a_slave_that_has_the_same(talk, peer):
    """Other clients do not get it: a deleted topic's content must not be readable by offset."""
    talk.create_topic("T")
    talk.send(peer, body=b"old")
    (message,) = talk.messages("T")
    at = message.physical_offset
    record = talk.ask(peer, R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=at)).body
    talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))

    def view(ours: bytes | None, offset: int = at):
        digest = None if ours is None else sha256(ours).hexdigest()
        return talk.ask(peer, R.VIEW_MESSAGE_BY_ID, h.ViewMessageHeader(offset=offset, lb_sha256=digest))

    assert view(record).body == record
    assert [view(ours).code for ours in (None, b"", record[:-1])] == [C.SYSTEM_ERROR] * 3
    assert view(record[1:], at + 1).code == C.SYSTEM_ERROR


def migrated(root, resets: str, member: FakePeer) -> Conversation:
    """A broker whose directory has pending resets, and ten messages in queue 0 of which six are consumed."""
    before, producer = Conversation(root), FakePeer()
    for n in range(10):
        before.send(producer, body=str(n).encode())
    before.close()
    text = '{"offsetTable":{"T@G":{0:6}},"resetOffsetTable":{"T@G":' + resets + "}}"
    (root / "config" / "consumerOffset.json").write_text(text)
    talk = Conversation(root)
    talk.beat(member, "alice")
    return talk


def test_a_pending_reset_sends_the_next_pull_there_and_later_commits_count(tmp_path, peer):
    """An Apache broker was stopped between an operator's reset and the group's next pull."""
    talk = migrated(tmp_path, "{0:2}", peer)
    assert query(talk, peer) == 2
    talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(8))
    assert query(talk, peer) == 2, "a commit of messages read before the reset"
    moved = talk.pull(peer, queue_offset=8)
    assert (moved.code, moved.remark) == (C.PULL_OFFSET_MOVED, "OFFSET_RESET")
    assert (moved.ext["nextBeginOffset"], moved.ext["minOffset"], moved.ext["maxOffset"]) == ("2", "0", "10")
    assert talk.pull(peer, queue_offset=2).code == C.SUCCESS
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(7)).code == C.SUCCESS
    assert query(talk, peer) == 7
    talk.kill()
    again = Conversation(tmp_path)
    assert query(again, peer) == 7
    again.close()


def test_a_pull_that_begins_at_the_reset_is_served_at_once(tmp_path, peer):
    """This holds for a member that queried its offset; others may hold messages from before."""
    talk = migrated(tmp_path, "{0:2}", peer)
    assert query(talk, peer) == 2
    assert talk.pull(peer, queue_offset=2).code == C.SUCCESS
    talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, commit(9))
    assert query(talk, peer) == 9
    talk.close()


def test_a_pending_reset_beyond_its_queue_is_cut_to_the_end(tmp_path, peer):
    talk = migrated(tmp_path, "{0:99}", peer)
    assert query(talk, peer) == 10
    assert talk.pull(peer, queue_offset=6).ext["nextBeginOffset"] == "10"
    talk.close()


def test_an_operators_reset_replaces_a_pending_one(tmp_path, peer):
    talk = migrated(tmp_path, "{0:2}", peer)
    header = h.ResetOffsetHeader(topic="T", group="Other", queue_id=0, offset=5, is_force=True)
    talk.beat(peer, "bob", "Other")
    talk.performer.closed(peer)
    talk.broker.offsets._ledger.offsets.reset("Other", "T", 0, 1, 10)
    assert talk.ask(FakePeer(), R.INVOKE_BROKER_TO_RESET_OFFSET, header).code == C.SUCCESS
    assert talk.broker.offsets.query("Other", "T", 0) == 5
    talk.close()


def test_who_asks_hears_where_in_the_log_a_former_topic_was_deleted(filled: Conversation):
    """Spark's source needs it: positions in the former topic do not apply to the next one."""
    peer = FakePeer()

    def since(topic: str = "T") -> int:
        header = h.MaxOffsetHeader(topic=topic, queue_id=0, lb_since=True)
        return int(filled.ask(peer, R.GET_MAX_OFFSET, header).ext["lbSince"])

    assert (since(), since("Other")) == (0, 0)
    filled.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    filled.create_topic("T")
    filled.send(peer)
    first = since()
    assert first > 0
    filled.ask(peer, R.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    filled.create_topic("T")
    assert since() > first
    assert since("Other") == 0


def test_commits_beyond_the_end_of_one_queue_are_bounded_and_end_by_one_write(tmp_path, monkeypatch):
    """A message that reached those of 20,000 groups held the broker for 0.2 s, their journal for 0.4 s."""
    monkeypatch.setattr(commits_ahead, "COMMITS_AHEAD_OF_QUEUE_MAX", 40)
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=2)
    offsets = talk.broker.offsets
    for number in range(40):
        offsets.commit_as_sent(f"G{number}", "T", 0, 2)
    with pytest.raises(BrokerError, match="too many offsets lie beyond"):
        offsets.commit_as_sent("another", "T", 0, 2)
    offsets.commit_as_sent("another", "T", 1, 2)
    offsets.commit_as_sent("G0", "T", 0, 3)  # Its own offset.
    offsets.write()
    talk.send(FakePeer())
    assert offsets.query("G1", "T", 0) == 0
    talk.disk.writes.clear()
    talk.send(FakePeer())
    offsets.write()
    assert len(talk.disk.writes) < 10
    talk.kill()
    again = Conversation(tmp_path).broker.offsets
    assert [again.committed(f"G{number}", "T", 0) for number in range(40)] == [3] + [2] * 39
    assert [again.query(f"G{number}", "T", 0) for number in range(40)] == [0] + [2] * 39
