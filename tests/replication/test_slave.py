"""A slave copies its master's log byte for byte, and is cut where the two differ."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.codes import RequestCode, ResponseCode
from libramq.fencing import Claim, FenceGrant
from libramq.formats.tables import MessageRequestMode
from libramq.message.queue import MessageQueue
from libramq.message.record import BLANK_MAGIC
from libramq.remoting import headers as h
from libramq.replication.ha_client import RETRY_MS, SILENT_MS_MAX, State
from tests.broker.brokers import Conversation, find_answer
from tests.fakes import FakePeer
from tests.replication.pairs import FILE_BYTES, MASTER, Pair, log_of


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.master.create_topic("T")
    yield pair
    pair.close()


def bodies(talk: Conversation, topic: str = "T") -> list[bytes]:
    return [message.body for message in talk.messages(topic)]


def is_copying(pair: Pair) -> bool:
    slave = pair.slave.broker.replication.slave
    return slave is not None and slave.client.state is State.COPYING


def send(pair: Pair, *texts: str) -> None:
    for text in texts:
        assert pair.master.send(FakePeer(), body=text.encode()).code == ResponseCode.SUCCESS


def kept_aside(pair: Pair) -> bytes:
    """Return the data that the slave set aside when its log was cut."""
    directory = pair.slave.broker.store.config.root / "damaged"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*"))) if directory.exists() else b""


def test_a_slave_copies_the_log_and_serves_its_messages(pair: Pair) -> None:
    send(pair, "before")
    pair.run(100)
    assert is_copying(pair)
    send(pair, "after")
    pair.run()
    assert log_of(pair.slave) == log_of(pair.master)
    assert bodies(pair.slave) == [b"before", b"after"]
    pulled = pair.slave.pull(FakePeer(), topic="T")
    assert pulled is not None
    assert pulled.code == ResponseCode.SUCCESS
    (slave,) = pair.master.broker.replication.service.slaves()
    assert slave.acknowledged == pair.master.broker.store.end


@pytest.mark.parametrize("read_bytes", [1, 11, 4096])
def test_the_log_arrives_in_pieces_of_any_size(tmp_path: Path, read_bytes: int) -> None:
    pair = Pair(tmp_path, read_bytes=read_bytes)
    pair.master.create_topic("T")
    send(pair, "one", "two" * 500, "three")
    pair.run(100)
    assert log_of(pair.slave) == log_of(pair.master)
    assert bodies(pair.slave) == [b"one", b"two" * 500, b"three"]
    pair.close()


def test_files_end_where_the_masters_do(pair: Pair) -> None:
    """Blanks are part of the log, and a record may be larger than a block."""
    for _ in range(5):
        pair.master.send(FakePeer(), body=bytes(400_000))
        pair.run(100)
    assert pair.master.broker.store.end > 2 * FILE_BYTES
    copied = log_of(pair.slave)
    assert copied == log_of(pair.master)
    assert BLANK_MAGIC.to_bytes(4) in copied
    assert len(bodies(pair.slave)) == 5


def test_an_empty_slave_begins_at_the_masters_newest_file(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.master.create_topic("T")
    for _ in range(5):
        pair.master.send(FakePeer(), body=bytes(400_000))
    pair.run(100)
    store = pair.slave.broker.store
    assert store.log_start == 2 * FILE_BYTES
    assert store.end == pair.master.broker.store.end
    assert log_of(pair.slave) == log_of(pair.master)[2 * FILE_BYTES :]
    assert store.min_offset("T", 0) == 4
    assert len(bodies(pair.slave)) == 1
    pair.close()


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_slave_continues_where_it_ended(pair: Pair, is_killed: bool) -> None:
    send(pair, "one")
    pair.run(100)
    pair.part()
    if is_killed:
        pair.slave.kill()
    else:
        pair.slave.close()
    send(pair, "two")
    pair.is_reachable = True
    pair.open_slave()
    pair.run(RETRY_MS)
    assert log_of(pair.slave) == log_of(pair.master)
    assert bodies(pair.slave) == [b"one", b"two"]
    assert not kept_aside(pair)


def test_a_master_that_was_away_is_found_again(pair: Pair) -> None:
    pair.run(100)
    pair.part()
    send(pair, "while it was away")
    pair.run(10_000)
    assert not is_copying(pair)
    pair.is_reachable = True
    pair.run(RETRY_MS)
    assert bodies(pair.slave) == [b"while it was away"]


def test_a_slave_that_is_started_first_finds_its_master(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.is_reachable = False
    pair.run(1_000)
    pair.is_reachable = True
    pair.run(5_000)
    assert is_copying(pair)
    pair.close()


def test_a_silent_master_is_given_up(pair: Pair) -> None:
    pair.run(100)
    pair.holds_blocks = True
    wire = pair.wire
    pair.run(SILENT_MS_MAX + 10_000)
    assert wire is not None
    assert not wire.is_open
    pair.holds_blocks = False
    pair.run(RETRY_MS)
    assert is_copying(pair)


def lose_the_end(pair: Pair, saved: Path, *texts: str) -> None:
    """Restart the master as it was when `saved` was copied, and send it other messages."""
    pair.part()
    pair.run()
    root = pair.master.broker.store.config.root
    pair.master.kill()
    shutil.rmtree(root)
    shutil.copytree(saved, root)
    pair.open_master()
    send(pair, *texts)
    pair.is_reachable = True


def save(pair: Pair, to: Path) -> Path:
    shutil.copytree(pair.master.broker.store.config.root, to)
    return to


@pytest.mark.parametrize("texts", [(), ("c",), ("c", "d"), ("longer than what was lost", "and", "more")])
def test_a_slave_is_cut_to_what_it_shares_with_its_master(
    pair: Pair, tmp_path: Path, texts: tuple[str, ...]
) -> None:
    """The master lost what was not on its disk, and stored other messages: longer or shorter than before."""
    send(pair, "a")
    pair.run(100)
    saved = save(pair, tmp_path / "saved")
    send(pair, "b", "b2")
    pair.run(1_000)
    pair.slave.flush()
    lost = log_of(pair.slave)[saved_end(saved) :]
    lose_the_end(pair, saved, *texts)
    pair.run(5_000)
    assert log_of(pair.slave) == log_of(pair.master)
    assert bodies(pair.slave) == [b"a", *(text.encode() for text in texts)]
    assert kept_aside(pair) == lost
    send(pair, "further")
    pair.run(1_000)
    pair.slave.kill()
    pair.open_slave()
    assert bodies(pair.slave)[-1] == b"further"


def saved_end(saved: Path) -> int:
    """Return where the records of a saved log of one file end."""
    data = (saved / "commitlog" / f"{0:020d}").read_bytes()
    end = 0
    while size := int.from_bytes(data[end : end + 4]):
        end += size
    return end


def test_a_slave_that_shares_nothing_keeps_what_it_has(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If its master returns with an empty disk, the slave may have the last copy."""
    saved = save(pair, tmp_path / "saved")
    send(pair, "the last copy")
    pair.run(100)
    had = log_of(pair.slave)
    lose_the_end(pair, saved, "another")
    pair.run(5_000)
    assert not is_copying(pair)
    assert log_of(pair.slave) == had
    assert caplog.text.count("nothing of this slave's log") == 1


