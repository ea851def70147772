"""An acting slave sends timer messages to another master; its own master leaves them out when it is back."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from libramq.broker.cluster.acting_slave import timers
from libramq.broker.cluster.acting_slave.other_masters import WINDOW_BYTES_MAX
from libramq.codes import RequestCode, ResponseCode
from libramq.remoting import headers as h
from tests.fakes import FakePeer
from tests.quick import quick
from tests.replication.pairs import Pair
from tests.replication.test_escaping import (
    ACTING,
    ROUND_MS,
    SECONDS,
    bodies,
    lose_master,
    return_master,
)


def open_pair(root: Path, **of_master: object) -> Pair:
    pair = Pair(root, **of_master)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T", queues=1)
    pair.open_other().create_topic("T", queues=1)
    pair.run(ROUND_MS)
    return pair


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = open_pair(tmp_path)
    yield pair
    pair.close()


def send(pair: Pair, *texts: str, seconds: int, **properties: str) -> None:
    for text in texts:
        named = {"TIMER_DELAY_SEC": str(seconds), "UNIQ_KEY": text} | properties
        reply = pair.master.send(FakePeer(), body=text.encode(), properties=named, born_timestamp=7)
        assert reply.code == ResponseCode.SUCCESS


def waiting(pair: Pair) -> int:
    return pair.master.broker.files.timers.timers.metrics.content().timing_count["T"].count


def test_timers_that_end_while_the_master_is_gone_are_delivered_once(pair: Pair) -> None:
    send(pair, "one", seconds=2)
    pair.run(5 * SECONDS)
    assert bodies(pair.slave) == [b"one"]
    send(pair, "two", "three", seconds=5)
    send(pair, "four", seconds=60)
    pair.run(100)
    lose_master(pair)
    pair.run(20 * SECONDS)
    assert sorted(bodies(pair.other)) == [b"three", b"two"]
    return_master(pair)
    assert bodies(pair.master) == [b"one"]
    assert waiting(pair) == 1
    pair.run(60 * SECONDS)
    assert bodies(pair.master) == [b"one", b"four"]
    assert sorted(bodies(pair.other)) == [b"three", b"two"]
    assert waiting(pair) == 0


def test_what_its_producer_gave_it_is_kept(pair: Pair) -> None:
    send(pair, "one", seconds=5, TAGS="red", colour="blue")
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert pair.other is not None
    (message,) = pair.other.messages("T")
    assert (message.tags, message.properties["colour"], message.born_timestamp_ms) == ("red", "blue", 7)
    assert not {"TIMER_DELAY_SEC", "TIMER_OUT_MS", "REAL_TOPIC", "REAL_QID"} & message.properties.keys()


def test_a_recalled_message_is_not_sent(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, recall_message_enable=True)
    try:
        send(pair, "two", seconds=5)
        asked = {"TIMER_DELAY_SEC": "5", "UNIQ_KEY": "one"}
        reply = pair.master.send(FakePeer(), body=b"one", properties=asked)
        header = h.RecallMessageHeader(topic="T", recall_handle=reply.ext["recallHandle"])
        assert pair.master.ask(FakePeer(), RequestCode.RECALL_MESSAGE, header).code == ResponseCode.SUCCESS
        pair.run(100)
        lose_master(pair)
        pair.run(15 * SECONDS)
        assert bodies(pair.other) == [b"two"]
        return_master(pair)
        assert bodies(pair.master) == []
    finally:
        pair.close()


def test_what_the_master_delivered_after_its_checkpoint_was_copied_is_not_sent(pair: Pair) -> None:
    send(pair, "one", seconds=1)
    pair.run(3 * SECONDS)
    assert bodies(pair.slave) == [b"one"]
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert bodies(pair.other) == []


def test_a_message_that_was_rolled_on_is_sent_once(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, timer_roll_window_slot=30)
    try:
        send(pair, "one", seconds=50)
        pair.run(40 * SECONDS)
        assert pair.slave.broker.store.max_offset("rmq_sys_wheel_timer", 0) > 1
        lose_master(pair)
        pair.slave.close()
        pair.open_slave(**ACTING, enable_remote_escape=True, timer_roll_window_slot=30)
        pair.run(30 * SECONDS)
        assert bodies(pair.other) == [b"one"]
        return_master(pair)
        assert bodies(pair.master) == []
    finally:
        pair.close()


def test_a_slave_that_is_restarted_goes_on_behind_what_it_has_sent(pair: Pair) -> None:
    send(pair, "one", seconds=3)
    send(pair, "two", seconds=20)
    pair.run(100)
    lose_master(pair)
    pair.run(8 * SECONDS)
    assert bodies(pair.other) == [b"one"]
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(20 * SECONDS)
    assert bodies(pair.other) == [b"one", b"two"]


def test_a_promoted_slave_leaves_out_what_it_has_sent(pair: Pair) -> None:
    send(pair, "one", seconds=3)
    send(pair, "two", seconds=20)
    pair.run(100)
    lose_master(pair)
    pair.run(8 * SECONDS)
    pair.promote(is_killed=True)
    pair.run(30 * SECONDS)
    assert bodies(pair.other) == [b"one"]
    assert bodies(pair.slave) == [b"two"]


def test_a_master_that_lost_its_end_skips_nothing(pair: Pair, tmp_path: Path) -> None:
    send(pair, "one", seconds=60)
    pair.run(100)
    pair.part()
    pair.run()
    pair.master.kill()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "master", saved)
    pair.return_master()
    pair.run(3 * SECONDS)
    send(pair, "lost", seconds=2)
    pair.run(500)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert bodies(pair.other) == [b"lost"]
    shutil.rmtree(tmp_path / "master")
    shutil.copytree(saved, tmp_path / "master")
    pair.is_reachable = False
    pair.open_master()
    send(pair, "new", seconds=20)
    pair.master.kill()
    return_master(pair)
    pair.run(70 * SECONDS)
    assert sorted(bodies(pair.master)) == [b"new", b"one"]


def lose_master_of(pair: Pair, count: int) -> list[bytes]:
    """Lose a master that has timer messages of one slot; return their bodies."""
    texts = [f"{number:02}" for number in range(count)]
    send(pair, *texts, seconds=5)
    pair.run(100)
    lose_master(pair)
    return [text.encode() for text in texts]


def test_the_master_waits_for_answers_that_its_slave_awaits(pair: Pair) -> None:
    """The slot is with another master, and nobody knows yet; the answers arrive while the master waits."""
    pair.held_answers = []
    texts = lose_master_of(pair, 10)
    pair.run(7 * SECONDS)
    assert len(pair.held_answers) == len(texts)
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(2 * SECONDS)
    pair.release_answers()
    pair.run(2 * ROUND_MS)
    assert (sorted(bodies(pair.other)), bodies(pair.master)) == (texts, [])


def test_the_master_waits_for_the_rest_of_a_slot_that_was_sent_in_part(pair: Pair) -> None:
    """Nothing is under way when it asks: the other master has taken 32 of 40, and is out of reach."""
    pair.other_takes = 32
    texts = lose_master_of(pair, 40)
    pair.run(7 * SECONDS)
    assert len(bodies(pair.other)) == 32
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(3 * SECONDS)
    pair.other_takes = None
    pair.run(2 * ROUND_MS)
    assert (sorted(bodies(pair.other)), bodies(pair.master)) == (texts, [])


def test_the_master_waits_for_a_slot_whose_sending_is_held_up(pair: Pair) -> None:
    """32 of 40 are accepted, and the answers about the others are late."""
    pair.other_takes = 32
    texts = lose_master_of(pair, 40)
    pair.run(7 * SECONDS)
    pair.other_takes, pair.held_answers = None, []
    pair.run(2 * SECONDS)
    assert pair.held_answers
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(2 * SECONDS)
    pair.release_answers()
    pair.run(2 * ROUND_MS)
    assert (sorted(bodies(pair.other)), bodies(pair.master)) == (texts, [])


def test_a_master_that_is_gone_again_leaves_the_rest_of_the_slot_to_its_slave(pair: Pair) -> None:
    """It has asked, and the slave has stopped in the middle of a slot."""
    pair.other_takes = 32
    texts = lose_master_of(pair, 40)
    pair.run(7 * SECONDS)
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(3 * SECONDS)
    send(pair, "new", seconds=5)
    texts.append(b"new")
    pair.run(500)
    lose_master(pair)
    pair.other_takes = None
    pair.run(90 * SECONDS)
    assert sorted(bodies(pair.other)) == texts
    return_master(pair)
    assert (sorted(bodies(pair.other)), bodies(pair.master)) == (texts, [])


def test_what_is_awaited_when_the_log_is_cut_says_nothing_of_the_new_log(pair: Pair, tmp_path: Path) -> None:
    """The answers arrive after the cut; then the slave is promoted."""
    assert pair.master.send(FakePeer(), body=b"shared").code == ResponseCode.SUCCESS
    pair.run(100)
    pair.part()
    pair.run()
    pair.master.kill()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "master", saved)
    pair.return_master()
    pair.run(3 * SECONDS)
    pair.held_answers = []
    reply = pair.master.send(FakePeer(), body=b"level", properties={"DELAY": "2", "UNIQ_KEY": "level"})
    assert reply.code == ResponseCode.SUCCESS
    lose_master_of(pair, 10)
    pair.run(7 * SECONDS)
    assert len(pair.held_answers) == 11
    shutil.rmtree(tmp_path / "master")
    shutil.copytree(saved, tmp_path / "master")
    pair.return_master()
    for _ in range(20):
        pair.run(100)
        if pair.slave.broker.store.end <= pair.master.broker.store.end:
            break
    reply = pair.master.send(FakePeer(), body=b"new", properties={"DELAY": "2", "UNIQ_KEY": "new"})
    assert reply.code == ResponseCode.SUCCESS
    pair.run(100)
    assert pair.slave.broker.store.end == pair.master.broker.store.end
    pair.release_answers()
    pair.run(100)
    pair.promote(is_killed=True)
    pair.run(60 * SECONDS)
    assert b"new" in bodies(pair.slave)


@pytest.mark.parametrize("seed", quick(range(6), 2))
def test_whatever_happens_each_message_is_delivered_once(tmp_path: Path, seed: int) -> None:
    """Masters are killed and return, slaves are closed and opened, and messages wait meanwhile."""
    random = Random(seed)
    pair = open_pair(tmp_path, namesrv_addr="127.0.0.1:9876", **ACTING)
    sent: list[bytes] = []
    for _ in range(25):
        match random.choice(["send", "send", "wait", "wait", "master", "slave"]):
            case "send" if pair.is_reachable:
                texts = [f"{len(sent) + number}" for number in range(random.randint(1, 40))]
                send(pair, *texts, seconds=random.randint(1, 30))
                sent += [text.encode() for text in texts]
            case "wait":
                pair.run(random.choice([10, 300, 3_000, 12_000]))
            case "master" if pair.is_reachable:
                lose_master(pair)
            case "master":
                pair.return_master()
                pair.run(2 * ROUND_MS)
            case "slave":
                pair.run(5 * SECONDS)  # A slot that was sent in part is sent again.
                pair.slave.close()
                pair.open_slave(**ACTING, enable_remote_escape=True)
    if not pair.is_reachable:
        return_master(pair)
    pair.run(120 * SECONDS)
    delivered = [*bodies(pair.master), *bodies(pair.other)]
    pair.close()
    assert set(delivered) == set(sent)
    assert sorted(delivered) == sorted(sent)


def test_a_master_that_asks_late_hears_what_was_sent(pair: Pair) -> None:
    """Its slave has copied its tables by then."""
    send(pair, "one", seconds=5)
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = True
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(15 * SECONDS)
    pair.leaves_master_alone = False
    pair.run(60 * SECONDS)
    assert (bodies(pair.other), bodies(pair.master)) == ([b"one"], [])


def test_large_messages_of_one_time_are_sent_one_after_the_other(pair: Pair) -> None:
    for name in ("one", "two", "three", "four", "five"):
        send(pair, name + "x" * 500_000, seconds=5, UNIQ_KEY=name)
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert len(bodies(pair.other)) == 5
    assert pair.asked_bytes_max < 2 * WINDOW_BYTES_MAX


def test_a_master_that_returns_waits_no_second_for_each_step_of_a_slot(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the messages behind the one that was sent, all were recalled."""
    monkeypatch.setattr(timers, "WINDOW_MAX", 1)
    pair = open_pair(tmp_path, recall_message_enable=True)
    try:
        send(pair, "one", seconds=5)
        for name in range(60):
            asked = {"TIMER_DELAY_SEC": "5", "UNIQ_KEY": f"{name}"}
            reply = pair.master.send(FakePeer(), body=b"none", properties=asked)
            header = h.RecallMessageHeader(topic="T", recall_handle=reply.ext["recallHandle"])
            assert not pair.master.ask(FakePeer(), RequestCode.RECALL_MESSAGE, header).code
        send(pair, "two", seconds=5)
        pair.run(100)
        lose_master(pair)
        for _ in range(1_000):
            if bodies(pair.other):
                break
            pair.run(15)
        pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
        pair.run(3 * SECONDS)
        first = bodies(pair.other)
        pair.run(60 * SECONDS)
        assert (first, bodies(pair.master)) == ([b"one", b"two"], [])
    finally:
        pair.close()


def test_a_second_slave_that_has_heard_less_brings_nothing_again(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, namesrv_addr="127.0.0.1:9876", **ACTING)
    try:
        pair.open_second(**ACTING, enable_remote_escape=True)
        pair.run(ROUND_MS)
        send(pair, "one", seconds=5)
        send(pair, "two", seconds=9)
        pair.run(100)
        pair.freeze_master()
        for _ in range(2_000):
            if len(bodies(pair.other)) == 2:
                break
            pair.run(15)
        pair.thaw_master()
        pair.run(60 * SECONDS)
        assert (bodies(pair.other), bodies(pair.master)) == ([b"one", b"two"], [])
    finally:
        pair.close()
