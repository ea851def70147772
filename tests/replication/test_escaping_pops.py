"""An acting slave passes on what was popped and not acknowledged; its master leaves it out later."""

import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from libramq.broker.cluster.acting_slave import pops
from libramq.broker.files.files import BrokerFiles
from libramq.broker.files.passed_on_file import PassedOnFile
from libramq.client.popping.popped import batch_acks
from libramq.clock import MonotonicMs, WallMs
from libramq.codes import RequestCode, ResponseCode
from libramq.filesystem import LocalFileSystem
from libramq.formats import fastjson
from libramq.formats.document import encode_body
from libramq.message import MessageExt
from libramq.pop import CheckPoint
from libramq.pop.check_point import check_point_of
from libramq.pop.entries import CheckPointEntry
from libramq.pop.passed_on import PassedOn
from libramq.remoting.body.pop import BatchAckBody
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper
from tests.fakes import FakePeer
from tests.quick import quick
from tests.replication.pairs import Pair
from tests.replication.test_escaping import ACTING, ROUND_MS, SECONDS, lose_master, return_master

RETRY = "%RETRY%G_T"
INVISIBLE_MS = 20 * SECONDS


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = open_pair(tmp_path)
    yield pair
    pair.close()


def open_pair(root: Path, **of_master: object) -> Pair:
    pair = Pair(root, **of_master)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.master.create_topic("T", queues=1)
    pair.open_other().create_topic("T", queues=1)
    assert Popper(pair.master).pop() == []  # The group is created.
    assert pair.other is not None
    assert Popper(pair.other).pop() == []
    pair.run(ROUND_MS)
    return pair


def send(pair: Pair, *texts: str, topic: str = "T", **properties: str) -> None:
    for text in texts:
        named = {"UNIQ_KEY": text} | properties
        reply = pair.master.send(FakePeer(), topic, body=text.encode(), properties=named, born_timestamp=7)
        assert reply.code == ResponseCode.SUCCESS


def pop(talk: Conversation | None, **fields: object) -> list[MessageExt]:
    assert talk is not None
    return Popper(talk).pop(**({"invisible_time": INVISIBLE_MS} | fields))


def texts(messages: list[MessageExt]) -> list[str]:
    return sorted(message.body.decode() for message in messages)


def ack(talk: Conversation | None, *messages: MessageExt) -> None:
    assert talk is not None
    for message in messages:
        assert Popper(talk).ack(message).code == ResponseCode.SUCCESS


def redelivered(talk: Conversation | None) -> list[str]:
    """Return what came to a broker's retry topic, popped or not."""
    assert talk is not None
    return texts(talk.messages(RETRY))


def test_what_was_not_acknowledged_is_redelivered_by_another_master(pair: Pair) -> None:
    send(pair, "one", "two", "three")
    _, two, _ = pop(pair.master)
    ack(pair.master, two)
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert redelivered(pair.other) == []  # They are invisible still.
    pair.run(10 * SECONDS)
    again = pop(pair.other)
    assert texts(again) == ["one", "three"]
    assert {message.reconsume_times for message in again} == {1}
    ack(pair.other, *again)
    return_master(pair)
    pair.run(60 * SECONDS)
    assert pop(pair.master) == []
    assert redelivered(pair.master) == []
    assert pop(pair.other) == []


def test_what_is_acknowledged_at_the_acting_slave_comes_no_more(pair: Pair) -> None:
    send(pair, "one", "two", "three")
    one, two, _ = pop(pair.master)
    pair.run(100)
    popper = Popper(pair.slave)
    assert popper.ack(one).code == ResponseCode.SYSTEM_BUSY  # Its master is there.
    lose_master(pair)
    pair.run(15 * SECONDS)
    ack(pair.slave, one)
    ack(pair.slave, one)
    (acks,) = batch_acks("G", [two]).values()
    body = encode_body(BatchAckBody(broker_name="broker-a", acks=acks))
    batch = pair.slave.ask(FakePeer(), RequestCode.BATCH_ACK_MESSAGE, None, body)
    assert batch.code == ResponseCode.SUCCESS
    assert popper.change(two, 1_000).code == ResponseCode.SYSTEM_BUSY
    pair.run(10 * SECONDS)
    assert redelivered(pair.other) == ["three"]
    return_master(pair)
    assert popper.ack(one).code == ResponseCode.SYSTEM_BUSY
    pair.run(60 * SECONDS)
    assert pop(pair.master) == []


