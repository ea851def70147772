"""A full disk: consumers continue."""

import errno
import random
import shutil
import zlib
from pathlib import Path

import pytest

from libramq.broker.broker import Broker
from libramq.broker.broker_conf import broker_config
from libramq.broker.config import BrokerConfig
from libramq.broker.machine import Machine
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode
from libramq.errors import ConfigError
from libramq.filesystem import DiskUsage
from libramq.formats.tables import SubscriptionGroupConfig
from libramq.kernel.effect import Thread
from libramq.remoting import headers as h
from libramq.remoting.body.coordination import GroupJoinBody
from libramq.remoting.command import Command
from libramq.store.log.append import StoreMessage
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from libramq.wire.kafka.apis.topics import CreatableTopic, CreateTopicsRequest, DeleteTopicsRequest
from libramq.wire.kafka.error_code import ErrorCode
from tests.broker.brokers import Conversation
from tests.broker.test_group_lag import Metered
from tests.fakes import FakePeer, ManualClock
from tests.protocols.kafka.peers import KafkaEndpoint


def test_a_new_group_pulls_from_a_full_disk(tmp_path):
    """The pull creates the group implicitly; a failure to record that must not fail the pull."""
    talk, peer = Conversation(tmp_path), FakePeer()
    assert talk.send(peer, body=b"before").code == ResponseCode.SUCCESS
    talk.disk.bytes_left = 0
    talk.beat(peer, "client", group="New")
    pulled = talk.pull(peer, group="New")
    assert pulled is not None
    assert pulled.code == ResponseCode.SUCCESS
    assert b"before" in pulled.body
    talk.disk.bytes_left = None
    for _, fold in talk.broker.tables.plan_folds():
        fold.write()
        fold.written()
    talk.kill()
    again = Conversation(tmp_path)
    assert "New" in again.broker.groups
    assert "%RETRY%New" in again.broker.topics
    again.close()


def test_producers_are_refused_before_the_disk_is_full_and_consumers_are_not(tmp_path, caplog):
    talk, peer = Conversation(tmp_path), FakePeer()
    percent = 90.0
    talk.disk.used_percent = lambda _: percent  # type: ignore[method-assign]
    talk.advance(1_000)
    assert talk.send(peer, body=b"room").code == ResponseCode.SUCCESS
    percent = 90.1
    for _ in range(3):
        talk.advance(1_000)
        refused = talk.send(peer, topic="Another", body=b"refused")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "90.1 % full" in (refused.remark or "")
    assert "diskSpaceWarningLevelRatio" in (refused.remark or "")
    assert "Another" not in talk.broker.topics
    assert sum("sends are refused" in record.message for record in caplog.records) == 1
    talk.beat(peer, "client")
    pulled = talk.pull(peer)
    assert pulled is not None
    assert b"room" in pulled.body
    percent = 89.0
    talk.advance(1_000)
    assert talk.send(peer, body=b"again").code == ResponseCode.SUCCESS
    talk.close()


def test_a_full_disk_is_logged_once_a_minute_and_refuses_changes_with_its_reason(tmp_path, caplog):
    """Below the warning level no line said that every send was refused; `updateTopic` got "OSError"."""
    talk, peer = Conversation(tmp_path), FakePeer()
    talk.create_topic("T")
    talk.create_topic("U")
    kafka = KafkaEndpoint(talk).peer()
    talk.disk.bytes_left = 0
    for _ in range(70):
        talk.advance(1_000)
        assert talk.send(peer, body=b"refused").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert len([each for each in caplog.messages if "messages are refused" in each]) == 2
    mode = {"topic": "U", "consumerGroup": "G", "mode": "POP", "popShareQueueNum": 1}
    answers = [
        talk.create_topic("V"),
        talk.ask(peer, R.DELETE_TOPIC_IN_BROKER, {"topic": "U"}),
        talk.ask(peer, R.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, SubscriptionGroupConfig(group_name="G")),
        talk.ask(peer, R.SET_MESSAGE_REQUEST_MODE, None, mode),
    ]
    for answer in answers:
        assert answer.code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert "no room" in (answer.remark or "")
    wanted = CreatableTopic(name="V", num_partitions=1, replication_factor=1)
    (created,) = kafka.ask(CreateTopicsRequest(topics=(wanted,))).topics
    assert created.error_code == ErrorCode.KAFKA_STORAGE_ERROR
    assert "Traceback" not in caplog.text
    talk.disk.bytes_left = None
    talk.advance(1_000)
    assert talk.send(peer, body=b"taken").code == ResponseCode.SUCCESS
    assert talk.create_topic("V").code == ResponseCode.SUCCESS
    talk.close()


