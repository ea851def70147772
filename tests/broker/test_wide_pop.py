"""Pops larger than a check point, by LibraMQ's consumers, which state how many messages they take."""

from pathlib import Path

import pytest

from libramq.broker.pop import taking
from libramq.client.popping.popped import batch_acks
from libramq.codes import RequestCode, ResponseCode
from libramq.message import MessageExt
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.names import TIMER_TOPIC
from libramq.message.properties import TIMER_DELIVER_MS
from libramq.pop.entries import AckEntry, CheckPointEntry, decode_entry
from libramq.remoting import headers
from libramq.remoting.body.pop import BatchAckBody
from libramq.timers.timers import TimerMessages
from tests.broker.brokers import Conversation, answer, send_header
from tests.broker.test_pop import Popper, bodies, popped
from tests.fakes import FakePeer

MANY = 1024


@pytest.fixture
def broker(tmp_path: Path):
    conversation = Conversation(tmp_path)
    conversation.create_topic("T", queues=1)
    yield conversation
    conversation.close()


def fill(broker: Conversation, count: int, tags: tuple[bytes, ...] = (b"",)) -> None:
    """Send messages, with these tags in turn."""
    items = [
        BatchItem(0, b"%d" % number, b"TAGS\x01%b\x02" % tags[number % len(tags)] if any(tags) else b"")
        for number in range(count)
    ]
    header = send_header("T", batch=True)
    reply = broker.ask(FakePeer(), RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(items))
    assert reply.code == ResponseCode.SUCCESS


def wide_pop(popper: Popper, count: int = MANY, **fields: object) -> list[MessageExt]:
    return popper.pop(lb_max_msg_nums=count, **fields)


def acknowledge(popper: Popper, messages: list[MessageExt]) -> None:
    (acks,) = batch_acks("G", messages).values()
    body = BatchAckBody(broker_name="broker-a", acks=acks)
    assert (
        popper.broker.ask(popper.peer, RequestCode.BATCH_ACK_MESSAGE, None, body).code == ResponseCode.SUCCESS
    )


def entries(broker: Conversation) -> list[CheckPointEntry | AckEntry | None]:
    return [decode_entry(each.tags, each.body) for each in broker.messages(TIMER_TOPIC)]


def test_one_pop_returns_several_check_points(broker: Conversation):
    """Each has its own handles and at most 32 messages in the journal, where Apache's broker may read it."""
    fill(broker, 100)
    popper = Popper(broker)
    taken = wide_pop(popper, 90)
    assert bodies(taken) == [b"%d" % number for number in range(90)]
    assert [(each.start_offset, each.count) for each in entries(broker)] == [(0, 32), (32, 32), (64, 26)]
    assert taken[40].properties["POP_CK"].split() == [
        "32", *taken[0].properties["POP_CK"].split()[1:7], "40",
    ]  # fmt: skip
    assert bodies(popper.pop()) == [b"%d" % number for number in range(90, 100)]


def test_records_of_a_pop_that_leaves_none_out_are_not_looked_at(
    broker: Conversation, monkeypatch: pytest.MonkeyPatch
):
    """Their offsets follow one another; those of a selection are read from the records."""
    fill(broker, 70, (b"TagA", b"TagB"))
    looked_at: list[object] = []
    look = taking.queue_offsets
    monkeypatch.setattr(taking, "queue_offsets", lambda pieces: looked_at.append(pieces) or look(pieces))
    popper = Popper(broker)
    assert [each.queue_offset for each in wide_pop(popper, 50)] == [*range(50)]
    assert not looked_at
    assert [each.queue_offset for each in wide_pop(popper, exp="TagB", exp_type="TAG")] == [*range(51, 70, 2)]
    assert looked_at


def test_the_entries_of_a_pop_have_their_own_keys_and_times(broker: Conversation):
    """Apache's broker delivers a check point a second before its acknowledgements."""
    fill(broker, 40)
    popper = Popper(broker)
    taken = wide_pop(popper, invisible_time=60_000)
    popped_ms = int(taken[0].properties["POP_CK"].split()[1])
    acknowledge(popper, taken)
    stored = [each.properties for each in broker.messages(TIMER_TOPIC)]
    assert [each["UNIQ_KEY"] for each in stored] == [
        f"T@0@{first}@G@{popped_ms}@broker-a@{tag}"
        for first, tag in ((0, "ck"), (32, "ck"), (-1, "ack"), (-1, "ack"))
    ]
    assert [each["TAGS"] for each in stored] == ["ck", "ck", "bAck", "bAck"]
    due_ms = [int(each[TIMER_DELIVER_MS]) for each in stored]
    assert due_ms == [popped_ms + delay_ms for delay_ms in (59_000, 59_000, 60_000, 60_000)]