def test_what_is_acknowledged_at_the_slave_does_not_come_again_at_the_master_that_returns(
    pair: Pair,
) -> None:
    """It is back before the messages are visible again. Others of the same pop are redelivered."""
    send(pair, "one", "two", "three")
    one, _, three = pop(pair.master)
    send(pair, "four")
    four = pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(10 * SECONDS)
    ack(pair.slave, three, one, *four)
    return_master(pair)
    pair.run(INVISIBLE_MS + SECONDS)
    assert redelivered(pair.master) == ["two"]
    assert redelivered(pair.other) == []
    lose_master(pair)  # The journal has the acknowledgements now.
    pair.run(20 * SECONDS)
    assert pair.slave.broker.files.passed_on.account.acknowledged == ()
    return_master(pair)
    pair.run(INVISIBLE_MS)
    assert redelivered(pair.master) == ["two"]


@pytest.mark.parametrize("end", ["killed", "promoted"])
def test_acknowledgements_survive_the_end_of_a_slave(pair: Pair, end: str) -> None:
    """They are written within a second."""
    send(pair, "one", "two")
    one, _ = pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(10 * SECONDS)
    ack(pair.slave, one)
    pair.run(1_200)
    if end == "promoted":
        pair.promote(is_killed=True)
        pair.run(30 * SECONDS)
        assert redelivered(pair.slave) == ["two"]
        return
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(30 * SECONDS)
    assert redelivered(pair.other) == ["two"]
    return_master(pair)
    pair.run(INVISIBLE_MS)
    assert redelivered(pair.master) == []


def test_acknowledgements_of_what_was_cut_from_the_log_count_for_nothing(tmp_path: Path) -> None:
    file = PassedOnFile(LocalFileSystem(), tmp_path)
    file.content = PassedOn(place=2, until=9)
    file.acknowledge(7, 0b01)
    file.acknowledge(7, 0b10)
    assert file.account == PassedOn(place=2, until=9, acknowledged=((7, 0b11),))
    assert file.has_changes
    progress = file.take(WallMs(0))
    assert progress is not None
    progress.write()
    progress.written()
    assert not file.has_changes
    assert PassedOnFile(LocalFileSystem(), tmp_path).acknowledged(7) == 0b11
    assert not file.cut(8)
    assert file.account == PassedOn()
    assert file.acknowledged(7) == 0


def test_an_acknowledgement_at_a_slave_that_does_not_know_what_was_popped_is_refused(pair: Pair) -> None:
    """Its own offset may be impossible, too."""
    send(pair, "one")
    (one,) = pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(15 * SECONDS)
    popper = Popper(pair.slave)
    assert popper.ack(one, offset=1 << 40).code == ResponseCode.SYSTEM_BUSY
    assert popper.ack(one, offset=-1).code == ResponseCode.SYSTEM_BUSY
    assert popper.ack(one, extra_info="none").code != ResponseCode.SUCCESS
    pair.slave.broker.files.passed_on.journal_begins_at(-1)
    slave = pair.slave.broker.replication.slave
    assert slave is not None
    assert slave.escaping is not None
    slave.escaping.forget()
    pair.run(5 * SECONDS)
    assert popper.ack(one).code == ResponseCode.SYSTEM_BUSY
    pair.run(20 * SECONDS)
    assert redelivered(pair.other) == []


def test_a_message_keeps_what_its_producer_gave_it(pair: Pair) -> None:
    send(pair, "one", TAGS="red", colour="blue")
    pair.run(100)
    popped_ms = int(pair.clock.wall_ms())
    pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert pair.other is not None
    (message,) = pair.other.messages(RETRY)
    assert (message.tags, message.properties["colour"], message.born_timestamp_ms) == ("red", "blue", 7)
    assert message.properties["1ST_POP_TIME"] == str(popped_ms)


def test_a_message_that_was_delayed_before_is_not_delayed_again(pair: Pair) -> None:
    send(pair, "one", DELAY="1")
    send(pair, "two", TIMER_DELAY_SEC="1")
    pair.run(5 * SECONDS)
    assert texts(pop(pair.master)) == ["one", "two"]
    pair.run(100)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["one", "two"]


