"""Tables and progress files that are cut, flipped, empty, removed, old, or ahead of the store."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from libramq.codes import RequestCode
from libramq.errors import StoreCorrupt
from libramq.formats import fastjson
from libramq.message.names import TRANS_HALF_TOPIC, TRANS_OP_HALF_TOPIC
from libramq.remoting.headers import GroupBeginHeader
from tests.broker.brokers import Conversation, subscription
from tests.broker.test_damaged_timers import missing
from tests.broker.test_pop import Orderly, sent
from tests.broker.test_timers import NOW_MS, advance, send_at
from tests.broker.test_transactions import COMMIT, GROUP, checks, end, prepare
from tests.fakes import FakePeer


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[0] ^= 1  # The first bracket.
    path.write_bytes(data)


DAMAGES: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: os.truncate(path, path.stat().st_size // 2),
    "flipped": flipped,
    "empty": lambda path: os.truncate(path, 0),
    "removed": lambda path: path.unlink(),
}


def stopped(root: Path, *commits: int) -> Path:
    """Leave a broker's files, stopped after each of these commits of the group G; return the table."""
    for offset in commits:
        talk = Conversation(root)
        if talk.broker.store.max_offset("T", 0) < 100:
            for number in range(100):
                talk.send(FakePeer(), body=b"%d" % number)
        talk.broker.offsets.commit("G", "T", 0, offset)
        talk.broker.offsets.write()
        talk.close()
    return root / "config" / "consumerOffset.json"


def committed(root: Path) -> int | None:
    talk = Conversation(root)
    try:
        return talk.broker.offsets.query("G", "T", 0)
    finally:
        talk.close()


@pytest.mark.parametrize("how", DAMAGES)
def test_a_group_does_not_go_back_when_its_table_is_lost(tmp_path: Path, how: str, caplog):
    """It went back from 90 to 10, the offset in the older table, without a log line."""
    table = stopped(tmp_path, 10, 90)
    DAMAGES[how](table)
    assert committed(tmp_path) == 90
    (line,) = [each for each in caplog.messages if "its backup is taken" in each]
    assert str(table) in line
    caplog.clear()
    assert committed(tmp_path) == 90
    assert "backup" not in caplog.text


def test_a_flipped_bit_in_a_name_is_noticed_where_it_leaves_no_utf_8(tmp_path: Path, caplog):
    """The group's name became another one, and the group began anew."""
    table = stopped(tmp_path, 90)
    table.write_bytes(table.read_bytes().replace(b"T@G", b"T@\xc7"))
    assert committed(tmp_path) == 90
    assert "it has bytes that are no UTF-8" in caplog.text


@pytest.mark.parametrize("backup", [b" \n", b"{", b"\xff"])
def test_a_table_that_is_no_utf_8_counts_where_its_backup_is_no_better(tmp_path: Path, backup: bytes):
    table = stopped(tmp_path, 90)
    table.write_bytes(table.read_bytes().replace(b"T@G", b"T@\xc7", 1).replace(b"{", b'{"\xc7":0,', 1))
    table.with_name(table.name + ".bak").write_bytes(backup)
    Conversation(tmp_path).kill()


@pytest.mark.parametrize("backup", [b"", b"{", b'{"offsetTable":{"T@G":{0:10}}}'])
def test_a_name_may_have_the_character_that_stands_for_damage(tmp_path: Path, backup: bytes, caplog):
    table = stopped(tmp_path, 90)
    table.write_bytes(
        table.read_bytes().replace(b'"offsetTable":{', '"offsetTable":{"T@\ufffd":{0:5},'.encode())
    )
    assert "\ufffd" in table.read_text()
    table.with_name(table.name + ".bak").write_bytes(backup)
    assert committed(tmp_path) == 90
    assert "backup is taken" not in caplog.text


def test_the_times_of_an_older_backup_are_in_the_log(tmp_path: Path, caplog):
    """Apache's broker keeps the table before the last one."""
    table = stopped(tmp_path, 10, 90)
    older = table.with_name(table.name + ".bak")
    older.write_text(older.read_text().replace("90", "10"))
    os.utime(older, (1_000_000_000, 1_000_000_000))
    os.truncate(table, 5)
    os.utime(table, (1_100_000_000, 1_100_000_000))
    assert committed(tmp_path) == 10
    assert "written=2004-11-09T11:33:20" in caplog.text
    assert "backup_written=2001-09-09T01:46:40" in caplog.text
    assert len(table.with_name(table.name + ".damaged").read_bytes()) == 5