def test_a_topic_whose_deletion_a_full_disk_refuses_is_still_there(tmp_path, caplog):
    """The table had dropped it when the note of its deletion was refused: a new one had the old messages."""
    codes: set[int] = set()
    for room in range(0, 400, 5):
        talk, producer = Conversation(tmp_path / str(room)), FakePeer()
        kafka = KafkaEndpoint(talk).peer()
        kafka.create("T", 1)
        talk.create_topic("Other")
        for _ in range(3):
            assert talk.send(producer, topic="T").code == ResponseCode.SUCCESS
        talk.disk.bytes_left = room
        for _ in range(2):
            (deleted,) = kafka.ask(DeleteTopicsRequest(topic_names=("T",))).responses
            codes.add(deleted.error_code)
            is_gone = deleted.error_code != ErrorCode.KAFKA_STORAGE_ERROR
            assert ("T" in talk.broker.topics, talk.broker.store.max_offset("T", 0)) == (
                (False, 0) if is_gone else (True, 3)
            ), room
        talk.disk.bytes_left = None
        (deleted,) = kafka.ask(DeleteTopicsRequest(topic_names=("T",))).responses
        assert (deleted.error_code == ErrorCode.NONE) != is_gone
        kafka.create("T", 1)
        assert talk.broker.store.max_offset("T", 0) == 0, room
        talk.close()
    assert codes == {
        ErrorCode.NONE, ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    }  # fmt: skip
    assert "Traceback" not in caplog.text


def test_what_a_full_disk_keeps_from_being_written_is_logged_once(tmp_path, caplog):
    """Each progress file and each group's state logged a line a second, perhaps to the full disk."""

    def no_space(*_: object) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    talk, peer = Conversation(tmp_path), FakePeer()
    talk.send(peer, body=b"x")
    talk.beat(peer, "alice", stock=False)
    talk.beat(peer, "alice", group="Other")
    header = {"consumerGroup": "Other", "topic": "T", "queueId": 0, "commitOffset": 1}
    assert talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.SUCCESS
    talk.flush()
    talk.disk.bytes_left, writes = 0, talk.disk.replace_text
    talk.disk.replace_text = no_space  # type: ignore[method-assign]
    joins = h.GroupJoinHeader(consumer_group="G", client_id="alice", lb_session_ms=600_000)
    talk.give(peer, talk.command(R.GROUP_JOIN, joins, GroupJoinBody(subscriptions={"T": "*"})))
    for _ in range(30):
        talk.threads.run_all(Thread.DISK)
        talk.advance(1_000)
    begun = ("progress not written", "group state not written")
    logged = [each.partition(" reason=")[0] for each in caplog.messages if each.startswith(begun)]
    assert logged == [
        "group state not written; no queue is granted until it is group=G",
        "progress not written; retrying file=consumerOffset.json",
    ]
    talk.disk.bytes_left, talk.disk.replace_text = None, writes  # type: ignore[method-assign]
    talk.close()


@pytest.mark.parametrize("end", ["clean stop", "kill", "power cut"])
def test_a_broker_starts_on_a_full_disk_and_serves_what_it_has(end):
    """A restart used to end with "No space left"."""
    disk, clock = MemoryDisk(VirtualTime(), random.Random(5)), ManualClock()
    broker = open_on(disk, clock)
    for number in range(200):  # Several files of consume queues.
        assert broker.store.append_batch([StoreMessage("T", 0, b"%d" % number)])[0].is_ok
    broker.offsets.commit("G", "T", 0, 100)
    broker.offsets.write()
    if end == "clean stop":
        broker.close()
    else:
        broker.store.flush()
        broker.store.append_batch([StoreMessage("T", 1, b"not flushed")])
    disk.power_cut() if end == "power cut" else disk.process_died()
    disk.write_error_chance = 1.0
    for _ in range(2):  # It may be started again.
        broker = open_on(disk, clock)
        assert broker.store.max_offset("T", 0) == 200
        assert broker.store.read("T", 0, 199, 1).count == 1
        assert broker.offsets.query("G", "T", 0) in ((100, None) if end == "power cut" else (100,))
        assert not broker.store.append_batch([StoreMessage("T", 0, b"refused")])[0].is_ok
        disk.process_died()
    broker = open_on(disk, clock)
    disk.write_error_chance = 0.0
    clock.advance(1_000)
    assert broker.store.append_batch([StoreMessage("T", 0, b"room again")])[0].is_ok
    disk.process_died()
    broker = open_on(disk, clock)
    assert broker.store.recovery is not None
    assert not broker.store.recovery.clean
    assert broker.store.max_offset("T", 0) == 201
    broker.close()