def test_a_message_without_attempts_left_becomes_a_dead_letter_of_its_group(pair: Pair) -> None:
    send(pair, "one")
    assert pair.other is not None
    for talk in (pair.master, pair.other):
        config = {"groupName": "G", "retryMaxTimes": 1}
        code = RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP
        assert talk.ask(FakePeer(), code, None, fastjson.dumps(config)).code == ResponseCode.SUCCESS
    pop(pair.master, invisible_time=1_000)
    pair.run(3 * SECONDS)
    assert texts(pop(pair.master)) == ["one"]
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert texts(pair.other.messages("%DLQ%G")) == ["one"]
    assert redelivered(pair.other) == []
    assert "G_T" not in pair.other.broker.groups


def test_a_topic_that_no_other_master_has_waits_and_holds_up_no_other(pair: Pair) -> None:
    pair.master.create_topic("Only", queues=1)
    send(pair, "only", topic="Only")
    popper = Popper(pair.master, topic="Only")
    assert texts(popper.pop(invisible_time=INVISIBLE_MS)) == ["only"]
    send(pair, "one")
    pop(pair.master)
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["one"]
    return_master(pair)
    assert redelivered(pair.master) == []
    assert texts(Popper(pair.master, topic="Only").pop()) == ["only"]


def test_a_topic_that_another_master_gets_later_is_redelivered_then(pair: Pair) -> None:
    pair.master.create_topic("Only", queues=1)
    send(pair, "only", topic="Only")
    assert texts(Popper(pair.master, topic="Only").pop(invisible_time=INVISIBLE_MS)) == ["only"]
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert pair.other is not None
    pair.other.create_topic("Only", queues=1)
    pair.run(5 * SECONDS)
    assert texts(pair.other.messages("%RETRY%G_Only")) == ["only"]
    return_master(pair)
    assert Popper(pair.master, topic="Only").pop() == []


def test_what_the_master_wrote_again_at_its_stop_is_left_out_all_the_same(pair: Pair) -> None:
    """Its check points are at other places in its journal than in its slave's."""
    for number in range(4):
        send(pair, f"{number}")
        first = pop(pair.master)
        if number < 2:
            ack(pair.master, *first)
    pair.run(100)
    pair.part()
    pair.run()
    before = pair.master.broker.store.max_offset("rmq_sys_wheel_timer", 0)
    pair.master.close()
    pair.master.is_killed = True
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["2", "3"]
    return_master(pair)
    assert pair.master.broker.store.max_offset("rmq_sys_wheel_timer", 0) > before
    assert pop(pair.master) == []
    assert redelivered(pair.master) == []


def test_what_the_slave_does_not_have_its_master_redelivers(pair: Pair) -> None:
    send(pair, "one", "two")
    assert texts(pop(pair.master, max_msg_nums=1)) == ["one"]
    pair.run(100)
    pair.part()
    pair.run()
    assert texts(pop(pair.master, max_msg_nums=1)) == ["two"]
    pair.master.kill()
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["one"]
    return_master(pair)
    assert texts(pop(pair.master)) == ["two"]


def test_an_acknowledgement_that_the_slave_does_not_have_counts_at_the_master(pair: Pair) -> None:
    send(pair, "one")
    one = pop(pair.master)
    pair.run(100)
    pair.part()
    pair.run()
    ack(pair.master, *one)
    pair.master.kill()
    return_master(pair)
    pair.run(60 * SECONDS)
    assert pop(pair.master) == []


def test_a_slave_that_is_killed_goes_on_behind_what_it_has_passed_on(pair: Pair) -> None:
    send(pair, "one", "two")
    assert texts(pop(pair.master, max_msg_nums=1)) == ["one"]
    pair.run(10 * SECONDS)
    assert texts(pop(pair.master, max_msg_nums=1)) == ["two"]
    pair.run(100)
    lose_master(pair)
    pair.run(13 * SECONDS)
    assert redelivered(pair.other) == ["one"]
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(20 * SECONDS)
    assert redelivered(pair.other) == ["one", "two"]
    return_master(pair)
    assert pop(pair.master) == []


def test_a_promoted_slave_leaves_out_what_it_has_passed_on(pair: Pair) -> None:
    send(pair, "one", "two")
    assert texts(pop(pair.master, max_msg_nums=1)) == ["one"]
    pair.run(10 * SECONDS)
    assert texts(pop(pair.master, max_msg_nums=1)) == ["two"]
    pair.run(100)
    lose_master(pair)
    pair.run(13 * SECONDS)
    pair.promote(is_killed=True)
    pair.run(30 * SECONDS)
    assert redelivered(pair.other) == ["one"]
    assert texts(pop(pair.slave)) == ["two"]


