"""Timer messages: accepted, delivered at their time, recalled, and still there after a restart or a kill."""

import pytest

from libramq.broker.messages.delivery import LOOK_MS
from libramq.broker.messages.durability import DIRECTORIES_MS
from libramq.codes import RequestCode as R
from libramq.codes import ResponseCode as C
from libramq.filesystem import LocalFileSystem
from libramq.kernel.effect import Thread
from libramq.message.names import TIMER_TOPIC
from libramq.remoting import headers as h
from libramq.remoting.command import Command
from libramq.store.copying import copy_store
from libramq.store.message_store import MessageStore
from libramq.timers import slot_reader, timers
from libramq.timers.timer_checkpoint import decode_timer_checkpoint
from tests.broker.brokers import Conversation, send_header
from tests.fakes import FakePeer

NOW_MS = 1_700_000_000_000
DAY_MS = 24 * 3600 * 1000


def send_at(
    talk: Conversation, peer: FakePeer, deliver_ms: int, body: bytes = b"hello", **more: str
) -> Command:
    return talk.send(peer, body=body, properties={"TIMER_DELIVER_MS": str(deliver_ms), **more})


def bodies(talk: Conversation, topic: str = "T") -> list[bytes]:
    return [message.body for message in talk.messages(topic)]


def advance(talk: Conversation, milliseconds: int) -> None:
    """Let time pass, with the disk keeping up."""
    for _ in range(0, milliseconds, 500):
        talk.advance(min(500, milliseconds))
        talk.flush()
        talk.threads.run_all(Thread.DISK)


def test_a_message_is_stored_in_its_own_queue_at_its_time(talk, peer):
    reply = send_at(talk, peer, NOW_MS + 3_000)
    assert reply.code == C.SUCCESS
    talk.advance(2_999)
    assert bodies(talk) == []
    talk.advance(1)
    assert bodies(talk) == [b"hello"]
    (message,) = talk.messages("T")
    assert message.properties["TIMER_OUT_MS"] == str(NOW_MS + 2_000)
    assert message.properties["TIMER_DEQUEUE_MS"] == str(NOW_MS + 3_000)
    assert message.properties["TIMER_ENQUEUE_MS"] == str(NOW_MS)
    assert (message.properties["REAL_TOPIC"], message.properties["REAL_QID"]) == ("T", "0")


@pytest.mark.parametrize(
    ("properties", "wait_ms"),
    [
        ({"TIMER_DELAY_SEC": "2"}, 2_000),
        ({"TIMER_DELAY_MS": "1500"}, 2_000),  # The precision is a second; it is never early.
        ({"TIMER_DELIVER_MS": str(NOW_MS + 2_001)}, 3_000),
        ({"TIMER_DELAY_MS": "5000", "TIMER_DELAY_SEC": "2"}, 2_000),  # The first that is found counts.
        ({"TIMER_DELAY_MS": "5000", "DELAY": "1"}, 1_000),  # The delay level counts.
    ],
)
def test_every_way_to_ask_for_a_time(talk, peer, properties, wait_ms):
    assert talk.send(peer, properties=properties).code == C.SUCCESS
    talk.advance(wait_ms - 1)
    assert bodies(talk) == []
    talk.advance(1)
    assert bodies(talk) == [b"hello"]


@pytest.mark.parametrize("properties", [{"TIMER_DELAY_MS": "0"}, {"TIMER_DELIVER_MS": str(NOW_MS - 5)}])
def test_a_time_that_has_passed_is_now(talk, peer, properties):
    reply = talk.send(peer, properties=properties)
    assert "recallHandle" not in reply.ext
    assert bodies(talk) == [b"hello"]
    assert "TIMER_OUT_MS" not in talk.messages("T")[0].properties


@pytest.mark.parametrize(
    "properties",
    [
        {"TIMER_DELAY_MS": "soon"},
        {"TIMER_DELIVER_MS": "1" * 30},
        {"TIMER_DELAY_SEC": str(3 * 24 * 3600 + 1)},
    ],
)
def test_an_impossible_time_is_refused(talk, peer, properties):
    reply = talk.send(peer, properties=properties)
    assert reply.code == C.MESSAGE_ILLEGAL
    assert "timer message refused" in reply.remark
    assert bodies(talk) == []


