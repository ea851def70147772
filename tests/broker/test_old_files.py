"""A broker deletes old files: when it checks, what it keeps, and how groups continue."""

import os
import shutil
from datetime import datetime
from typing import Any

import pytest

from libramq.broker.broker_conf import broker_config
from libramq.broker.config import BrokerConfig
from libramq.broker.files.old_files import CLEAN_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError
from libramq.filesystem import DiskUsage
from libramq.formats.document import decode_body
from libramq.kernel.effect import Thread
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumeStats
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, find_answer
from tests.fakes import FakePeer, ManualClock

FULL = DiskUsage(used_bytes=1 << 60, available_bytes=0)


@pytest.fixture
def talk(tmp_path):
    """A broker that deletes only for lack of space, as the local hour differs between machines."""
    talk = Conversation(tmp_path, commit_log_file_bytes=4_096, disk_max_used_space_ratio=100)
    yield talk
    talk.close()


def fill(talk: Conversation, peer: FakePeer, count: int = 30) -> None:
    for number in range(count):
        assert talk.send(peer, body=b"%03d" % number + bytes(500)).code == C.SUCCESS
    talk.flush()


def clean(talk: Conversation) -> None:
    """Run the next check for old files and its consequences."""
    talk.advance(CLEAN_MS)
    talk.threads.run_all(Thread.DISK)
    talk.performer.follow()


def test_a_full_disk_loses_its_oldest_files_and_pulls_continue_at_the_first_message_left(talk, peer):
    fill(talk, peer)
    talk.beat(peer, "client")
    clean(talk)
    assert talk.broker.store.min_offset("T", 0) == 0, "there is room"
    talk.disk.space = FULL
    clean(talk)
    talk.disk.space = DiskUsage(10, 90)
    first = talk.broker.store.min_offset("T", 0)
    assert 0 < first < 30
    moved = talk.pull(peer, queue_offset=0)
    assert moved is not None
    assert (moved.code, moved.remark) == (C.PULL_OFFSET_MOVED, "OFFSET_TOO_SMALL")
    assert moved.ext["nextBeginOffset"] == moved.ext["minOffset"] == str(first)
    found = talk.pull(peer, queue_offset=first)
    assert found is not None
    assert b"%03d" % first in found.body


def test_deleted_messages_do_not_count_as_lag(talk, peer):
    fill(talk, peer)
    talk.beat(peer, "client")
    talk.disk.space = FULL
    clean(talk)
    first = talk.broker.store.min_offset("T", 0)
    header = h.ConsumeStatsHeader(consumer_group="G", topic="T")
    table = decode_body(talk.ask(peer, R.GET_CONSUME_STATS, header).body, ConsumeStats).offset_table
    (ends,) = (ends for queue, ends in table.items() if queue.queue_id == 0)
    assert (ends.broker_offset, ends.consumer_offset) == (30, first)


def test_a_cold_pull_is_answered_when_its_file_is_deleted(talk, peer):
    fill(talk, peer)
    talk.beat(peer, "client")
    talk.disk.is_cold = True
    command = talk.pull_command(queue_offset=0)
    peer.replies.clear()
    talk.give(peer, command)
    assert not peer.replies
    talk.disk.space = FULL
    clean(talk)
    talk.read_cold()
    found = find_answer(peer, command)
    assert found is not None
    assert found.remark == "OFFSET_TOO_SMALL"


def test_a_broker_with_one_file_never_checks_the_disk(tmp_path, peer):
    talk = Conversation(tmp_path)
    fill(talk, peer, 3)
    talk.disk.space = FULL
    clean(talk)
    deadlines = len(talk.broker.kernel.deadlines)
    assert not any(thread is Thread.DISK for thread, *_ in talk.threads.work)
    assert talk.broker.upkeep.old_files._deadline.due_ms is None
    assert deadlines == len(talk.broker.kernel.deadlines)
    talk.close()


def test_a_disk_whose_usage_is_unreadable_is_checked_again(talk, peer, caplog):
    fill(talk, peer)
    disk_space = talk.disk.disk_space

    def fail(path):
        raise OSError("no such device")

    talk.disk.disk_space = fail  # type: ignore[method-assign]
    clean(talk)
    assert "no such device" in caplog.text
    talk.disk.disk_space = disk_space  # type: ignore[method-assign]
    talk.disk.space = FULL
    clean(talk)
    assert talk.broker.store.min_offset("T", 0) > 0


def test_cleaning_survives_the_deletion_of_a_topic(talk, peer):
    fill(talk, peer)
    talk.disk.space = FULL
    talk.advance(CLEAN_MS)
    is_deleted = False
    while work := [each for each in talk.threads.work if each[0] is Thread.DISK]:
        talk.threads.work.remove(work[0])
        talk.threads.finish(work[0])
        if "_look" in repr(work[0][1]):
            talk.broker.store.delete_topic("T")
            is_deleted = True
        talk.performer.follow()
    assert is_deleted
    assert talk.broker.store.statistics().min_physical_offset > 0


@pytest.mark.parametrize(
    ("text", "hours"), [("04", {4}), ("4", {4}), ("03;15", {3, 15}), ("00; 23;", {0, 23})]
)
def test_cleaning_hours_have_apaches_format(text, hours):
    assert broker_config({"deleteWhen": text})[0].delete_hours == hours