def test_nothing_is_visible_again_before_the_slave_has_answered(pair: Pair) -> None:
    send(pair, "one")
    pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["one"]
    pair.leaves_master_alone = True
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(15 * SECONDS)
    assert pop(pair.master) == []
    pair.leaves_master_alone = False
    pair.run(60 * SECONDS)
    assert pop(pair.master) == []


def test_a_master_whose_slaves_do_not_answer_redelivers_after_a_while(pair: Pair) -> None:
    send(pair, "one")
    pop(pair.master)
    pair.run(100)
    lose_master(pair)
    pair.run(25 * SECONDS)
    pair.leaves_master_alone = True
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(40 * SECONDS)
    assert texts(pop(pair.master)) == ["one"]


def pop_many(pair: Pair, count: int) -> list[str]:
    """Pop messages one by one, and lose the master."""
    names = [f"{number:02}" for number in range(count)]
    send(pair, *names)
    for _ in names:
        assert len(pop(pair.master, max_msg_nums=1)) == 1
    pair.run(100)
    lose_master(pair)
    return names


def test_the_master_waits_for_what_was_sent_in_part(pair: Pair) -> None:
    """The other master has taken 7 of 32, and is out of reach when the master asks."""
    pair.other_takes = 7
    names = pop_many(pair, 40)
    pair.run(23 * SECONDS)
    assert len(redelivered(pair.other)) == 7
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(3 * SECONDS)
    pair.other_takes = None
    pair.run(2 * ROUND_MS)
    assert sorted([*redelivered(pair.other), *redelivered(pair.master)]) == names
    assert len(redelivered(pair.master)) == 8


def test_the_master_waits_for_answers_that_its_slave_awaits(pair: Pair) -> None:
    pair.held_answers = []
    names = pop_many(pair, 10)
    pair.run(23 * SECONDS)
    assert len(pair.held_answers) == 10
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(2 * SECONDS)
    pair.release_answers()
    pair.run(2 * ROUND_MS)
    assert (redelivered(pair.other), redelivered(pair.master)) == (names, [])


def test_a_journal_is_read_in_slices_and_sent_on_in_their_order(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pops, "READ_MAX", 7)
    monkeypatch.setattr(pops, "PORTION", 3)
    monkeypatch.setattr(pops, "WINDOW_MAX", 1)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(ROUND_MS)
    names = pop_many(pair, 40)
    pair.run(30 * SECONDS)
    assert pair.other is not None
    assert [message.body.decode() for message in pair.other.messages(RETRY)] == names


def test_what_is_visible_first_is_passed_on_first(pair: Pair) -> None:
    send(pair, "one", "two")
    assert texts(pop(pair.master, max_msg_nums=1, invisible_time=60 * SECONDS)) == ["one"]
    assert texts(pop(pair.master, max_msg_nums=1)) == ["two"]
    pair.run(100)
    lose_master(pair)
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["two"]
    return_master(pair)
    pair.run(60 * SECONDS)
    assert texts(pop(pair.master)) == ["one"]


def test_a_slave_that_is_killed_soon_knows_what_it_has_passed_on(pair: Pair) -> None:
    names = pop_many(pair, 3)
    for _ in range(3_000):
        if redelivered(pair.other) == names:
            break
        pair.run(10)
    pair.run(200)
    pair.slave.kill()
    pair.open_slave(**ACTING, enable_remote_escape=True)
    pair.run(20 * SECONDS)
    assert redelivered(pair.other) == names


def test_a_master_that_is_gone_again_leaves_the_rest_to_its_slave(pair: Pair) -> None:
    """It has asked, and the slave has stopped in the middle of a window."""
    pair.other_takes = 7
    names = pop_many(pair, 40)
    pair.run(23 * SECONDS)
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(3 * SECONDS)
    lose_master(pair)
    pair.other_takes = None
    pair.run(90 * SECONDS)
    assert redelivered(pair.other) == names
    return_master(pair)
    assert (redelivered(pair.other), redelivered(pair.master)) == (names, [])


def test_a_master_that_lost_its_end_redelivers_what_took_its_place(pair: Pair, tmp_path: Path) -> None:
    """It comes back without its end, and pops while it is cut off; the slave passes on what was there."""
    send(pair, "one", "two")
    pair.run(100)
    pair.part()
    pair.run()
    pair.master.kill()
    saved = tmp_path / "saved"
    shutil.copytree(tmp_path / "master", saved)
    pair.return_master()
    pair.run(ROUND_MS)
    assert texts(pop(pair.master)) == ["one", "two"]
    pair.run(500)
    lose_master(pair)
    shutil.rmtree(tmp_path / "master")
    shutil.copytree(saved, tmp_path / "master")
    pair.open_master()
    assert texts(pop(pair.master, invisible_time=5_000, max_msg_nums=1)) == ["one"]
    pair.master.kill()
    pair.run(25 * SECONDS)
    assert redelivered(pair.other) == ["one", "two"]
    return_master(pair)
    assert texts(pop(pair.master)) == ["one", "two"]