def test_what_the_journal_has_counts_beside_a_backup(tmp_path: Path):
    table = stopped(tmp_path, 10)
    talk = Conversation(tmp_path)
    talk.broker.offsets.commit("G", "T", 0, 40)
    talk.broker.offsets.write()
    talk.kill()
    table.unlink()
    assert committed(tmp_path) == 40


@pytest.mark.parametrize("how", ["empty", "removed"])
def test_a_lost_table_without_a_backup_is_reported(tmp_path: Path, how: str, caplog):
    table = stopped(tmp_path, 90)
    assert "begin" not in caplog.text
    DAMAGES[how](table)
    table.with_name(table.name + ".bak").unlink()
    assert committed(tmp_path) is None
    assert ("begins anew" if how == "empty" else "all groups begin anew") in caplog.text
    caplog.clear()
    assert committed(tmp_path) is None
    assert "anew" not in caplog.text


@pytest.mark.parametrize("how", ["cut", "empty", "removed"])
def test_every_table_is_as_new_in_its_backup(tmp_path: Path, how: str, caplog):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=3)
    talk.beat(FakePeer(), "c", stock=False)
    talk.send(FakePeer(), properties={"DELAY": "1"})
    advance(talk, 3_000)
    talk.close()
    tables = sorted((tmp_path / "config").glob("*.json"))
    assert {"topics.json", "subscriptionGroup.json", "delayOffset.json"} < {path.name for path in tables}
    for path in tables:
        assert path.with_name(path.name + ".bak").read_bytes() == path.read_bytes(), path.name
        DAMAGES[how](path)
    again = Conversation(tmp_path)
    topic = again.broker.tables.topics.get("T")
    assert topic is not None
    assert topic.read_queue_nums == 3
    assert again.broker.schedule.offsets == talk.broker.schedule.offsets
    again.close()
    for path in tables:
        assert f"{path} " in caplog.text


def test_what_a_refused_start_says_helps(tmp_path: Path):
    """The error named one of the two files or none; without that file the start failed in the same way."""
    talk = Conversation(tmp_path)
    talk.create_topic("T")
    talk.broker.offsets.commit("G", "T", 0, 0)
    talk.close()
    for path in (tmp_path / "config" / name for name in ("topics.json", "consumerOffset.json")):
        backup = path.with_name(path.name + ".bak")
        for each in (path, backup):
            DAMAGES["cut"](each)
        with pytest.raises(StoreCorrupt, match="repair one of the two, or remove both"):
            Conversation(tmp_path)
        path.unlink()
        with pytest.raises(StoreCorrupt, match="repair one of the two, or remove both"):
            Conversation(tmp_path)
        backup.unlink()
        Conversation(tmp_path).close()


@pytest.mark.parametrize("how", ["cut", "flipped"])
@pytest.mark.parametrize("name", ["timermetrics", "consumerFilter.json", "groupBeginnings.json"])
def test_a_lost_file_that_is_made_again_stops_no_start(tmp_path: Path, name: str, how: str, caplog):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=1)
    send_at(talk, FakePeer(), NOW_MS + 3_000)
    sql = subscription("T", "a > 1", expression_type="SQL92")
    talk.beat(FakePeer(), "c", subscriptions=[sql])
    talk.ask(
        FakePeer(), RequestCode.GROUP_BEGIN, GroupBeginHeader(consumer_group="H", topic="T", lb_begins=True)
    )
    advance(talk, 1_000)
    talk.close()
    for path in (tmp_path / "config" / name, tmp_path / "config" / f"{name}.bak"):
        DAMAGES[how](path)
    again = Conversation(tmp_path, clock=talk.clock)
    assert f"path={tmp_path}/config/{name}" in caplog.text
    advance(again, 3_000)
    assert len(bodies(again)) == 1
    again.close()


# Progress ahead of its queue: a repaired or restored store beside newer tables.


def delayed(root: Path) -> Conversation:
    """Leave a broker whose delay level has two delivered messages with copies, and two that wait."""
    talk = Conversation(root)
    talk.create_topic("T", queues=1)
    for body in (b"a", b"b"):
        talk.send(FakePeer(), body=body, properties={"DELAY": "1", "UNIQ_KEY": f"K{body.decode()}"})
    talk.advance(2_000)
    for body in (b"c", b"d"):
        talk.send(FakePeer(), body=body, properties={"DELAY": "1", "UNIQ_KEY": f"K{body.decode()}"})
    return talk