@pytest.mark.parametrize("text", ["", ";", "24", "-1", "four", "04,16", "9" * 5_000])
def test_invalid_hours_are_refused(text):
    with pytest.raises(ConfigError, match="deleteWhen"):
        BrokerConfig(delete_when=text)


def test_without_forced_cleaning_messages_stay_for_their_time(tmp_path, peer):
    talk = Conversation(
        tmp_path, commit_log_file_bytes=4_096, clean_file_forcibly_enable=False, delete_when="04"
    )
    fill(talk, peer)
    talk.disk.space = FULL
    clean(talk)
    assert talk.broker.store.min_offset("T", 0) == 0
    talk.disk.space = DiskUsage(10, 90)
    talk.close()


def free_disk(talk: Conversation, peer: FakePeer, code: R) -> Command:
    """Return the answer to an operator, which may have to wait for the disk."""
    command = talk.command(code)
    talk.give(peer, command)
    for _ in range(20):
        talk.advance(0)
        talk.performer.follow()
        if (found := find_answer(peer, command)) is not None:
            return found
        talk.threads.run_all(Thread.DISK)
    raise AssertionError("no answer")


def rounds(talk: Conversation, count: int) -> None:
    for _ in range(count):
        talk.advance(CLEAN_MS)
        talk.threads.run_all(Thread.DISK)
        talk.performer.follow()


def test_an_operator_deletes_expired_files_at_any_hour(tmp_path, peer):
    """After mqadmin deleteExpiredCommitLog the next twenty rounds count as in an hour of deleteWhen."""
    clock = ManualClock()
    hour = datetime.fromtimestamp(clock.wall_ms() / 1000).astimezone().hour
    talk = Conversation(
        tmp_path,
        clock=clock,
        commit_log_file_bytes=4_096,
        delete_when=f"{(hour + 12) % 24:02}",
        delete_file_batch_max=1,
    )
    fill(talk, peer)
    for path in (tmp_path / "commitlog").iterdir():
        os.utime(path, (1, 1))
    rounds(talk, 2)
    assert talk.broker.store.log_start == 0, "it is not the hour"
    assert free_disk(talk, peer, R.DELETE_EXPIRED_COMMITLOG).code == C.SUCCESS
    rounds(talk, 2)
    assert talk.broker.store.log_start >= 2 * 4_096
    talk.close()


def test_an_operator_removes_the_queues_of_topics_that_are_gone(talk, peer):
    fill(talk, peer, 3)
    talk.send(peer, "Stays", body=b"stays")
    talk.flush()
    talk.broker.topics.delete("T", talk.clock.wall_ms())
    talk.broker.offsets.commit("G", "T", 0, 2)
    assert talk.broker.store.topics() >= {"T", "Stays"}
    assert free_disk(talk, peer, R.CLEAN_UNUSED_TOPIC).code == C.SUCCESS
    assert talk.broker.store.topics() >= {"Stays"}
    assert "T" not in talk.broker.store.topics()
    assert talk.broker.offsets.query("G", "T", 0) is None
    assert [message.body for message in talk.messages("Stays", 0)] == [b"stays"]


def test_an_operator_removes_files_of_queues_that_lead_nowhere(tmp_path, peer):
    """The broker was killed after removing log files and before removing the queue's."""
    options: dict[str, Any] = {
        "commit_log_file_bytes": 4_096, "consume_queue_file_bytes": 200, "disk_max_used_space_ratio": 100,
    }  # fmt: skip
    talk = Conversation(tmp_path, **options)
    fill(talk, peer)
    talk.close()
    queues = tmp_path / "consumequeue" / "T" / "0"
    before = {path.name: path.read_bytes() for path in queues.iterdir()}
    talk = Conversation(tmp_path, **options)
    talk.disk.space = FULL
    clean(talk)
    talk.disk.space = DiskUsage(10, 90)
    kept = {path.name for path in queues.iterdir()}
    assert kept < before.keys()
    talk.close()
    for name in before.keys() - kept:
        (queues / name).write_bytes(before[name])
    talk = Conversation(tmp_path, **options)
    first = talk.broker.store.min_offset("T", 0)
    assert {path.name for path in queues.iterdir()} == before.keys()
    assert free_disk(talk, peer, R.CLEAN_EXPIRED_CONSUMEQUEUE).code == C.SUCCESS
    assert {path.name for path in queues.iterdir()} == kept
    assert talk.broker.store.min_offset("T", 0) == first
    assert free_disk(talk, peer, R.CLEAN_EXPIRED_CONSUMEQUEUE).code == C.SUCCESS
    talk.close()


def test_no_file_of_another_store_is_deleted_that_has_the_place_of_ours(tmp_path, peer):
    """Files are deleted by name; the directory may now hold a restored copy."""
    root, clock = tmp_path / "store", ManualClock()
    hour = datetime.fromtimestamp(clock.wall_ms() / 1000).astimezone().hour
    talk = Conversation(root, clock=clock, commit_log_file_bytes=4_096, delete_when=f"{(hour + 12) % 24:02}")
    fill(talk, peer)
    talk.flush()
    root.rename(tmp_path / "elsewhere")
    shutil.copytree(tmp_path / "elsewhere", root)
    talk.advance(5_000)
    logs = sorted((root / "commitlog").iterdir())
    for path in logs:
        os.utime(path, (1, 1))
    free_disk(talk, peer, R.DELETE_EXPIRED_COMMITLOG)
    rounds(talk, 5)
    talk.close()
    assert sorted((root / "commitlog").iterdir()) == logs