def test_the_master_of_another_cluster_is_refused(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pair = Pair(tmp_path)
    pair.clusters = {"Elsewhere": ["broker-a"], "DefaultCluster": ["broker-b"]}
    pair.run(5_000)
    assert not is_copying(pair)
    expected = (
        f"the master of broker-a at {MASTER} belongs to cluster Elsewhere, and this slave to DefaultCluster"
    )
    assert caplog.text.count(expected) == 1
    pair.close()


def test_a_slave_with_files_of_another_size_says_so(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    pair.slave.close()
    pair.open_slave(commit_log_file_bytes=300_000)
    pair.master.send(FakePeer(), body=bytes(400_000))
    pair.run(5_000)
    assert "mappedFileSizeCommitLog" in caplog.text


def test_a_slave_whose_store_is_gone_leaves_its_master_alone(
    pair: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It connected again each second, with three lines there and two at the master."""
    pair.run(100)
    assert is_copying(pair)
    root = pair.slave.broker.store.config.root
    root.rename(tmp_path / "elsewhere")
    root.mkdir()
    send(pair, "not noticed yet")
    pair.run(3_000)
    send(pair, "refused")
    pair.run(3_000)
    said = [each for each in caplog.messages if "cannot be copied" in each]
    assert len(said) == 1
    assert "was removed or exchanged" in said[0]
    caplog.clear()
    pair.run(30_000)
    assert not caplog.messages


def test_under_sync_flush_a_slave_reports_what_is_on_its_disk(tmp_path: Path) -> None:
    pair = Pair(tmp_path)
    pair.slave.close()
    pair.open_slave(flush_disk_type="SYNC_FLUSH")
    pair.run(100)
    pair.slave.disk.fails_sync = True
    send(pair, "not on the disk")
    pair.run(1_000)
    assert pair.slave.broker.store.end == pair.master.broker.store.end
    (slave,) = pair.master.broker.replication.service.slaves()
    assert slave.acknowledged == 0
    assert bodies(pair.slave) == []
    pair.slave.kill()
    pair.master.close()


def test_what_only_a_master_does_is_refused_as_apaches_slave_does(pair: Pair) -> None:
    pair.run(100)
    slave, peer = pair.slave, FakePeer()
    assert slave.send(peer).code == ResponseCode.SYSTEM_BUSY
    created = slave.create_topic("New")
    assert created.code == ResponseCode.SYSTEM_ERROR
    assert created.remark == (
        "Can't modify topic or subscription group from slave broker, please execute it from master broker."
    )
    recalled = slave.ask(
        peer, RequestCode.RECALL_MESSAGE, h.RecallMessageHeader(topic="T", recall_handle="h")
    )
    assert (recalled.code, recalled.ext) == (
        ResponseCode.SLAVE_NOT_AVAILABLE,
        {"MSG_REGION": "DefaultRegion"},
    )
    mode = {"topic": "T", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}
    assert slave.ask(peer, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode).remark == created.remark
    assert slave.broker.store.end == 0
    committed = slave.ask(
        peer,
        RequestCode.UPDATE_CONSUMER_OFFSET,
        h.UpdateConsumerOffsetHeader(
            consumer_group="G", topic="T", queue_id=0, commit_offset=0, lb_member="m", lb_queue_epoch=1
        ),
    )
    assert committed.code == ResponseCode.SYSTEM_BUSY


def test_without_slave_read_enable_a_slave_refuses_pulls(pair: Pair) -> None:
    pair.slave.close()
    pair.open_slave(slave_read_enable=False)
    send(pair, "one")
    pair.run(100)
    pulled = pair.slave.pull(FakePeer())
    assert pulled is not None
    assert pulled.code == ResponseCode.SYSTEM_BUSY


def test_tables_are_the_masters(pair: Pair) -> None:
    """Topics, groups, offsets and delay levels are copied.

    Whatever the master deletes, the slave deletes, too.
    """
    peer = FakePeer()
    pair.master.create_topic("Other")
    send(pair, "one", "two")
    pair.master.pull(peer, group="G")
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=1)
    assert pair.master.ask(peer, RequestCode.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.SUCCESS
    pair.master.send(peer, body=b"later", properties={"DELAY": "1"})
    mode = MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=2)
    pair.master.ask(peer, RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode)
    pair.run(1_000)
    pair.master.advance(0)
    pair.run(12_000)
    master, slave = pair.master.broker, pair.slave.broker
    assert slave.topics.file() == master.topics.file()
    assert slave.groups.wrapper() == master.groups.wrapper()
    assert slave.offsets.query("G", "T", 0) == 1
    assert slave.schedule.offsets == master.schedule.offsets == {1: 1}
    assert slave.tables.request_modes.file() == master.tables.request_modes.file()
    assert slave.tables.request_modes.is_popped("T", "G")
    assert bodies(pair.slave) == [b"one", b"two", b"later"]
    pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="Other"))
    pair.run(12_000)
    assert "Other" not in slave.topics
    pair.slave.close()
    pair.open_slave()
    assert pair.slave.broker.topics.file() == master.topics.file()
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1


def test_a_topic_that_was_deleted_and_made_again_begins_again_at_the_slave(pair: Pair) -> None:
    send(pair, "old", "old")
    pair.run(100)
    pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    pair.master.create_topic("T")
    send(pair, "new")
    pair.run(100)
    assert bodies(pair.slave) == [b"new"]


@pytest.mark.parametrize("subscription", ["*", "none-has-this-tag"])
def test_a_member_of_a_topic_made_again_gets_nothing_of_the_former_one_from_a_slave(
    pair: Pair, subscription: str
) -> None:
    """The master is lost before its slave hears of the deletion, after the member has opened the queue."""
    member = {"topic": "T", "lb_member": "alice", "lb_queue_epoch": 1, "subscription": subscription}
    send(pair, "old", "old")
    pair.run(100)
    pair.part()
    pair.run()
    pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    pair.master.create_topic("T")
    claims = {MessageQueue("T", pair.master.config.broker_name, 0): Claim("alice", 1)}
    pair.master.broker.fences.grant(FenceGrant(group="G", epoch=1, claims=claims))
    opening = h.OpenQueueHeader(
        consumer_group="G", topic="T", queue_id=0, lb_member="alice", lb_queue_epoch=1
    )
    opened = pair.master.ask(FakePeer(), RequestCode.OPEN_QUEUE, opening)
    member["lb_topic_start"] = int(opened.ext["lbTopicStart"])
    assert member["lb_topic_start"] == pair.master.broker.store.end
    pulled = pair.slave.pull(FakePeer(), **member)
    assert pulled is not None
    assert (pulled.code, pulled.ext["nextBeginOffset"]) == (ResponseCode.PULL_NOT_FOUND, "0")
    peer, waiting = FakePeer(), pair.slave.pull_command(**(member | {"suspend_timeout_millis": 15_000}))
    pair.slave.give(peer, waiting)
    send(pair, "new")
    pair.is_reachable = True
    pair.run(5_000)
    if subscription == "*":
        answered = find_answer(peer, waiting)
        assert answered is not None
        assert (answered.code, answered.ext["nextBeginOffset"]) == (ResponseCode.SUCCESS, "1")
        assert b"new" in answered.body


def test_a_slave_that_has_only_records_of_a_deleted_topic_follows_its_master_again(pair: Pair) -> None:
    """Comparing the logs, it must find that they are shared although no queue refers to them any more."""
    send(pair, "old", "old")
    pair.run(100)
    pair.slave.flush()
    pair.part()
    pair.run()
    pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    pair.master.create_topic("T")
    send(pair, "new")
    pair.is_reachable = True
    pair.run(5_000)
    assert is_copying(pair)
    assert log_of(pair.slave) == log_of(pair.master)
    assert kept_aside(pair) == b""
    assert bodies(pair.slave) == [b"new"]


def test_a_slave_that_stood_still_does_not_take_its_master_for_silent(pair: Pair) -> None:
    """The master's data is still in the socket when the timers fire."""
    send(pair, "before")
    pair.run(100)
    assert is_copying(pair)
    pair.slave.extend_deadlines(SILENT_MS_MAX + 5_000)
    assert is_copying(pair)


@pytest.mark.parametrize("offset", [0, 7, 100])
def test_a_slave_moves_no_consumer_that_it_has_nothing_for(tmp_path: Path, offset: int) -> None:
    """The master may have messages that the slave did not receive, or that precede the slave's log."""
    pair = Pair(tmp_path)
    pair.master.create_topic("T")
    for _ in range(5):
        pair.master.send(FakePeer(), body=bytes(400_000))
    pair.run(100)
    assert pair.slave.broker.store.min_offset("T", 0) == 4
    pulled = pair.slave.pull(FakePeer(), queue_offset=offset)
    assert pulled is not None
    assert pulled.code == ResponseCode.PULL_NOT_FOUND
    assert pulled.ext["nextBeginOffset"] == str(offset)
    empty = pair.slave.pull(FakePeer(), queue_id=1, queue_offset=offset)
    assert empty is not None
    assert empty.code == ResponseCode.PULL_NOT_FOUND
    assert empty.ext["nextBeginOffset"] == str(offset)
    pair.close()


def test_a_consumer_ahead_of_a_slave_is_woken_when_that_has_caught_up(pair: Pair) -> None:
    send(pair, "0", "1")
    pair.run(100)
    pair.holds_blocks = True
    peer = FakePeer()
    assert pair.slave.pull(peer, queue_offset=3, suspend_timeout_millis=15_000) is None
    pair.holds_blocks = False
    send(pair, "2", "3")
    pair.run(RETRY_MS)
    (answer,) = peer.replies
    assert answer.code == ResponseCode.SUCCESS
    assert answer.ext["nextBeginOffset"] == "4"


def test_a_slave_knows_a_topic_as_soon_as_it_has_a_message_of_it(pair: Pair) -> None:
    """The tables are copied then, not only every ten seconds.

    Otherwise the topic could not be read until then.
    """
    pair.run(1_000)
    pair.master.create_topic("New")
    pair.master.send(FakePeer(), topic="New", body=b"first")
    pair.run(600)
    pulled = pair.slave.pull(FakePeer(), topic="New")
    assert pulled is not None
    assert pulled.code == ResponseCode.SUCCESS


def leave_slave_behind(pair: Pair) -> None:
    """Have the master delete all files that its slave has, while that is away."""
    pair.part()
    pair.run()
    pair.slave.kill()
    for number in range(30):
        send(pair, f"{number:03}" + "x" * 500)
    root = pair.master.broker.store.config.root
    pair.master.close()
    for path in sorted((root / "commitlog").iterdir())[:-1]:
        path.unlink()
    pair.open_master()
    pair.is_reachable = True


@pytest.mark.parametrize("is_far_behind", [False, True])
def test_a_slave_that_was_away_for_too_long_says_what_to_do(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_far_behind: bool
) -> None:
    """It reads nothing of its log for that, asks ever more rarely, and its master says the same."""
    pair = Pair(tmp_path, commit_log_file_bytes=4_096, max_message_size=1_000)
    try:
        pair.slave.close()
        options = {"commit_log_file_bytes": 4_096, "max_message_size": 1_000}
        pair.open_slave(**options)
        pair.master.create_topic("T")
        send(pair, *("x" * 500 for _ in range(10 if is_far_behind else 1)))
        pair.run(100)
        assert is_copying(pair)
        leave_slave_behind(pair)
        caplog.clear()
        slave = pair.open_slave(**options)
        had = log_of(slave)
        pair.run(5 * 60_000)
        assert not is_copying(pair)
        assert log_of(slave) == had
        said = [each.getMessage() for each in caplog.records if "remove" in each.getMessage()]
        of_slave = [each for each in said if "this slave's log ends at" in each]
        of_master = [each for each in said if "it has the log up to" in each]
        assert 4 <= len(of_slave) <= 9
        assert len(of_master) == len(of_slave)
        assert "ends with what its master does not have" not in caplog.text
    finally:
        pair.close()
