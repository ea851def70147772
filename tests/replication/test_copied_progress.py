"""The master's progress counts at a slave once the slave has the messages: it may be promoted."""

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from libramq.broker.cluster import table_copies
from libramq.broker.files.progress import ProgressFile
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import LibraError
from libramq.kernel.effect import Thread
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.replication.ha_client import RETRY_MS
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper
from tests.fakes import FakePeer
from tests.protocols.kafka.peers import KafkaEndpoint
from tests.protocols.kafka.test_groups import administrator, fetched
from tests.replication.pairs import Pair, log_of

#: A round of the tables, and some time for threads.
ROUND_MS = 12_000


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = Pair(tmp_path)
    pair.master.create_topic("T", queues=1)
    yield pair
    pair.close()


def bodies(talk: Conversation, topic: str = "T") -> list[bytes]:
    return [message.body for message in talk.messages(topic)]


def send(pair: Pair, text: str, **properties: str) -> None:
    reply = pair.master.send(FakePeer(), body=text.encode(), properties=properties)
    assert reply.code == ResponseCode.SUCCESS


def commit(pair: Pair, offset: int, group: str = "G", topic: str = "T") -> None:
    pair.master.pull(FakePeer(), group, topic)
    header = h.UpdateConsumerOffsetHeader(consumer_group=group, topic=topic, queue_id=0, commit_offset=offset)
    reply = pair.master.ask(FakePeer(), RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS


def test_a_promoted_slave_delivers_what_its_master_delivered_after_the_last_copied_byte(pair: Pair) -> None:
    send(pair, "later", DELAY="1")
    pair.run(100)
    pair.holds_blocks = True
    pair.run(ROUND_MS)
    assert bodies(pair.master) == [b"later"]
    assert bodies(pair.slave) == []
    promoted = pair.promote()
    promoted.advance(2_000)
    assert bodies(promoted) == [b"later"]


def test_what_was_delivered_and_copied_is_not_delivered_again(pair: Pair) -> None:
    send(pair, "later", DELAY="1")
    pair.run(ROUND_MS + 10_000)
    promoted = pair.promote()
    promoted.advance(2_000)
    assert bodies(promoted) == [b"later"]


def test_a_promoted_slave_does_not_deliver_what_its_log_shows_as_delivered(pair: Pair) -> None:
    """The table of the delay levels is copied every 10 s, and the log at once."""
    pair.run(ROUND_MS)
    for text in ("one", "two"):
        send(pair, text, DELAY="1", UNIQ_KEY=text)
    pair.run(1_200)
    assert bodies(pair.slave) == [b"one", b"two"]
    assert pair.slave.broker.schedule.offsets == {}
    promoted = pair.promote()
    promoted.advance(5_000)
    assert bodies(promoted) == [b"one", b"two"]


def test_a_promoted_slave_hands_out_what_was_popped_after_the_last_copied_byte(pair: Pair) -> None:
    """POP's committed offset is past messages in flight; only its checkpoints in the log lead to them."""
    send(pair, "one")
    pair.run(100)
    pair.holds_blocks = True
    assert [message.body for message in Popper(pair.master).pop(invisible_time=60_000)] == [b"one"]
    pair.run(ROUND_MS)
    promoted = pair.promote()
    promoted.advance(61_000)
    assert [message.body for message in Popper(promoted).pop()] == [b"one"]


def test_offsets_of_a_topic_that_was_deleted_and_made_again_are_gone_at_the_slave(pair: Pair) -> None:
    send(pair, "old")
    commit(pair, 1)
    pair.run(ROUND_MS)
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1
    pair.master.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    pair.master.create_topic("T", queues=1)
    send(pair, "new")
    pair.run(ROUND_MS)
    assert pair.slave.broker.offsets.query("G", "T", 0) is None
    promoted = pair.promote()
    assert promoted.broker.offsets.query("G", "T", 0) is None


def test_a_commit_of_kafkas_clients_beyond_the_end_is_copied(pair: Pair) -> None:
    admin = administrator(KafkaEndpoint(pair.master))
    send(pair, "one")
    assert admin.commit(5) == 0
    pair.run(ROUND_MS)
    assert admin.commit(7) == 0
    pair.run(ROUND_MS)
    assert fetched(KafkaEndpoint(pair.promote()).peer()) == [7]


def test_a_commit_beyond_the_end_that_was_replaced_is_gone_at_the_slave(pair: Pair) -> None:
    admin = administrator(KafkaEndpoint(pair.master))
    send(pair, "one")
    assert admin.commit(5) == 0
    pair.run(ROUND_MS)
    assert admin.commit(1) == 0
    pair.run(ROUND_MS)
    assert fetched(KafkaEndpoint(pair.promote()).peer()) == [1]


def test_a_reset_that_waits_at_the_master_waits_at_the_slave(pair: Pair) -> None:
    send(pair, "one")
    send(pair, "two")
    commit(pair, 2)
    pair.master.broker.ledger.append(
        [pair.master.broker.ledger.offsets.reset("G", "T", 0, 1, pair.master.broker.store.max_offset("T", 0))]
    )
    pair.run(ROUND_MS)
    assert pair.slave.broker.ledger.offsets.pending_reset("G", "T", 0) is not None
    read = pair.slave.pull(FakePeer(), queue_offset=0)
    assert read is not None
    assert (read.code, read.ext["nextBeginOffset"]) == (
        ResponseCode.SUCCESS,
        "2",
    )  # The master moves it, once.
    member = FakePeer()
    pair.master.beat(member, "member")
    for offset, next_offset in ((2, "1"), (1, "2")):  # It is moved, and follows.
        pulled = pair.master.pull(member, queue_offset=offset)
        assert pulled is not None
        assert pulled.ext["nextBeginOffset"] == next_offset
    pair.run(ROUND_MS)
    assert pair.slave.broker.ledger.offsets.pending_reset("G", "T", 0) is None
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1


def commit_at_slave(pair: Pair, offset: int, *, topic: str = "T", queue_id: int = 0) -> None:
    header = h.UpdateConsumerOffsetHeader(
        consumer_group="G", topic=topic, queue_id=queue_id, commit_offset=offset
    )
    reply = pair.slave.ask(FakePeer(), RequestCode.UPDATE_CONSUMER_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS


def return_master(pair: Pair) -> None:
    pair.part()
    pair.run(1_000)
    commit_at_slave(pair, 1)
    commit_at_slave(pair, 2)
    pair.is_reachable = True
    pair.run(2 * ROUND_MS)


def test_a_group_that_first_committed_at_the_slave_keeps_its_offset_when_the_master_is_back(
    pair: Pair,
) -> None:
    for text in ("one", "two", "three"):
        send(pair, text)
    pair.master.pull(FakePeer(), "G")
    pair.run(ROUND_MS)
    return_master(pair)
    assert pair.master.broker.offsets.query("G", "T", 0) == 2
    assert pair.slave.broker.offsets.query("G", "T", 0) == 2
    commit(pair, 1)  # It is returned once: from now on the slave has what the master has.
    pair.run(ROUND_MS)
    assert pair.master.broker.offsets.query("G", "T", 0) == 1
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1


@pytest.mark.parametrize(("topic", "queue_id"), [("T", 1), ("U", 0)])
def test_commits_that_the_master_does_not_answer_do_not_keep_later_ones_from_it(
    pair: Pair, monkeypatch: pytest.MonkeyPatch, topic: str, queue_id: int
) -> None:
    """Only some are returned at once: those of one queue used to be sent again and again, no others."""
    monkeypatch.setattr(table_copies, "RETURNED_AT_ONCE", 1)
    for name in ("T", "U"):
        pair.master.create_topic(name, queues=2)
        for each in range(2):
            assert pair.master.send(FakePeer(), name, queue_id=each).code == ResponseCode.SUCCESS
    pair.master.pull(FakePeer(), "G")
    pair.run(ROUND_MS)
    answer = pair._answer_of

    def is_busy(address: str, command: Command) -> Command | LibraError:
        of_first = command.ext.get("topic") == "T" and command.ext.get("queueId") == "0"
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and of_first and pair.is_reachable:
            return Command(code=ResponseCode.SYSTEM_BUSY)
        return answer(address, command)

    monkeypatch.setattr(pair, "_answer_of", is_busy)
    pair.part()
    pair.run(1_000)
    commit_at_slave(pair, 1)
    commit_at_slave(pair, 1, topic=topic, queue_id=queue_id)
    pair.is_reachable = True
    pair.run(3 * ROUND_MS)
    assert pair.master.broker.offsets.query("G", topic, queue_id) == 1
    assert pair.master.broker.offsets.query("G", "T", 0) is None
    monkeypatch.setattr(pair, "_answer_of", answer)
    pair.run(2 * ROUND_MS)
    assert pair.master.broker.offsets.query("G", "T", 0) == 1, "it was kept, and is sent again"


def test_a_master_that_has_a_later_commit_keeps_it(pair: Pair) -> None:
    for text in ("one", "two", "three"):
        send(pair, text)
    commit(pair, 2)
    pair.run(ROUND_MS)
    commit(pair, 3)
    return_master(pair)
    assert pair.master.broker.offsets.query("G", "T", 0) == 3
    assert pair.slave.broker.offsets.query("G", "T", 0) == 3


def test_a_returned_commit_does_not_undo_one_that_the_master_took_meanwhile(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slave compares it with a table of the master's, which the group may have left behind since."""
    for text in ("one", "two", "three"):
        send(pair, text)
    pair.master.pull(FakePeer(), "G")
    pair.run(ROUND_MS)
    answer, returned = pair._answer_of, []

    def overtaken(address: str, command: Command) -> Command | LibraError:
        if command.code == RequestCode.UPDATE_CONSUMER_OFFSET and pair.is_reachable:
            returned.append(command.ext["commitOffset"])
            commit(pair, 3)
        return answer(address, command)

    monkeypatch.setattr(pair, "_answer_of", overtaken)
    return_master(pair)
    assert returned == ["2"]
    assert pair.master.broker.offsets.query("G", "T", 0) == 3
    assert pair.slave.broker.offsets.query("G", "T", 0) == 3


def test_a_commit_at_the_slave_in_what_it_has_to_cut_is_returned_as_far_as_the_logs_are_equal(
    pair: Pair, tmp_path: Path
) -> None:
    send(pair, "a")
    pair.master.pull(FakePeer(), "G")
    pair.run(ROUND_MS)
    save(pair, tmp_path)
    for text in ("b", "c"):
        send(pair, text)
    pair.run(ROUND_MS)
    pair.part()
    pair.run(1_000)
    commit_at_slave(pair, 3)
    diverge(pair, tmp_path, "d", "e", "f")
    pair.is_reachable = True
    pair.run(2 * ROUND_MS)
    assert bodies(pair.slave) == [b"a", b"d", b"e", b"f"]
    assert pair.master.broker.offsets.query("G", "T", 0) == 1


def diverge(pair: Pair, tmp_path: Path, *texts: str) -> None:
    """Restart the master without the messages stored after `saved`, and send it others."""
    pair.part()
    pair.run()
    root = pair.master.broker.store.config.root
    pair.master.kill()
    shutil.rmtree(root)
    shutil.copytree(tmp_path / "saved", root)
    pair.open_master()
    for text in texts:
        send(pair, text)


def save(pair: Pair, tmp_path: Path) -> None:
    shutil.copytree(pair.master.broker.store.config.root, tmp_path / "saved")


def test_a_master_with_another_log_does_not_change_the_tables(pair: Pair, tmp_path: Path) -> None:
    """After the loss of the master's disk the slave may have the last copy of its topics and offsets."""
    save(pair, tmp_path)
    pair.master.create_topic("Other")
    send(pair, "the last copy")
    commit(pair, 1)
    pair.run(ROUND_MS)
    diverge(pair, tmp_path, "another")
    pair.is_reachable = True
    pair.run(ROUND_MS)
    assert "Other" in pair.slave.broker.topics
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1


def test_a_cut_takes_offsets_along(pair: Pair, tmp_path: Path) -> None:
    """Later messages get the numbers of those that were cut, and no group has read them."""
    send(pair, "a")
    pair.run(100)
    save(pair, tmp_path)
    for text in ("b", "c"):
        send(pair, text)
    commit(pair, 3)
    pair.run(ROUND_MS)
    assert pair.slave.broker.offsets.query("G", "T", 0) == 3
    diverge(pair, tmp_path, "d")
    pair.is_reachable = pair.holds_blocks = True
    pair.run(RETRY_MS + 300)
    assert bodies(pair.slave) == [b"a"]
    assert pair.slave.broker.offsets.query("G", "T", 0) == 1
    pair.holds_blocks = False
    send(pair, "e")
    pair.run(ROUND_MS)
    assert log_of(pair.slave) == log_of(pair.master)
    assert pair.slave.broker.offsets.query("G", "T", 0) is None  # As on its master.


def test_a_cut_waits_for_a_table_that_is_being_written(
    pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It speaks of messages that are to be cut; found by the simulator (seed 8002190)."""
    send(pair, "a")
    pair.run(100)
    save(pair, tmp_path)
    for text in ("b", "c"):
        send(pair, text)
    commit(pair, 3)
    held: list[tuple[Thread, Callable[[], Any], Callable[[Any], None]]] = []
    threads, run = pair.slave.threads, pair.slave.threads.run

    def hold(thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        file = getattr(work, "__self__", None)
        if isinstance(file, ProgressFile) and file.name == "consumerOffset.json":
            held.append((thread, work, done))
        else:
            run(thread, work, done)

    monkeypatch.setattr(threads, "run", hold)
    pair.run(2 * ROUND_MS)
    assert held
    diverge(pair, tmp_path, "d")
    pair.is_reachable = pair.holds_blocks = True
    pair.run(RETRY_MS + 300)
    assert bodies(pair.slave) == [b"a", b"b", b"c"]
    monkeypatch.undo()
    for each in held:
        threads.finish(each)
    pair.run(RETRY_MS + 300)
    assert bodies(pair.slave) == [b"a"]


def test_a_cut_takes_delay_offsets_along(pair: Pair, tmp_path: Path) -> None:
    """The delivered copies were cut, so a slave that is promoted at that moment must deliver them again."""
    send(pair, "later", DELAY="1")
    pair.run(100)
    save(pair, tmp_path)
    pair.run(2 * ROUND_MS)
    assert bodies(pair.slave) == [b"later"]
    assert pair.slave.broker.schedule.offsets == {1: 1}
    diverge(pair, tmp_path, "other")
    pair.is_reachable = pair.holds_blocks = True
    pair.run(RETRY_MS + 300)
    assert bodies(pair.slave) == []
    promoted = pair.promote(is_killed=True)
    promoted.advance(2_000)
    assert bodies(promoted) == [b"later"]


def test_a_cut_takes_along_what_was_popped(pair: Pair, tmp_path: Path) -> None:
    """The check points were cut, and nothing else leads to messages before the committed offset."""
    for text in ("one", "two"):
        send(pair, text)
    pair.run(100)
    save(pair, tmp_path)
    popped = Popper(pair.master).pop(invisible_time=600_000)
    assert [message.body for message in popped] == [b"one", b"two"]
    pair.run(2 * ROUND_MS)
    assert pair.slave.broker.offsets.query("G", "T", 0) == 2
    diverge(pair, tmp_path, "other")
    pair.is_reachable = pair.holds_blocks = True
    pair.run(RETRY_MS + 500)
    assert bodies(pair.slave) == [b"one", b"two"]
    promoted = pair.promote(is_killed=True)
    assert [message.body for message in Popper(promoted).pop()] == [b"one", b"two"]


def wait(pair: Pair, text: str, milliseconds: int) -> None:
    send(pair, text, TIMER_DELIVER_MS=str(int(pair.clock.wall_ms()) + milliseconds))


def test_a_promoted_slave_delivers_timer_messages_that_its_master_did_not(pair: Pair) -> None:
    for text, seconds in (("soon", 3), ("later", 60)):
        wait(pair, text, seconds * 1_000)
    pair.run(3 * ROUND_MS)
    assert bodies(pair.slave) == [b"soon"]
    master, slave = pair.master.broker, pair.slave.broker
    copied = slave.files.timers.timers
    assert copied.metrics.content() == master.files.timers.timers.metrics.content()
    promoted = pair.promote()
    promoted.advance(70_000)
    assert bodies(promoted) == [b"soon", b"later"]
    assert promoted.broker.files.timers.timers.metrics.content().timing_count["T"].count == 0


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_promoted_slave_delivers_timer_messages_whose_delivery_it_lacks(
    pair: Pair, is_killed: bool
) -> None:
    wait(pair, "first", 3_000)
    wait(pair, "second", 30_000)
    pair.run(2 * ROUND_MS)
    pair.holds_blocks = True
    pair.run(ROUND_MS)
    assert bodies(pair.master) == [b"first", b"second"]
    assert bodies(pair.slave) == [b"first"]
    promoted = pair.promote(is_killed=is_killed)
    promoted.advance(10_000)
    assert bodies(promoted) == [b"first", b"second"]


def test_a_cut_takes_the_timers_checkpoint_along(pair: Pair, tmp_path: Path) -> None:
    wait(pair, "later", 3_000)
    pair.run(100)
    save(pair, tmp_path)
    pair.run(2 * ROUND_MS)
    assert bodies(pair.slave) == [b"later"]
    diverge(pair, tmp_path, "other")
    pair.is_reachable = pair.holds_blocks = True
    pair.run(RETRY_MS + 500)
    assert bodies(pair.slave) == []
    promoted = pair.promote(is_killed=True)
    promoted.advance(10_000)
    assert bodies(promoted) == [b"later"]


def test_a_master_that_becomes_a_slave_and_a_master_again_delivers_each_timer_message_once(
    pair: Pair, tmp_path: Path
) -> None:
    """Its wheel refers to a log that may have been replaced meanwhile.

    It still knows what it had delivered.
    """
    wait(pair, "soon", 3_000)
    wait(pair, "later", 120_000)
    pair.run(2 * ROUND_MS)
    pair.slave.close()
    pair.part()
    pair.run()
    pair.master.close()
    shutil.copytree(tmp_path / "master", tmp_path / "was-master")
    pair.open_master()
    pair.is_reachable = True
    pair.open_slave("was-master")
    pair.run(2_000)
    wait(pair, "new", 5_000)
    pair.run(2 * ROUND_MS)
    assert bodies(pair.slave) == [b"soon", b"new"]
    promoted = pair.promote()
    promoted.advance(120_000)
    assert bodies(promoted) == [b"soon", b"new", b"later"]


def test_a_timer_message_that_was_rolled_on_is_delivered_once_after_a_promotion(tmp_path: Path) -> None:
    """The topic has it twice, as it was sent and as it was rolled on; both are collected again."""
    window = {"timer_roll_window_slot": 30}
    pair = Pair(tmp_path, **window)
    try:
        pair.master.create_topic("T", queues=1)
        for text in ("one", "other"):
            properties = {"UNIQ_KEY": text, "TIMER_DELIVER_MS": str(int(pair.clock.wall_ms()) + 70_000)}
            send(pair, text, **properties)
        pair.run(45_000)
        assert pair.master.broker.store.max_offset("rmq_sys_wheel_timer", 0) == 4
        promoted = pair.promote(**window)
        promoted.advance(90_000)
        assert bodies(promoted) == [b"one", b"other"]
    finally:
        pair.close()


def test_apaches_checkpoint_is_answered_with_what_was_collected(pair: Pair) -> None:
    """An Apache slave collects no further than its master."""
    wait(pair, "later", 60_000)
    Popper(pair.master).pop()
    pair.run(3_000)
    body = pair.master.ask(FakePeer(), RequestCode.GET_TIMER_CHECK_POINT).body
    assert int.from_bytes(body[24:32]) == pair.master.broker.files.timers.timers.queue_offset >= 1