def test_the_timers_are_not_woken_by_entries_of_pops(broker: Conversation, monkeypatch: pytest.MonkeyPatch):
    """They pass over them at once; a timer message behind them is delivered in its time."""
    fill(broker, 40)
    broker.advance(10)
    rounds: list[object] = []
    advance = TimerMessages.advance
    monkeypatch.setattr(
        TimerMessages, "advance", lambda *arguments: rounds.append(arguments) or advance(*arguments)
    )
    popper = Popper(broker)
    acknowledge(popper, wide_pop(popper, invisible_time=60_000))
    broker.advance(10)
    assert len(broker.messages(TIMER_TOPIC)) == 4
    assert not rounds
    due_ms = int(broker.clock.wall_ms()) + 2_000
    broker.send(FakePeer(), body=b"later", properties=f"TIMER_DELIVER_MS\x01{due_ms}\x02")
    broker.advance(5_000)
    assert rounds
    assert broker.messages("T")[-1].body == b"later"


def test_entries_behind_a_timer_message_are_read_once(broker: Conversation, monkeypatch: pytest.MonkeyPatch):
    """Where the timers have read amid a run of entries, what follows them does not wake the timers either."""
    fill(broker, 40)
    broker.advance(10)
    popper = Popper(broker)
    for _ in range(2):
        broker.send(FakePeer(), body=b"later", properties="TIMER_DELAY_SEC\x01100\x02")
        popper.pop(max_msg_nums=1, invisible_time=60_000)
    broker.advance(10)
    monkeypatch.setattr(TimerMessages, "advance", lambda *_: pytest.fail("the timers were woken"))
    for _ in range(2):
        acknowledge(popper, popper.pop(max_msg_nums=1, invisible_time=60_000))
        broker.advance(10)
    assert len(broker.messages(TIMER_TOPIC)) == 8


def test_messages_of_a_wide_pop_are_acknowledged_by_check_points(broker: Conversation):
    fill(broker, 100)
    popper = Popper(broker)
    taken = wide_pop(popper)
    assert len(taken) == 100
    acknowledge(popper, [*taken[:33], *taken[34:99]])
    acks = [each.offsets for each in entries(broker) if isinstance(each, AckEntry)]
    assert [len(each or ()) for each in acks] == [32, 31, 32, 3]
    assert popper.ack(taken[99]).code == ResponseCode.SUCCESS
    assert wide_pop(popper) == []
    broker.advance(10_000)
    (again,) = wide_pop(popper)
    assert again.body == b"33"
    acknowledge(popper, [again])
    broker.advance(10_000)
    assert wide_pop(popper) == []


@pytest.mark.parametrize("ends", ["kill", "close"])
def test_a_wide_pop_is_continued_by_the_next_process(tmp_path: Path, ends: str):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    fill(broker, 100)
    popper = Popper(broker)
    taken = wide_pop(popper, 70)
    acknowledge(popper, taken[:50])
    getattr(broker, ends)()
    broker = Conversation(tmp_path, clock=broker.clock)
    popper = Popper(broker)
    assert bodies(wide_pop(popper, invisible_time=60_000)) == [b"%d" % number for number in range(70, 100)]
    acknowledge(popper, taken[50:60])
    broker.advance(10_000)
    assert sorted(bodies(wide_pop(popper))) == sorted(b"%d" % number for number in range(60, 70))
    broker.close()


def test_messages_that_come_again_have_the_handles_of_their_check_points(broker: Conversation):
    fill(broker, 80)
    popper = Popper(broker)
    wide_pop(popper, invisible_time=1_000)
    broker.advance(1_000)
    broker.tick()
    again = wide_pop(popper)
    assert sorted(bodies(again)) == sorted(b"%d" % number for number in range(80))
    assert [each.properties["POP_CK"].split()[0] for each in again[31:65:32]] == ["0", "32"]
    acknowledge(popper, again)
    broker.advance(20_000)
    assert wide_pop(popper) == []