def open_on(disk: MemoryDisk, clock: ManualClock) -> Broker:
    config = BrokerConfig(store_path="/broker", commit_log_file_bytes=1 << 16, consume_queue_file_bytes=2_000)
    return Broker(
        config,
        Machine(clock=clock, filesystem=disk, randomness=random.Random(1)),
    )


@pytest.mark.parametrize("how", ["removed", "moved", "exchanged", "log removed"])
def test_sends_are_refused_once_the_store_is_gone(tmp_path, how, caplog):
    """Sends were still acknowledged, but went to files that no reader would find."""
    root = tmp_path / "store"
    talk, peer = Conversation(root), FakePeer()
    assert talk.send(peer, body=b"kept").code == ResponseCode.SUCCESS
    talk.advance(1_000)
    if how == "moved":
        root.rename(tmp_path / "elsewhere")
    else:
        shutil.rmtree(root / "commitlog" if how == "log removed" else root)
    if how == "exchanged":
        root.mkdir()
    talk.send(peer, body=b"not noticed yet")
    for _ in range(5):
        talk.advance(1_000)
    refused = talk.send(peer, body=b"refused")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert f"{root}{'/commitlog' if how == 'log removed' else ''} was removed or exchanged" in (
        refused.remark or ""
    )
    assert len([each for each in caplog.messages if "accepts no more messages" in each]) == 1
    talk.close()


@pytest.mark.parametrize("how", ["removed", "exchanged"])
def test_a_store_that_is_gone_is_noticed_though_nothing_is_stored(tmp_path, how, caplog):
    """Commits and resets were still acknowledged; their journals recreated the directory."""
    root = tmp_path / "store"
    talk, peer = Conversation(root), FakePeer()
    talk.beat(peer, "client")
    for _ in range(3):
        assert talk.send(peer, queue_id=0).code == ResponseCode.SUCCESS
    assert commit(talk, peer, 1).code == ResponseCode.SUCCESS
    talk.advance(20_000)
    root.rename(tmp_path / "elsewhere")
    if how == "exchanged":
        shutil.copytree(tmp_path / "elsewhere", root)
    talk.advance(5_000)
    assert len([each for each in caplog.messages if f"{root} was removed or exchanged" in each]) == 1
    for offset in (2, 2):
        refused = commit(talk, peer, offset)
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert f"{root} was removed or exchanged" in (refused.remark or "")
    before = files(root)
    topic = h.CreateTopicHeader(
        topic="U", default_topic="TBW102", read_queue_nums=1, write_queue_nums=1, perm=6
    )
    assert talk.ask(peer, R.UPDATE_AND_CREATE_TOPIC, topic).code != ResponseCode.SUCCESS
    talk.advance(20_000)
    assert len([each for each in caplog.messages if str(root) in each]) == 1
    talk.close()
    assert files(root) == before
    again = Conversation(tmp_path / "elsewhere")
    assert again.broker.offsets.query("G", "T", 0) == 1
    again.close()


def commit(talk: Conversation, peer: FakePeer, offset: int) -> Command:
    header = h.UpdateConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=offset)
    return talk.ask(peer, R.UPDATE_CONSUMER_OFFSET, header)


def files(root: Path) -> dict[Path, int]:
    return {each: zlib.crc32(each.read_bytes()) for each in root.rglob("*") if each.is_file()}


def test_the_log_may_have_a_disk_of_its_own(tmp_path, peer):
    """With storePathCommitLog, either disk filling up makes the broker delete files and refuse producers."""
    log = tmp_path / "disk2" / "log"
    config, unknown = broker_config(
        {"storePathRootDir": str(tmp_path / "store"), "storePathCommitLog": str(log)}
    )
    assert not unknown
    talk = Conversation(tmp_path / "store", commit_log_path=config.commit_log_path)
    assert talk.send(peer, body=b"one").code == ResponseCode.SUCCESS
    talk.disk.used_percent = lambda path: 99 if path == log else 10  # type: ignore[method-assign]
    talk.advance(2_000)
    refused = talk.send(peer, body=b"two")
    assert refused.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert str(log) in (refused.remark or "")
    talk.close()
    assert [path.name for path in log.iterdir()] == [f"{0:020d}"]
    again = Conversation(tmp_path / "store", commit_log_path=str(log))
    assert [message.body for queue_id in range(4) for message in again.messages("T", queue_id)] == [b"one"]
    again.close()