def test_a_broker_without_timers_says_so(tmp_path, peer):
    talk = Conversation(tmp_path, timer_wheel_enable=False)
    reply = send_at(talk, peer, NOW_MS + 3_000)
    assert (reply.code, "timerWheelEnable" in reply.remark) == (C.SYSTEM_ERROR, True)
    talk.close()


def test_a_full_moment_is_refused_and_others_are_not(tmp_path, peer):
    talk = Conversation(tmp_path, timer_congest_num_each_slot=2)
    for _ in range(2):
        assert send_at(talk, peer, NOW_MS + 3_000).code == C.SUCCESS
    talk.advance(1)  # Messages are counted once they are collected.
    assert send_at(talk, peer, NOW_MS + 3_000).code == C.SYSTEM_ERROR
    assert send_at(talk, peer, NOW_MS + 4_000).code == C.SUCCESS
    talk.close()


def test_messages_of_one_moment_come_in_the_order_in_which_they_were_sent(talk, peer):
    for number in range(700):
        send_at(talk, peer, NOW_MS + 2_000 + number % 2 * 1_000, body=b"%d" % number)
    talk.advance(2_000)
    assert bodies(talk) == [b"%d" % number for number in range(0, 700, 2)]
    talk.advance(1_000)
    assert len(bodies(talk)) == 700


def test_a_message_that_waits_longer_than_the_roll_window_is_stored_again_meanwhile(tmp_path, peer):
    talk = Conversation(tmp_path, timer_roll_window_slot=10)
    send_at(talk, peer, NOW_MS + 25_000)
    talk.advance(24_999)
    assert bodies(talk) == []
    waiting = talk.messages(TIMER_TOPIC)
    assert [message.properties.get("TIMER_ROLL_TIMES") for message in waiting] == [None, "1", "2"]
    talk.advance(1)
    assert bodies(talk) == [b"hello"]
    talk.close()


def recall(talk: Conversation, peer: FakePeer, handle: str, topic: str = "T") -> Command:
    return talk.ask(peer, R.RECALL_MESSAGE, h.RecallMessageHeader(topic=topic, recall_handle=handle))


def test_a_message_that_is_recalled_is_not_delivered_and_its_neighbour_is(tmp_path, peer):
    talk = Conversation(tmp_path, recall_message_enable=True)
    handle = send_at(talk, peer, NOW_MS + 3_000, body=b"gone", UNIQ_KEY="KEY").ext["recallHandle"]
    send_at(talk, peer, NOW_MS + 3_000, body=b"kept")
    talk.advance(1_000)
    reply = recall(talk, peer, handle)
    assert (reply.code, reply.ext) == (C.SUCCESS, {"msgId": "KEY", "MSG_REGION": "DefaultRegion"})
    talk.advance(5_000)
    assert bodies(talk) == [b"kept"]
    assert recall(talk, peer, handle).code == C.ILLEGAL_OPERATION
    talk.close()


def test_a_slot_is_read_before_it_is_due(talk, peer, monkeypatch):
    """At its time messages are only stored; reading 10,000 then made the last of them 0.5 s late."""
    for number in range(700):
        send_at(talk, peer, NOW_MS + 3_000, body=b"%d" % number)
    talk.advance(2_999)
    read: list[int] = []
    record_at = MessageStore.record_at
    monkeypatch.setattr(
        MessageStore, "record_at", lambda store, offset: read.append(offset) or record_at(store, offset)
    )
    talk.advance(1)
    assert read == []
    assert bodies(talk) == [b"%d" % number for number in range(700)]


def test_a_slot_that_was_read_before_its_time_changes_until_then(tmp_path, peer):
    talk = Conversation(tmp_path, recall_message_enable=True, timer_precision_ms=100)
    handle = send_at(talk, peer, NOW_MS + 3_000, body=b"gone", UNIQ_KEY="KEY").ext["recallHandle"]
    send_at(talk, peer, NOW_MS + 3_000, body=b"kept")
    talk.advance(2_500)
    assert recall(talk, peer, handle).code == C.SUCCESS
    send_at(talk, peer, NOW_MS + 3_000, body=b"late")
    talk.advance(500)
    assert bodies(talk) == [b"kept", b"late"]
    talk.close()