def test_a_wide_pop_passes_over_messages_with_other_tags(broker: Conversation):
    fill(broker, 200, tags=(b"A", b"B", b"B"))
    popper = Popper(broker)
    taken = wide_pop(popper, exp="A", exp_type="TAG")
    assert bodies(taken) == [b"%d" % number for number in range(0, 200, 3)]
    starts = [each.start_offset for each in entries(broker)]
    assert starts == [0, 96, 192]
    acknowledge(popper, taken)
    broker.advance(10_000)
    assert wide_pop(popper, exp="A", exp_type="TAG") == []


def test_a_pop_without_the_field_and_one_in_order_have_one_check_point(broker: Conversation):
    """As Apache's clients send it. More than 32 are refused, as at Apache's broker."""
    fill(broker, 100)
    popper = Popper(broker)
    command = popper.command(max_msg_nums=33)
    broker.give(popper.peer, command)
    assert answer(popper.peer, command).code == ResponseCode.INVALID_PARAMETER
    assert len(popper.pop()) == 32
    command = popper.command(order=True, lb_max_msg_nums=100)
    broker.give(popper.peer, command)
    assert len(popped(answer(popper.peer, command))) == 32


def test_a_held_wide_pop_gets_all_that_comes(broker: Conversation):
    popper = Popper(broker)
    command = popper.command(lb_max_msg_nums=MANY, wait_ms=5_000)
    broker.give(popper.peer, command)
    fill(broker, 70)
    assert len(popped(answer(popper.peer, command))) == 70


def test_an_answer_ends_with_the_queue_that_fills_it(broker: Conversation, monkeypatch: pytest.MonkeyPatch):
    """Every queue gives one message, however large; all of them together would exceed a frame."""
    monkeypatch.setattr(taking, "POP_BYTES_MAX", 100_000)
    broker.create_topic("Large", queues=8)
    for queue_id in range(8):
        broker.send(FakePeer(), "Large", bytes(60_000), queue_id=queue_id)
    popper = Popper(broker, topic="Large")
    assert len(wide_pop(popper)) == 2
    command = popper.command()
    broker.give(popper.peer, command)
    reply = answer(popper.peer, command)
    assert len(popped(reply)) == 2
    assert int(reply.ext["restNum"]) == 4


def test_pops_take_the_queues_in_turn_whatever_is_looked_at_between(broker: Conversation):
    """A queue that is never empty keeps no other from being popped."""
    broker.create_topic("Spread", queues=4)
    for number in range(48):
        broker.send(FakePeer(), "Spread", b"%d" % number, queue_id=number % 4)
    popper, seen = Popper(broker, topic="Spread"), list[int]()
    for _ in range(8):
        header = headers.NotificationHeader(
            consumer_group="G", topic="Spread", queue_id=-1, poll_time=0, born_time=0
        )
        assert broker.ask(popper.peer, RequestCode.NOTIFICATION, header).ext["hasMsg"] == "true"
        seen += {message.queue_id for message in popper.pop(max_msg_nums=2)}
    assert seen == [(seen[0] + turn) % 4 for turn in range(8)]


def test_pops_in_order_take_the_queues_in_turn_as_well(broker: Conversation):
    """This holds even after a pop that moved the group past messages of other tags."""
    broker.create_topic("Spread", queues=4)
    broker.send(FakePeer(), "Spread", b"other", queue_id=2, properties="TAGS\x01B\x02")
    popper, seen = Popper(broker, topic="Spread"), list[int]()
    in_order = {"order": True, "exp": "A", "exp_type": "TAG"}
    assert popper.pop(**in_order) == []
    for number in range(48):
        broker.send(FakePeer(), "Spread", queue_id=number % 4, properties="TAGS\x01A\x02")
    for _ in range(8):
        taken = popper.pop(max_msg_nums=2, **in_order)
        seen += {message.queue_id for message in taken}
        for message in taken:
            assert popper.ack(message).code == ResponseCode.SUCCESS
    assert seen == [(3 + turn) % 4 for turn in range(8)]