def test_a_cut_takes_the_account_of_what_is_cut(tmp_path: Path) -> None:
    file = PassedOnFile(LocalFileSystem(), tmp_path)
    account = file.content = PassedOn(place=1, until=10, visible_ms=7, origin=3)
    assert not file.cut(10)  # It is not saved yet.
    progress = file.take(WallMs(0))
    assert progress is not None
    progress.write()
    progress.written()
    assert file.cut(10)
    assert (file.content, PassedOnFile(LocalFileSystem(), tmp_path).content) == (account, account)
    assert not file.cut(9)
    assert file.content == PassedOn()


def test_a_log_that_is_cut_has_the_journal_begin_where_nobody_knows(pair: Pair) -> None:
    assert pair.slave.broker.files.passed_on.content.place >= 0
    pair.slave.broker.files.forget_progress()
    assert pair.slave.broker.files.passed_on.content.place == -1


def check_point(origin: int, visible_ms: int, count: int = 1) -> CheckPoint:
    return check_point_of(
        CheckPointEntry(
            group="G", topic="T", queue_id=0, start_offset=0, count=count,
            pop_time_ms=visible_ms - 5, invisible_ms=5,
        ),
        revive_queue=0, place=origin, due_ms=MonotonicMs(0),
    )  # fmt: skip


def test_an_account_names_the_messages_that_are_done() -> None:
    account = PassedOn(until=9, visible_ms=50, origin=3, waiting=(2,))
    acknowledged = {2: 0b100, 4: 0b11, 9: 1}
    passed_on, waiting = check_point(3, 50, 4), check_point(2, 50, 4)
    later, unread, other = check_point(4, 70, 2), check_point(9, 70), check_point(5, 70)
    found = account.done_of([passed_on, waiting, later, unread, other], acknowledged)
    assert list(found) == [(passed_on, 0b1111), (waiting, 0b100), (later, 0b11)]
    waiting.done, later.done = 0b100, 0b01
    assert list(account.done_of([waiting, later], acknowledged)) == [(later, 0b10)]


def test_an_account_covers_what_is_before_its_mark() -> None:
    account = PassedOn(until=10, visible_ms=100, origin=5, waiting=(2,))
    places = [(1, 50), (9, 99), (5, 100), (4, 100), (6, 100), (2, 50), (10, 50), (-1, 50), (3, 101)]
    covered = account.of(check_point(*place) for place in places)
    assert [(each.origin, each.visible_ms) for each in covered] == places[:4]


def test_a_slave_of_apaches_master_passes_nothing_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its answer says nothing of POP."""
    monkeypatch.setattr(BrokerFiles, "pop_passed_on", lambda self: None)
    pair = open_pair(tmp_path)
    try:
        send(pair, "one")
        pop(pair.master)
        pair.run(ROUND_MS)
        lose_master(pair)
        pair.run(25 * SECONDS)
        assert redelivered(pair.other) == []
    finally:
        pair.close()


def test_retry_topics_of_the_second_version_are_made_by_the_other_master(tmp_path: Path) -> None:
    pair = open_pair(tmp_path, enable_retry_topic_v2=True)
    pair.slave.close()
    pair.open_slave(**ACTING, enable_remote_escape=True, enable_retry_topic_v2=True)
    pair.run(ROUND_MS)
    try:
        send(pair, "one")
        pop(pair.master)
        pair.run(100)
        lose_master(pair)
        pair.run(25 * SECONDS)
        assert pair.other is not None
        assert texts(pair.other.messages("%RETRY%G+T")) == ["one"]
        assert "G+T" not in pair.other.broker.groups
    finally:
        pair.close()


def test_a_group_that_the_slave_does_not_know_yet_is_left_to_the_master(pair: Pair) -> None:
    """It was created after the slave's last round of copies."""
    send(pair, "one")
    assert texts(Popper(pair.master, group="New").pop(invisible_time=INVISIBLE_MS)) == ["one"]
    pair.run(100)
    lose_master(pair)
    assert "New" not in pair.slave.broker.groups
    pair.run(25 * SECONDS)
    return_master(pair)
    assert texts(Popper(pair.master, group="New").pop()) == ["one"]