def set_table(root: Path, name: str, change: Callable[[dict[str, object]], None]) -> None:
    path = root / "config" / name
    table = fastjson.loads(path.read_text())
    change(table)
    path.write_bytes(fastjson.dumps(table))


def bodies(talk: Conversation, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [message.body for message in talk.messages(topic, queue_id)]


def test_delayed_messages_are_delivered_although_their_progress_is_ahead(tmp_path: Path, caplog):
    """The level continued at its end, and pending messages were never delivered."""
    talk = delayed(tmp_path)
    talk.close()
    assert bodies(talk) == [b"a", b"b"]
    set_table(tmp_path, "delayOffset.json", lambda table: table.update(offsetTable={1: 7}))
    again = Conversation(tmp_path, clock=talk.clock)
    again.send(FakePeer(), body=b"e", properties={"DELAY": "1"})
    again.advance(20_000)
    assert bodies(again) == [b"a", b"b", b"c", b"d", b"e"]
    assert "a delay level's offset lies beyond its queue" in caplog.text
    again.close()


@pytest.mark.parametrize("stop", ["close", "kill"])
def test_timer_messages_are_delivered_although_their_progress_is_ahead(tmp_path: Path, stop: str, caplog):
    talk = Conversation(tmp_path / "store")
    for number in range(4):
        at = NOW_MS + 3_000 + number * 10_000
        send_at(talk, FakePeer(), at, body=b"%d" % number, UNIQ_KEY=f"K{number}")
    talk.advance(5_000)
    assert bodies(talk) == [b"0"]
    getattr(talk, stop)()
    kept = tmp_path / "kept"
    shutil.copytree(tmp_path / "store", kept)
    later = Conversation(tmp_path / "store", clock=talk.clock)
    for number in range(4, 40):
        send_at(later, FakePeer(), NOW_MS + 60_000, body=b"%d" % number)
    later.advance(30_000)
    later.close()
    for name in ("timerwheel", "timerlog", "config/timercheck"):
        if (kept / name).exists():
            missing(kept / name)
        copied = shutil.copytree if (tmp_path / "store" / name).is_dir() else shutil.copy
        copied(tmp_path / "store" / name, kept / name)
    again = Conversation(kept, clock=talk.clock)
    again.advance(100_000)
    assert bodies(again) == [b"0", b"1", b"2", b"3"]
    assert "beyond" in caplog.text
    again.close()


def test_an_open_transaction_is_checked_although_its_progress_is_ahead(tmp_path: Path):
    talk, producer = Conversation(tmp_path), FakePeer("10.0.0.7:1")
    talk.beat_producer(producer, "producer")
    end(talk, producer, prepare(talk, producer, b"ended"), COMMIT)
    prepare(talk, producer, b"open")
    talk.flush()
    talk.broker.offsets.commit(GROUP, TRANS_HALF_TOPIC, 0, 2)
    talk.broker.offsets.commit(GROUP, TRANS_OP_HALF_TOPIC, 0, 1)
    talk.broker.offsets.write()
    talk.close()

    def ahead(table: dict[str, object]) -> None:
        offsets = table["offsetTable"]
        assert isinstance(offsets, dict)
        offsets[f"{TRANS_HALF_TOPIC}@{GROUP}"] = {0: 9}

    set_table(tmp_path, "consumerOffset.json", ahead)
    again = Conversation(tmp_path, clock=talk.clock)
    again.beat_producer(producer, "producer")
    producer.replies.clear()
    again.advance(120_000)
    assert [message.body for _, message in checks(producer)[:1]] == [b"open"]
    assert bodies(again, "T", 2) == [b"ended"]
    again.close()


def test_a_pop_in_order_of_lost_messages_blocks_no_queue(tmp_path: Path, caplog):
    talk = Conversation(tmp_path)
    sent(talk, b"a", b"b", b"c")
    assert len(Orderly(talk).pop(max_msg_nums=3, invisible_time=600_000)) == 3
    talk.close()

    def ahead(file: dict[str, object]) -> None:
        for queues in file["table"].values():  # type: ignore[attr-defined]
            queues[0]["o"] = [5, 1, 2]

    set_table(tmp_path, "consumerOrderInfo.json", ahead)
    again = Conversation(tmp_path, clock=talk.clock)
    assert [message.body for message in Orderly(again).pop(max_msg_nums=3)] == [b"a", b"b", b"c"]
    assert "its messages are lost" in caplog.text
    again.close()