def test_large_messages_are_not_all_read_before_their_time(tmp_path, peer, monkeypatch):
    monkeypatch.setattr(slot_reader, "PREPARED_BYTES_MAX", 2_000)
    talk = Conversation(tmp_path)
    for number in range(10):
        send_at(talk, peer, NOW_MS + 3_000, body=b"%d" % number * 1_000)
    talk.advance(3_000)
    assert bodies(talk) == [b"%d" % number * 1_000 for number in range(10)]
    talk.close()


def test_properties_count_among_what_is_read_before_its_time(tmp_path, peer, monkeypatch):
    """10,000 messages with 32 KiB of properties each took more than a GiB."""
    monkeypatch.setattr(slot_reader, "PREPARED_BYTES_MAX", 2_000)
    talk = Conversation(tmp_path)
    for number in range(10):
        send_at(talk, peer, NOW_MS + 3_000, body=b"%d" % number, note="x" * 1_000)
    talk.advance(2_999)
    read: list[int] = []
    record_at = MessageStore.record_at
    monkeypatch.setattr(
        MessageStore, "record_at", lambda store, offset: read.append(offset) or record_at(store, offset)
    )
    talk.advance(1)
    assert len(read) == 8
    assert bodies(talk) == [b"%d" % number for number in range(10)]
    talk.close()


@pytest.mark.parametrize(("count", "body_bytes", "together"), [(300, 1, 128), (40, 1 << 20, 8)])
def test_what_was_not_read_before_its_time_is_delivered_in_small_rounds(
    tmp_path, peer, count, body_bytes, together
):
    """A round is one turn of the broker: 512 messages of 4 MiB in one turn would be 2 GiB."""
    talk = Conversation(tmp_path, commit_log_file_bytes=1 << 24)
    for number in range(count):
        send_at(talk, peer, NOW_MS + 60_000, body=b"%d" % number * body_bytes)
    talk.advance(1_000)
    talk.clock.set_wall(by_ms=60_000)
    messages, stored = talk.broker.files.timers.timers, [0]
    while sum(stored) < count:
        messages.advance(talk.clock.wall_ms())
        stored.append(messages.delivered - sum(stored))
    assert max(stored) <= together
    talk.close()


def test_recalls_are_refused_unless_they_are_allowed(talk, peer):
    handle = send_at(talk, peer, NOW_MS + 3_000).ext["recallHandle"]
    refused = recall(talk, peer, handle)
    assert (refused.code, refused.ext) == (C.NO_PERMISSION, {"MSG_REGION": "DefaultRegion"})
    assert talk.ask(peer, R.UPDATE_BROKER_CONFIG, None, b"recallMessageEnable=true\n").code == C.SUCCESS
    assert recall(talk, peer, handle).code == C.SUCCESS


@pytest.mark.parametrize("more", [{}, {"TRAN_MSG": "true", "PGROUP": "P"}])
def test_a_message_that_is_sent_recalls_no_other(talk, peer, more):
    """RECALL_MESSAGE must be allowed, and requires the permission to send to the recalled message's topic."""
    send_at(talk, peer, NOW_MS + 3_000, UNIQ_KEY="KEY")
    forged = {"TIMER_DELIVER_MS": str(NOW_MS + 3_000), "TIMER_DEL_UNIQKEY": "T+KEY", **more}
    assert talk.send(peer, "Other", properties=forged).code == C.MESSAGE_ILLEGAL
    talk.advance(5_000)
    assert bodies(talk) == [b"hello"]


@pytest.mark.parametrize("handle", ["", "x", "%%%", "djEgVA==", "é" * 2_000, "A" * 100_000])
def test_a_handle_that_is_none_is_refused(tmp_path, peer, handle):
    talk = Conversation(tmp_path, recall_message_enable=True)
    talk.create_topic("T")
    assert recall(talk, peer, handle).code == C.ILLEGAL_OPERATION
    assert recall(talk, peer, handle, "unknown").code == C.TOPIC_NOT_EXIST
    talk.close()