def test_messages_that_the_slave_does_not_have_are_left_to_the_master(tmp_path: Path) -> None:
    """An empty slave begins with its master's newest file, which has the check point alone."""
    pair = open_pair(tmp_path, commit_log_file_bytes=1 << 20)
    try:
        send(pair, "one")
        for _ in range(3):
            reply = pair.master.send(FakePeer(), "Other", body=b"x" * 500_000)
            assert reply.code == ResponseCode.SUCCESS
        assert texts(pop(pair.master)) == ["one"]
        pair.slave.close()
        pair.open_slave("empty", **ACTING, enable_remote_escape=True)
        pair.run(ROUND_MS)
        assert pair.slave.broker.store.log_start > 0
        lose_master(pair)
        pair.run(25 * SECONDS)
        assert redelivered(pair.other) == []
        return_master(pair)
        assert texts(pop(pair.master)) == ["one"]
    finally:
        pair.close()


@pytest.mark.parametrize("seed", quick(range(8), 2))
def test_whatever_happens_each_attempt_comes_once(tmp_path: Path, seed: int) -> None:
    """Masters stop, are killed and return, slaves are restarted, and some messages are acknowledged there."""
    random = Random(seed)
    pair = open_pair(tmp_path, namesrv_addr="127.0.0.1:9876", **ACTING)
    sent: list[str] = []
    popped: Counter[str] = Counter()

    def take(talk: Conversation | None) -> None:
        messages = pop(talk, max_msg_nums=random.randint(1, 32))
        popped.update(texts(messages))
        done = [message for message in messages if random.random() < 0.5]
        ack(talk, *done)
        acknowledged.update(texts(done))
        if talk is pair.master:
            until_ms = pair.clock.monotonic_ms() + INVISIBLE_MS - 3 * SECONDS
            held.extend((until_ms, message) for message in messages if message not in done)

    def ack_at_slave() -> None:
        """Acknowledge what is still invisible; it is noted within a second."""
        pair.run(10 * SECONDS)
        for until_ms, message in held:
            is_asked = pair.clock.monotonic_ms() < until_ms and random.random() < 0.7
            if is_asked and Popper(pair.slave).ack(message).code == ResponseCode.SUCCESS:
                acknowledged.update(texts([message]))
                at_slave.add((message.body.decode(), message.reconsume_times + 1))
        held.clear()
        pair.run(1_200)

    acknowledged: set[str] = set()
    held: list[tuple[int, MessageExt]] = []
    at_slave: set[tuple[str, int]] = set()
    for _ in range(40):
        match random.choice(["send", "pop", "pop", "wait", "wait", "master", "slave"]):
            case "send" if pair.is_reachable:
                names = [f"{len(sent) + number}" for number in range(random.randint(1, 40))]
                send(pair, *names)
                sent += names
            case "pop":
                take(random.choice([pair.master, pair.other]) if pair.is_reachable else pair.other)
            case "wait":
                pair.run(random.choice([10, 300, 3_000, 12_000, 25_000]))
            case "master" if pair.is_reachable:
                pair.run(100)
                pair.part()
                pair.run()
                if random.random() < 0.5:
                    pair.master.kill()
                else:
                    pair.master.close()
                    pair.master.is_killed = True
                if random.random() < 0.5:
                    ack_at_slave()
            case "master":
                pair.return_master()
                pair.run(2 * ROUND_MS)
            case "slave":
                pair.run(5 * SECONDS)  # What was sent in part is sent again.
                pair.slave.close()
                pair.open_slave(**ACTING, enable_remote_escape=True)
    if not pair.is_reachable:
        return_master(pair)
    attempts = Counter[tuple[str, int]]()
    for _ in range(30):
        pair.run(INVISIBLE_MS + 3 * SECONDS)
        for talk in (pair.master, pair.other):
            messages = pop(talk)
            ack(talk, *messages)
            acknowledged.update(texts(messages))
    for talk in (pair.master, pair.other):
        assert talk is not None
        attempts.update((message.body.decode(), message.reconsume_times) for message in talk.messages(RETRY))
    dead = {text for talk in (pair.master, pair.other) for text in texts(talk.messages("%DLQ%G"))}
    pair.close()
    assert not set(sent) - acknowledged - dead
    assert [each for each, count in attempts.items() if count > 1] == []
    assert not at_slave & attempts.keys()