@pytest.mark.parametrize(
    ("name", "value"),
    [("storePathCommitLog", "/a,/b"), ("readOnlyCommitLogStorePaths", "/a")],
)
def test_a_log_in_several_directories_is_refused(name, value):
    with pytest.raises(ConfigError, match="one"):
        broker_config({name: value})


def test_readiness_follows_the_disk_though_nobody_sends(tmp_path):
    """It reported ready on a full disk, and unready after space was freed, until the next send."""
    talk, peer = Conversation(tmp_path), FakePeer()
    metered = Metered(talk)
    talk.create_topic("T")

    def refuses() -> bool:
        metered.look()
        return metered.value("libra_store_refuses") == 1

    assert not refuses()
    talk.disk.space = DiskUsage(used_bytes=91, available_bytes=9)
    assert refuses()
    assert "91.0 % full" in (metered.server.not_ready or "")
    talk.disk.space = DiskUsage(used_bytes=1, available_bytes=90)  # It filled up between two looks.
    talk.disk.bytes_left = 0
    assert not refuses()
    assert talk.send(peer).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert refuses()
    assert refuses()
    assert "no space left" in (metered.server.not_ready or "")
    talk.disk.bytes_left, talk.disk.space = None, DiskUsage(1, 1 << 30)
    assert not refuses()
    assert talk.send(peer).code == ResponseCode.SUCCESS
    talk.close()


def test_a_slave_is_ready_on_a_disk_on_which_its_master_would_refuse_sends(tmp_path):
    """The slave keeps storing its master's records as long as there is room."""
    talk = Conversation(tmp_path, broker_role="SLAVE", broker_id=1, namesrv_addr="127.0.0.1:1")
    metered = Metered(talk)
    talk.disk.space = DiskUsage(used_bytes=91, available_bytes=9)
    metered.look()
    assert metered.value("libra_store_refuses") == 0
    assert "full" not in (metered.server.not_ready or "")
    talk.close()


def test_what_is_refused_for_another_reason_than_room_is_refused_until_a_message_is_stored(tmp_path):
    """A disk without inodes, a quota: the broker was ready two seconds after each refusal."""
    talk, peer = Conversation(tmp_path), FakePeer()
    metered = Metered(talk)
    talk.create_topic("T")
    talk.disk.space = DiskUsage(1, 1 << 30)
    talk.disk.bytes_left = 0
    assert talk.send(peer).code == ResponseCode.SERVICE_NOT_AVAILABLE
    for _ in range(3):
        metered.look()
        assert metered.value("libra_store_refuses") == 1
        assert "no space left" in (metered.server.not_ready or "")
    talk.disk.bytes_left = None
    assert talk.send(peer).code == ResponseCode.SUCCESS
    metered.look()
    assert metered.value("libra_store_refuses") == 0
    talk.close()


def test_without_a_free_byte_members_read_but_none_joins(tmp_path):
    """operations.md promises this, and no more."""
    talk, peer, member = Conversation(tmp_path), FakePeer(), FakePeer("10.0.0.9:1")
    talk.create_topic("T", 1)
    talk.send(peer, body=b"before", queue_id=0)
    talk.beat(peer, "client")
    talk.disk.bytes_left = 0
    pulled = talk.pull(peer)
    assert pulled is not None
    assert b"before" in pulled.body
    assert "journalled" in (commit(talk, peer, 1).remark or "")
    joins = h.GroupJoinHeader(consumer_group="C", client_id="alice", lb_session_ms=600_000)
    body = GroupJoinBody(subscriptions={"T": "*"})
    assert b'"queues":[]' in talk.ask(member, R.GROUP_JOIN, joins, body).body
    talk.advance(5_000)
    joined = talk.ask(member, R.GROUP_JOIN, joins, body)
    assert joined.code == ResponseCode.SYSTEM_BUSY
    assert "look at the broker's disk" in (joined.remark or "")
    talk.disk.bytes_left = None
    talk.close()