def test_what_waits_survives_a_clean_stop(tmp_path, peer):
    talk = Conversation(tmp_path)
    send_at(talk, peer, NOW_MS + 2_000, body=b"1")
    send_at(talk, peer, NOW_MS + 9_000, body=b"2")
    talk.advance(3_000)
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(6_000)
    assert bodies(again) == [b"1", b"2"]
    again.close()


def test_a_clean_stop_amid_a_slot_delivers_the_rest_of_it(tmp_path, peer, monkeypatch):
    """After a start the whole slot was delivered, and what had been before the stop came twice."""
    monkeypatch.setattr(timers, "APPENDED_MAX", 4)
    talk = Conversation(tmp_path)
    for number in range(20):
        send_at(talk, peer, NOW_MS + 2_000 + number // 10 * 1_000, body=b"%d" % number)
    talk.advance(1_999)
    talk.clock.advance(2_001)
    talk.broker.files.timers.timers.advance(talk.clock.wall_ms())
    assert 0 < len(bodies(talk)) < 10
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    assert len(bodies(again)) == 10
    again.advance(5_000)
    assert bodies(again) == [b"%d" % number for number in range(20)]
    again.close()


@pytest.mark.parametrize("delivered", ["in part", "whole"])
def test_what_was_delivered_before_a_kill_is_not_delivered_again(tmp_path, peer, monkeypatch, delivered):
    """No file records it: files are written once a second, after the log is on the disk. The copies exist."""
    monkeypatch.setattr(timers, "APPENDED_MAX", 8 if delivered == "in part" else 512)
    talk = Conversation(tmp_path)
    for number in range(300):
        send_at(talk, peer, NOW_MS + 2_000 + number // 200 * 5_000, body=b"%d" % number)
    talk.advance(1_999)
    talk.clock.advance(1)
    talk.clock.advance(1_000)
    wanted = 200 if delivered == "whole" else 50
    while len(bodies(talk)) < wanted:
        talk.broker.files.timers.timers.advance(talk.clock.wall_ms())
    assert len(bodies(talk)) == 200 or (delivered == "in part" and len(bodies(talk)) < 100)
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(20_000)
    assert bodies(again) == [b"%d" % number for number in range(300)]
    metrics = again.ask(peer, R.GET_TIMER_METRICS)
    assert b'"count":0' in metrics.body or b"count" not in metrics.body, metrics.body
    again.close()


def test_what_waits_survives_a_kill_before_its_files_were_written(tmp_path, peer):
    talk = Conversation(tmp_path)
    send_at(talk, peer, NOW_MS + 5_000)
    talk.advance(100)
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(6_000)
    assert bodies(again) == [b"hello"]
    again.close()


def test_what_waits_survives_a_kill_after_its_files_were_written(tmp_path, peer):
    talk = Conversation(tmp_path)
    for number in range(50):
        send_at(talk, peer, NOW_MS + 3_000 + number % 5 * 1_000, body=b"%d" % number)
    advance(talk, 2_500)
    assert (tmp_path / "timerwheel").exists()
    talk.kill()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(10_000)
    assert sorted(bodies(again), key=int) == [b"%d" % number for number in range(50)]
    again.close()


def test_what_was_delivered_while_the_broker_was_off_is_delivered_at_once(tmp_path, peer):
    talk = Conversation(tmp_path)
    send_at(talk, peer, NOW_MS + 5_000)
    talk.close()
    talk.clock.advance(DAY_MS)
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(1)
    assert bodies(again) == [b"hello"]
    again.close()


def test_the_wall_clock_set_forward_is_noticed(talk, peer):
    send_at(talk, peer, NOW_MS + 3_600_000)
    talk.advance(1_000)
    talk.clock.set_wall(by_ms=3_600_000)
    talk.advance(LOOK_MS)
    assert bodies(talk) == [b"hello"]


def test_the_wall_clock_set_back_makes_nothing_early_and_loses_nothing(tmp_path, peer):
    talk = Conversation(tmp_path)
    send_at(talk, peer, NOW_MS + 5_000, body=b"1")
    advance(talk, 6_000)
    talk.clock.set_wall(by_ms=-3_600_000)
    send_at(talk, peer, NOW_MS - 3_000_000, body=b"2")
    advance(talk, 2_000)
    assert bodies(talk) == [b"1"]
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    again.advance(600_000)
    assert bodies(again) == [b"1", b"2"]
    again.close()


def test_a_store_that_refuses_messages_delays_what_is_due(talk, peer):
    send_at(talk, peer, NOW_MS + 2_000)
    talk.advance(1_000)
    talk.disk.bytes_left = 0
    talk.advance(5_000)
    assert bodies(talk) == []
    talk.disk.bytes_left = None
    talk.advance(60_000)
    assert bodies(talk) == [b"hello"]


def test_an_idle_broker_waits_for_the_next_slot_only(talk, peer):
    """It also waits for the next check that its directory still exists."""
    advance(talk, 30_000)
    before = talk.broker.engine.next_due_ms
    assert before is None or before - talk.clock.monotonic_ms() >= DIRECTORIES_MS // 2


def test_cold_files_are_read_by_a_thread(tmp_path, peer):
    talk = Conversation(tmp_path)
    for number in range(20):
        send_at(talk, peer, NOW_MS + 3_000, body=b"%d" % number)
    talk.close()
    again = Conversation(tmp_path, clock=talk.clock)
    again.disk.is_cold = True
    for _ in range(100):
        again.advance(100)
        again.disk.is_cold = False
        again.read_cold()
    assert bodies(again) == [b"%d" % number for number in range(20)]
    again.close()


def test_slaves_learn_how_far_the_timers_are(talk, peer):
    # Apache's slave begins there once it acts, and takes a step for each second that has passed since.
    read_ms = decode_timer_checkpoint(talk.ask(peer, R.GET_TIMER_CHECK_POINT).body).read_ms
    assert NOW_MS - 1_000 <= read_ms <= NOW_MS
    send_at(talk, peer, NOW_MS + 3_000)
    advance(talk, 1_500)
    checkpoint = decode_timer_checkpoint(talk.ask(peer, R.GET_TIMER_CHECK_POINT).body)
    assert (checkpoint.queue_offset, checkpoint.master_queue_offset, checkpoint.log_end) == (1, 1, 52)
    metrics = talk.ask(peer, R.GET_TIMER_METRICS).body
    assert b'"T":{"count":1' in metrics.replace(b" ", b"")


def test_a_batch_cannot_contain_a_message_that_waits(talk, peer):
    from libramq.message.batch import BatchItem, encode_batch
    from libramq.message.properties import properties_to_text

    item = BatchItem(body=b"x", flag=0, properties=properties_to_text({"TIMER_DELAY_MS": "5000"}).encode())
    reply = talk.send(peer, body=encode_batch([item]), batch=True)
    assert reply.code == C.MESSAGE_ILLEGAL


def test_a_copy_of_the_store_delivers_what_waits(tmp_path, peer):
    talk = Conversation(tmp_path / "store")
    send_at(talk, peer, NOW_MS + 2_000, body=b"1")
    send_at(talk, peer, NOW_MS + 9_000, body=b"2")
    advance(talk, 3_500)
    copy_store(tmp_path / "store", tmp_path / "copy", LocalFileSystem())
    copy = Conversation(tmp_path / "copy", clock=talk.clock)
    copy.advance(8_000)
    assert bodies(copy) == [b"1", b"2"]
    talk.close()
    copy.close()


def test_what_is_due_does_not_wait_for_what_is_not_on_the_disk(tmp_path, peer):
    talk = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    send_in_flight(talk, peer, NOW_MS + 2_000, b"due")
    talk.flush()
    talk.advance(1_500)
    send_in_flight(talk, peer, NOW_MS + 60_000, b"not flushed")
    talk.advance(2_000)
    talk.flush()
    assert bodies(talk) == [b"due"]
    talk.close()


def send_in_flight(talk: Conversation, peer: FakePeer, deliver_ms: int, body: bytes) -> None:
    """Send a message whose answer comes only when the log is flushed."""
    header = send_header(properties={"TIMER_DELIVER_MS": str(deliver_ms)})
    talk.give(peer, talk.command(R.SEND_MESSAGE_V2, header, body))
