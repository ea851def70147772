"""POP: messages are popped, invisible, acknowledged, and visible again."""

import base64
import itertools
from pathlib import Path

import pytest

from libramq.broker.files import pop_journal as journal
from libramq.broker.pop import taking
from libramq.broker.pop.taking import PopSelection, Taking
from libramq.client.popping.popped import messages_of
from libramq.codes import RequestCode, ResponseCode
from libramq.formats import fastjson
from libramq.formats.document import decode_body
from libramq.formats.tables import MessageRequestMode, SubscriptionGroupConfig, TopicConfig
from libramq.groups.rebalance_event import decode_event
from libramq.message import MessageExt, decode_records
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.names import TIMER_TOPIC
from libramq.pop import CheckPoint
from libramq.pop.entries import AckEntry, CheckPointEntry, decode_entry
from libramq.remoting import headers as h
from libramq.remoting.body.consumers import ConsumeStats
from libramq.remoting.command import Command
from libramq.rpc.pop_calls import pop_message
from tests.broker.brokers import Conversation, answer, find_answer, send_header
from tests.fakes import FakePeer, turns_of

RETRY = "%RETRY%G_T"
#: For its call, which reads answers.
NO_POP = h.PopMessageHeader(
    consumer_group="", topic="", queue_id=0, max_msg_nums=0, invisible_time=0, poll_time=0, init_mode=0
)


@pytest.fixture
def broker(tmp_path: Path):
    conversation = Conversation(tmp_path)
    conversation.create_topic("T", queues=1)
    yield conversation
    conversation.close()


class Popper:
    """A consumer that pops the way Apache's client does."""

    def __init__(self, broker: Conversation, *, group: str = "G", topic: str = "T") -> None:
        self.broker = broker
        self.peer = FakePeer()
        self.group = group
        self.topic = topic

    def command(self, *, wait_ms: int = 0, **fields: object) -> Command:
        now_ms = int(self.broker.clock.wall_ms())
        defaults: dict[str, object] = {
            "queue_id": -1,
            "max_msg_nums": 32,
            "invisible_time": 10_000,
            "poll_time": wait_ms,
            "born_time": now_ms,
            "init_mode": 0,
        }
        header = h.PopMessageHeader(consumer_group=self.group, topic=self.topic, **(defaults | fields))  # type: ignore[arg-type]
        return self.broker.command(RequestCode.POP_MESSAGE, header)

    def pop(self, **fields: object) -> list[MessageExt]:
        """Pop without waiting."""
        command = self.command(**fields)
        self.broker.give(self.peer, command)
        return popped(find_answer(self.peer, command) or self.broker.answer_later(self.peer, command))

    def ack(self, message: MessageExt, **fields: object) -> Command:
        return self.broker.ask(self.peer, RequestCode.ACK_MESSAGE, self.ack_header(message, **fields))

    def ack_header(self, message: MessageExt, **fields: object) -> h.AckMessageHeader:
        kind = message.properties["POP_CK"].split()[4]
        topic = {"0": self.topic, "1": f"%RETRY%{self.group}_{self.topic}"}[kind]
        defaults: dict[str, object] = {
            "topic": topic,
            "queue_id": message.queue_id,
            "extra_info": message.properties["POP_CK"],
            "offset": int(message.properties["POP_CK"].split()[7]),
        }
        return h.AckMessageHeader(consumer_group=self.group, **(defaults | fields))  # type: ignore[arg-type]

    def change(self, message: MessageExt, invisible_ms: int, *, unseen: bool | None = None) -> Command:
        ack = self.ack_header(message)
        header = h.ChangeInvisibleTimeHeader(
            consumer_group=ack.consumer_group,
            topic=ack.topic,
            queue_id=ack.queue_id,
            extra_info=ack.extra_info,
            offset=ack.offset,
            invisible_time=invisible_ms,
            lb_unseen=unseen,
        )
        return self.broker.ask(self.peer, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)


def popped(reply: Command) -> list[MessageExt]:
    """Return the messages of a reply with their handles, built as MQClientAPIImpl does."""
    assert reply.code in (ResponseCode.SUCCESS, ResponseCode.POLLING_TIMEOUT), (reply.code, reply.remark)
    if reply.code != ResponseCode.SUCCESS:
        assert not reply.body
        return []
    if h.MESSAGE_COUNTS in reply.ext:
        return messages_of(pop_message(NO_POP).result(reply, where="here"), "broker-a", NO_POP.topic)
    ext = reply.ext
    starts = {tuple(entry.split()[:2]): entry.split()[2] for entry in ext["startOffsetInfo"].split(";")}
    kinds = {
        (queue_id, int(offset)): kind
        for entry in ext["msgOffsetInfo"].split(";")
        for kind, queue_id, offsets in [entry.split()]
        for offset in offsets.split(",")
    }
    messages = decode_records(reply.body)
    for message in messages:
        if "POP_CK" not in message.properties:
            queue_id = str(message.queue_id)
            kind = kinds[queue_id, message.queue_offset]
            start = starts[kind, queue_id]
            message.properties["POP_CK"] = (
                f"{start} {ext['popTime']} {ext['invisibleTime']} {ext['reviveQid']} {kind} broker-a"
                f" {queue_id} {message.queue_offset}"
            )
    return messages


def take_new_handle(message: MessageExt, changed: Command) -> None:
    """Give a message the handle of the answer to a change of its invisible time."""
    ext, parts = changed.ext, message.properties["POP_CK"].split()
    changed_parts = [parts[7], ext["popTime"], ext["invisibleTime"], ext["reviveQid"], *parts[4:]]
    message.properties["POP_CK"] = " ".join(changed_parts)


def bodies(messages: list[MessageExt]) -> list[bytes]:
    return [message.body for message in messages]


def test_a_popped_message_is_invisible_and_an_acknowledged_one_is_gone(broker: Conversation):
    producer, first, second = FakePeer(), Popper(broker), Popper(broker)
    broker.send(producer, body=b"a")
    broker.send(producer, body=b"b")
    taken = first.pop()
    assert bodies(taken) == [b"a", b"b"]
    assert second.pop() == []
    assert first.ack(taken[0]).code == ResponseCode.SUCCESS
    broker.advance(9_999)
    assert second.pop() == []
    broker.advance(1)
    again = second.pop()
    assert bodies(again) == [b"b"]
    assert again[0].topic == "T"
    assert again[0].reconsume_times == 1
    assert again[0].properties["1ST_POP_TIME"] == taken[0].properties["POP_CK"].split()[1]
    assert again[0].properties["POP_CK"].split()[4] == "1"
    assert second.ack(again[0]).code == ResponseCode.SUCCESS
    broker.advance(60_000)
    assert second.pop() == []
    assert len(broker.broker.files.pop.in_flight) == 0


def test_groups_pop_independently(broker: Conversation):
    broker.send(FakePeer(), body=b"a")
    assert bodies(Popper(broker).pop()) == [b"a"]
    assert bodies(Popper(broker, group="H").pop()) == [b"a"]


def test_a_changed_invisible_time_counts_from_now(broker: Conversation):
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"a")
    (message,) = popper.pop(invisible_time=1_000)
    changed = popper.change(message, 30_000)
    assert changed.code == ResponseCode.SUCCESS
    assert changed.ext["invisibleTime"] == "30000"
    assert popper.ack(message).code == ResponseCode.SUCCESS  # The old handle is void.
    broker.advance(29_999)
    assert popper.pop() == []
    broker.advance(1)
    (again,) = popper.pop()
    assert again.body == b"a"
    assert popper.change(message, 5).code == ResponseCode.NO_MESSAGE


def test_the_new_handle_of_a_changed_message_acknowledges_it(broker: Conversation):
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"a")
    (message,) = popper.pop()
    take_new_handle(message, popper.change(message, 1_000))
    assert popper.ack(message).code == ResponseCode.SUCCESS
    broker.advance(60_000)
    assert popper.pop() == []


@pytest.mark.parametrize("ends", ["close", "kill"])
def test_messages_in_flight_are_continued_by_the_next_process(tmp_path: Path, ends: str):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    for body in (b"a", b"b", b"c"):
        broker.send(FakePeer(), body=body)
    popper = Popper(broker)
    a, b, _ = popper.pop()
    popper.ack(b)
    getattr(broker, ends)()
    broker = Conversation(tmp_path, clock=broker.clock)
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"d")
    assert bodies(popper.pop(invisible_time=60_000)) == [b"d"]
    assert popper.ack(a).code == ResponseCode.SUCCESS
    broker.advance(9_999)
    assert popper.pop() == []
    broker.advance(1)
    assert bodies(popper.pop()) == [b"c"]
    broker.close()


def test_what_became_visible_again_is_so_once_across_a_kill(tmp_path: Path):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    broker.send(FakePeer(), body=b"a")
    Popper(broker).pop(invisible_time=1_000)
    broker.advance(1_000)
    assert len(broker.messages(RETRY)) == 1
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    broker.advance(60_000)
    assert len(broker.messages(RETRY)) == 1
    assert bodies(Popper(broker).pop()) == [b"a"]
    broker.close()


def test_a_held_pop_gets_a_message_in_the_turn_in_which_it_comes(broker: Conversation):
    first, second = Popper(broker), Popper(broker)
    commands = [each.command(wait_ms=15_000) for each in (first, second)]
    for each, command in zip((first, second), commands, strict=True):
        broker.give(each.peer, command)
        assert find_answer(each.peer, command) is None
    broker.send(FakePeer(), body=b"a")
    assert bodies(popped(answer(first.peer, commands[0]))) == [b"a"]
    assert find_answer(second.peer, commands[1]) is None
    broker.send(FakePeer(), body=b"b")
    assert bodies(popped(answer(second.peer, commands[1]))) == [b"b"]


def test_held_pops_that_one_message_wakes_are_run_in_slices(broker: Conversation, monkeypatch):
    """With the pops of 5,000 groups, one message would block all other clients for 0.3 s."""
    broker.broker.kernel.workload.begin_turn = turns_of(2)
    poppers = [Popper(broker, group=f"G{number}") for number in range(5)]
    commands = [popper.command(wait_ms=15_000) for popper in poppers]
    for popper, command in zip(poppers, commands, strict=True):
        broker.give(popper.peer, command)

    def answered() -> int:
        return sum(len(popper.peer.replies) for popper in poppers)

    broker.send(FakePeer(), body=b"a")
    counts = [answered()]
    while counts[-1] < 5:
        broker.tick()
        counts.append(answered())
    assert len(counts) >= 3
    assert all(after - before <= 2 for before, after in itertools.pairwise([0, *counts]))
    for popper, command in zip(poppers, commands, strict=True):
        assert bodies(popped(answer(popper.peer, command))) == [b"a"]


def test_a_batch_reaches_all_held_pops_of_a_group_that_it_has_messages_for(broker: Conversation, monkeypatch):
    broker.broker.kernel.workload.begin_turn = turns_of(2)
    poppers = [Popper(broker) for _ in range(5)]
    commands = [popper.command(wait_ms=15_000, max_msg_nums=1) for popper in poppers]
    for popper, command in zip(poppers, commands, strict=True):
        broker.give(popper.peer, command)
    items = [BatchItem(0, b"%d" % number, b"") for number in range(4)]
    header = send_header("T", batch=True)
    broker.ask(FakePeer(), RequestCode.SEND_BATCH_MESSAGE, header, encode_batch(items))
    for _ in range(4):
        broker.tick()
    found = [find_answer(popper.peer, command) for popper, command in zip(poppers, commands, strict=True)]
    assert [len(popped(reply)) for reply in found if reply is not None] == [1] * 4


def test_a_held_pop_gets_a_message_that_is_visible_again(broker: Conversation):
    first, second = Popper(broker), Popper(broker)
    broker.send(FakePeer(), body=b"a")
    first.pop(invisible_time=3_000)
    command = second.command(wait_ms=15_000)
    broker.give(second.peer, command)
    broker.advance(2_999)
    assert find_answer(second.peer, command) is None
    broker.advance(1)
    assert bodies(popped(answer(second.peer, command))) == [b"a"]


def test_an_answer_says_how_long_the_broker_had_the_pop_before_it_took_the_messages(broker: Conversation):
    """The client's clock may differ, so the pop's time is of no use to it."""
    popper = Popper(broker)
    command = popper.command(wait_ms=15_000, born_time=0)
    broker.give(popper.peer, command)
    broker.advance(4_000)
    broker.clock.set_wall(-3_600_000)
    broker.send(FakePeer(), body=b"a")
    assert answer(popper.peer, command).ext["lbHeldMs"] == "4000"


def test_a_held_pop_is_answered_before_its_client_gives_up(broker: Conversation):
    popper = Popper(broker)
    command = popper.command(wait_ms=15_000)
    broker.give(popper.peer, command)
    broker.advance(14_949)
    assert find_answer(popper.peer, command) is None
    broker.advance(1)
    assert answer(popper.peer, command).code == ResponseCode.POLLING_TIMEOUT


def test_messages_with_other_tags_are_passed_over(broker: Conversation):
    producer, popper = FakePeer(), Popper(broker)
    for tag in ("A", "B", "A"):
        broker.send(producer, body=tag.encode(), properties={"TAGS": tag})
    taken = popper.pop(exp="B", exp_type="TAG")
    assert bodies(taken) == [b"B"]
    broker.advance(10_000)
    assert bodies(popper.pop(exp="B", exp_type="TAG")) == [b"B"]


def test_a_message_that_failed_too_often_is_a_dead_letter(broker: Conversation):
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"a")
    for attempt in range(17):
        (message,) = popper.pop(invisible_time=1_000)
        assert message.reconsume_times == attempt
        broker.advance(1_000)
    assert popper.pop() == []
    assert bodies(broker.messages("%DLQ%G")) == [b"a"]


def test_a_message_that_was_given_back_unseen_is_no_dead_letter(broker: Conversation):
    """It was popped ahead for a program that did not receive it, so it does not count as an attempt."""
    config = SubscriptionGroupConfig(group_name="G", retry_max_times=0)
    broker.ask(FakePeer(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"a")
    for _ in range(3):
        (message,) = popper.pop()
        assert message.reconsume_times == 0
        assert popper.change(message, 0, unseen=True).code == ResponseCode.SUCCESS
        broker.advance(1)
    (message,) = popper.pop()
    popper.change(message, 0)
    broker.advance(1)
    assert popper.pop() == []
    assert bodies(broker.messages("%DLQ%G")) == [b"a"]


def test_offsets_of_very_many_pops_are_committed_in_slices(broker: Conversation, monkeypatch):
    """Twenty clients popped for 5,000 groups: each flush of the log was followed by a turn of 21 ms."""
    monkeypatch.setattr(taking, "PORTION", 2)
    broker.broker.kernel.workload.begin_turn = turns_of(1)
    sent(broker, b"a")
    groups = [f"G{number}" for number in range(9)]
    for group in groups:
        Popper(broker, group=group).pop()
    broker.flush()
    committed: list[int] = []
    while len(committed) < 10 and sum(committed) < len(groups):
        before = sum(broker.broker.offsets.query(group, "T", 0) is not None for group in groups)
        committed.append(before - sum(committed))
        broker.tick()
    assert max(committed) <= 4
    assert sum(committed) == len(groups)


def test_offsets_are_committed_once_the_check_points_are_on_the_disk(broker: Conversation):
    broker.send(FakePeer(), body=b"a")
    Popper(broker).pop()
    assert broker.broker.offsets.query("G", "T", 0) is None
    broker.advance(1_000)
    broker.flush()
    assert broker.broker.offsets.query("G", "T", 0) == 1


@pytest.mark.parametrize(
    ("returned", "committed", "following", "end"),
    [(0, 1, b"d", 4), (2, 2, b"d", 4), (3, 3, b"d", 4), (4, 4, b"e", 5)],
)
def test_a_returned_commit_moves_a_position_forwards_only(
    broker: Conversation, returned: int, committed: int, following: bytes, end: int
):
    """A slave returns its commits while later pops wait for the disk."""
    sent(broker, b"a", b"b", b"c", b"d", b"e")
    popper = Popper(broker)
    popper.pop(max_msg_nums=1, invisible_time=60_000)
    broker.advance(1_000)
    broker.flush()
    assert bodies(popper.pop(max_msg_nums=2, invisible_time=60_000)) == [b"b", b"c"]
    header = h.UpdateConsumerOffsetHeader(
        consumer_group="G", topic="T", queue_id=0, commit_offset=returned, lb_returned=True
    )
    assert broker.ask(FakePeer(), RequestCode.UPDATE_CONSUMER_OFFSET, header).code == ResponseCode.SUCCESS
    assert broker.broker.offsets.query("G", "T", 0) == committed
    assert bodies(popper.pop(max_msg_nums=1, invisible_time=60_000)) == [following]
    broker.advance(1_000)
    broker.flush()
    assert broker.broker.offsets.query("G", "T", 0) == end


def test_a_deleted_topics_messages_do_not_reappear_in_a_new_one(broker: Conversation):
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"old")
    popper.pop()
    broker.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    broker.create_topic("T", queues=1)
    broker.send(FakePeer(), body=b"new")
    assert bodies(popper.pop(invisible_time=60_000)) == [b"new"]
    broker.advance(30_000)
    assert popper.pop() == []


def test_a_reset_is_followed_and_survives_a_kill(tmp_path: Path):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    popper = Popper(broker)
    for body in (b"a", b"b"):
        broker.send(FakePeer(), body=body)
    for message in popper.pop():
        popper.ack(message)
    broker.advance(1_000)
    broker.flush()
    header = h.ResetOffsetHeader(topic="T", group="G", timestamp=0, is_force=True)
    assert broker.ask(FakePeer(), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header).code in (0, 206)
    (first,) = popper.pop(max_msg_nums=1)
    assert first.body == b"a"
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert bodies(Popper(broker).pop()) == [b"b"]
    broker.close()


def test_a_peek_leaves_messages_to_all(broker: Conversation):
    popper = Popper(broker)
    header = h.PeekMessageHeader(consumer_group="G", topic="T", queue_id=-1, max_msg_nums=8)
    assert broker.ask(popper.peer, RequestCode.PEEK_MESSAGE, header).code == ResponseCode.PULL_NOT_FOUND
    broker.send(FakePeer(), body=b"a")
    for _ in range(2):
        reply = broker.ask(popper.peer, RequestCode.PEEK_MESSAGE, header)
        assert bodies(decode_records(reply.body)) == [b"a"]
    assert bodies(popper.pop()) == [b"a"]


def test_a_notification_comes_with_the_message(broker: Conversation):
    peer = FakePeer()
    header = h.NotificationHeader(consumer_group="G", topic="T", queue_id=-1, poll_time=5_000)
    info = h.GroupQueueHeader(consumer_group="G", topic="T", queue_id=-1)
    assert broker.ask(peer, RequestCode.POLLING_INFO, info).ext["pollingNum"] == "0"
    command = broker.command(RequestCode.NOTIFICATION, header)
    broker.give(peer, command)
    assert find_answer(peer, command) is None
    assert broker.ask(peer, RequestCode.POLLING_INFO, info).ext["pollingNum"] == "1"
    broker.send(FakePeer(), body=b"a")
    assert answer(peer, command).ext == {"hasMsg": "true", "pollingFull": "false"}
    assert broker.ask(peer, RequestCode.NOTIFICATION, header).ext["hasMsg"] == "true"
    Popper(broker).pop()
    command = broker.command(RequestCode.NOTIFICATION, header)
    broker.give(peer, command)
    broker.advance(5_000)
    assert answer(peer, command).ext["hasMsg"] == "false"


def test_a_batch_acknowledges_the_messages_of_its_set_bits(broker: Conversation):
    popper = Popper(broker)
    for number in range(10):
        broker.send(FakePeer(), body=b"%d" % number)
    handle = popper.pop()[0].properties["POP_CK"].split()
    bits = base64.b64encode(bytes([0b11111101, 0b10])).decode()  # All but 1 and 8.
    ack = {
        "c": "G",
        "t": "T",
        "r": "0",
        "so": int(handle[0]),
        "q": 0,
        "rq": int(handle[3]),
        "pt": int(handle[1]),
    }
    body = {"brokerName": "broker-a", "acks": [{**ack, "it": 10_000, "b": bits}]}
    assert broker.ask(popper.peer, RequestCode.BATCH_ACK_MESSAGE, None, body).code == ResponseCode.SUCCESS
    broker.advance(10_000)
    assert bodies(popper.pop()) == [b"1", b"8"]


def test_one_batch_may_name_a_check_point_twice_and_again(broker: Conversation):
    """Each of its messages is acknowledged once, even in the journal, and not again by the next batch."""
    popper = Popper(broker)
    for number in range(10):
        broker.send(FakePeer(), body=b"%d" % number)
    handle = popper.pop()[0].properties["POP_CK"].split()
    ack = {
        "c": "G",
        "t": "T",
        "r": "0",
        "so": int(handle[0]),
        "q": 0,
        "rq": int(handle[3]),
        "pt": int(handle[1]),
        "it": 10_000,
    }
    sets = [base64.b64encode(bytes(each)).decode() for each in ([0b1111], [0b111100, 0, 0xFF])]
    body = {"brokerName": "broker-a", "acks": [{**ack, "b": each} for each in sets]}
    for _ in range(2):
        reply = broker.ask(popper.peer, RequestCode.BATCH_ACK_MESSAGE, None, body)
        assert reply.code == ResponseCode.SUCCESS
    entries = [decode_entry(m.tags, m.body) for m in broker.messages(TIMER_TOPIC)]
    assert [each.offsets for each in entries if isinstance(each, AckEntry)] == [[0, 1, 2, 3, 4, 5]]
    broker.advance(10_000)
    assert bodies(popper.pop()) == [b"6", b"7", b"8", b"9"]


@pytest.mark.parametrize("diffs", [(0, 1, 2, 3, 4, 5, 6, 7, 8), (0, 3, 9, 17, 40), (5,)])
def test_offsets_and_bits_of_a_check_point_agree_one_by_one_and_together(diffs):
    rest = ("T", "G", 0, 100, 5)
    names = ("topic", "group", "queue_id", "start_offset", "pop_time_ms")
    for done in range(1 << len(diffs)):
        check_point = CheckPoint(
            **dict(zip(names, rest, strict=True)),
            invisible_ms=1,
            diffs=diffs,
            broker_name="a",
            revive_queue=0,
            due_ms=0,
            done=done,
        )
        assert check_point.open_bits_in(bytes([0xFF] * 6)) == check_point.open_bits
        assert check_point.open_offsets() == check_point.offsets_of(check_point.open_bits)
        some = [100 + diff for diff in diffs[::2]]
        one_by_one = 0
        for offset in some:
            one_by_one |= check_point.bit_of(offset)
        assert check_point.bits_of([*some, 99, 1_000]) == one_by_one
        assert check_point.offsets_of(one_by_one) == [o for o in check_point.open_offsets() if o in some]
        bit_set = sum(1 << diff for diff in diffs[::2]).to_bytes(6, "little").rstrip(b"\0")
        assert check_point.open_bits_in(bit_set) == one_by_one


def test_messages_are_filtered_by_sql92(broker: Conversation):
    popper = Popper(broker)
    for number in range(5):
        broker.send(FakePeer(), body=b"%d" % number, properties={"n": str(number)})
    assert bodies(popper.pop(exp="n BETWEEN 1 AND 2", exp_type="SQL92")) == [b"1", b"2"]
    command = popper.command(exp="n >", exp_type="SQL92")
    broker.give(popper.peer, command)
    assert answer(popper.peer, command).code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_a_held_pop_does_not_wait_behind_messages_that_it_does_not_want(broker: Conversation):
    """They exceed what one read examines: the client pops again at once and gets the message after them."""
    producer, popper = FakePeer(), Popper(broker)
    for _ in range(801):
        broker.send(producer, properties={"TAGS": "A"})
    broker.send(producer, body=b"wanted", properties={"TAGS": "B"})
    found: list[bytes] = []
    for _ in range(3):
        command = popper.command(exp="B", exp_type="TAG", wait_ms=15_000)
        broker.give(popper.peer, command)
        reply = find_answer(popper.peer, command)
        assert reply is not None
        found += bodies(popped(reply))
        if found:
            break
    assert found == [b"wanted"]


def progress(broker: Conversation, topic: str | None = None) -> dict[str, tuple[int, int]]:
    """Return how far the group is behind in each topic, and how much it has in flight."""
    header = h.ConsumeStatsHeader(consumer_group="G", topic=topic)
    reply = broker.ask(FakePeer(), RequestCode.GET_CONSUME_STATS, header)
    found: dict[str, tuple[int, int]] = {}
    for queue, row in decode_body(reply.body, ConsumeStats).offset_table.items():
        behind, in_flight = found.get(queue.topic, (0, 0))
        behind += row.broker_offset - row.consumer_offset
        found[queue.topic] = behind, in_flight + row.pull_offset - row.consumer_offset
    return found


def test_progress_counts_what_is_in_flight_and_what_waits_for_a_retry(broker: Conversation):
    """It reported no messages in flight from the pop on."""
    sent(broker, b"a", b"b", b"c", b"d")
    popper = Popper(broker)
    first, *others = popper.pop(max_msg_nums=3)
    assert progress(broker, "T") == {"T": (4, 3)}, "before the commit"
    popper.ack(first)
    broker.advance(1_000)
    broker.flush()
    broker.advance(1_000)
    assert progress(broker)["T"] == (3, 2)
    broker.advance(20_000)
    assert progress(broker) == {"T": (1, 0), "%RETRY%G_T": (2, 0)}
    assert len(others) == 2


def test_history_does_not_say_that_nothing_was_redelivered_after_a_popping_member_died(broker: Conversation):
    sent(broker, b"a")
    alice, bob = FakePeer("10.0.0.1:1"), FakePeer("10.0.0.2:1")
    broker.beat(alice, "alice")
    broker.beat(bob, "bob")
    Popper(broker).pop()
    broker.advance(30_000)
    broker.performer.closed(alice)
    broker.advance(30_000)
    events = [decode_event(each.body) for each in broker.messages("LIBRA_REBALANCE_EVENTS")]
    bounds = [each.redelivered_upper_bound for each in events if each.kind == "settled"]
    assert bounds == [0, None]


def test_a_group_that_pops_settles_and_is_healthy(broker: Conversation):
    """No member owns the queues of a popped topic, and none has to."""
    mode = MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=-1)
    assert broker.ask(FakePeer(), RequestCode.SET_MESSAGE_REQUEST_MODE, None, mode).code == 0
    peer = FakePeer()
    broker.beat(peer, "alice")
    broker.advance(5_000)
    events = [event for event in broker.messages("LIBRA_REBALANCE_EVENTS") if b'"settled"' in event.body]
    assert len(events) == 1
    assert b'"unowned":0' in events[0].body.replace(b" ", b"")


def test_what_was_popped_from_a_queue_is_acknowledged_after_the_queue_is_taken(tmp_path: Path):
    """The acknowledgement was refused, so messages in flight were redelivered and an attempt was counted."""
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=2)
    popper = Popper(broker)
    for body in (b"a", b"b"):
        broker.send(FakePeer(), body=body, queue_id=1)
    first, second = popper.pop()
    broker.flush()
    broker.advance(1_000)
    assert broker.create_topic("T", queues=1).code == ResponseCode.SUCCESS
    assert popper.ack(first).code == ResponseCode.SUCCESS
    assert popper.change(second, 1_000).code == ResponseCode.SUCCESS
    assert popper.ack(first, queue_id=2).code == ResponseCode.MESSAGE_ILLEGAL
    broker.advance(20_000)
    assert bodies(popper.pop()) == [b"b"]
    broker.close()


class Orderly(Popper):
    """A consumer that pops in order."""

    def command(self, **fields: object) -> Command:
        return super().command(order=True, **fields)


def sent(broker: Conversation, *texts: bytes) -> None:
    for text in texts:
        broker.send(FakePeer(), body=text)


def test_a_queue_that_is_popped_in_order_goes_to_one_consumer_at_a_time(broker: Conversation):
    first, second = Orderly(broker), Orderly(broker)
    sent(broker, b"a", b"b", b"c")
    a, b = first.pop(max_msg_nums=2)
    assert (a.body, b.body) == (b"a", b"b")
    assert a.properties["POP_CK"].split()[3] == "999"
    assert second.pop() == []
    first.ack(a)
    assert second.pop() == []
    first.ack(b)
    assert bodies(second.pop()) == [b"c"]


@pytest.mark.parametrize("stop", ["close", "kill"])
@pytest.mark.parametrize("changed_ms", [None, 20_000])
def test_a_queue_popped_in_order_is_free_in_time_though_the_clock_was_set_back(tmp_path, stop, changed_ms):
    """The clock went back an hour over a restart, and the queue was blocked for that hour as well."""
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"a")
    popper = Orderly(broker)
    (message,) = popper.pop(invisible_time=5_000)
    if changed_ms is not None:
        assert popper.change(message, changed_ms).code == ResponseCode.SUCCESS
    getattr(broker, stop)()
    broker.clock.set_wall(-3_600_000)
    again = Conversation(tmp_path, clock=broker.clock)
    popper = Orderly(again)
    again.advance((changed_ms or 5_000) - 1)
    assert popper.pop() == []
    again.advance(1)
    assert bodies(popper.pop()) == [b"a"]
    again.close()


def test_a_time_changed_in_order_is_no_negative_one_after_the_clock_was_set_back(broker: Conversation):
    popper = Orderly(broker)
    sent(broker, b"a")
    popper.pop(invisible_time=5_000)
    broker.clock.set_wall(-3_600_000)
    broker.advance(5_000)
    (message,) = popper.pop()
    assert popper.change(message, 2_000).ext["invisibleTime"] == "2000"


def test_messages_in_order_come_again_from_the_first_that_is_not_acknowledged(broker: Conversation):
    first, second = Orderly(broker), Orderly(broker)
    sent(broker, b"a", b"b", b"c")
    messages = first.pop(invisible_time=5_000)
    first.ack(messages[0])
    command = second.command(wait_ms=15_000)
    broker.give(second.peer, command)
    broker.advance(4_999)
    assert find_answer(second.peer, command) is None
    broker.advance(1)
    reply = answer(second.peer, command)
    assert bodies(popped(reply)) == [b"b", b"c"]
    assert reply.ext["orderCountInfo"] == "0 qo0%1 1;0 qo0%2 1;0 0 1"
    assert first.ack(messages[1]).code == ResponseCode.SUCCESS  # Its handle is void.
    assert second.pop() == []


def test_a_repeated_attempt_gets_the_same_messages(broker: Conversation):
    popper = Orderly(broker)
    sent(broker, b"a")
    for _ in range(2):
        assert bodies(popper.pop(attempt_id="attempt-1")) == [b"a"]
    assert popper.pop(attempt_id="attempt-2") == []


def test_a_message_in_order_can_be_invisible_for_longer(broker: Conversation):
    popper = Orderly(broker)
    sent(broker, b"a")
    (message,) = popper.pop(invisible_time=1_000)
    broker.advance(500)
    changed = popper.change(message, 9_500)
    assert changed.ext == {
        "popTime": message.properties["POP_CK"].split()[1],
        "invisibleTime": "10000",
        "reviveQid": "999",
    }
    broker.advance(9_499)
    assert popper.pop() == []
    broker.advance(1)
    assert bodies(popper.pop()) == [b"a"]


def test_an_acknowledgement_in_order_lets_a_held_pop_have_the_others_sooner(broker: Conversation):
    """As Apache's PopOrderlyIT.testPopMessageOrderlyThenChangeInvisibleTimeMidMessage."""
    first, second = Orderly(broker), Orderly(broker)
    sent(broker, b"a", b"b", b"c", b"d")
    a, b, c = first.pop(max_msg_nums=3, invisible_time=5_000)
    held = [(popper, popper.command(wait_ms=15_000)) for popper in (first, second)]
    for popper, command in held:
        broker.give(popper.peer, command)
    first.ack(a)
    first.change(b, 3_000)
    first.ack(c)
    broker.advance(2_999)
    assert not any(find_answer(popper.peer, command) for popper, command in held)
    broker.advance(1)
    assert bodies(popped(answer(first.peer, held[0][1])))[0] == b"b"
    assert find_answer(second.peer, held[1][1]) is None


def test_a_queue_stays_blocked_across_a_kill(tmp_path: Path):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"a", b"b")
    popper = Orderly(broker)
    a, _ = popper.pop()
    popper.ack(a)
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    popper = Orderly(broker)
    assert popper.pop() == []
    broker.advance(10_000)
    assert bodies(popper.pop()) == [b"b"]
    broker.close()
    document = fastjson.loads((tmp_path / "config" / "consumerOrderInfo.json").read_text())
    entry = document["table"]["T@G"][0]
    assert (entry["o"], entry["i"], entry["cm"], entry["oc"]) == ([1], 10_000, 0, {1: 1})


def reset(broker: Conversation, offset: int) -> None:
    header = h.ResetOffsetHeader(topic="T", group="G", queue_id=0, offset=offset, is_force=True)
    reply = broker.ask(FakePeer(), RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, header)
    assert reply.code == ResponseCode.SUCCESS, reply.remark


def committed(broker: Conversation) -> int:
    header = h.QueryConsumerOffsetHeader(consumer_group="G", topic="T", queue_id=0)
    return int(broker.ask(FakePeer(), RequestCode.QUERY_CONSUMER_OFFSET, header).ext["offset"])


def test_a_reset_frees_a_queue_at_once(broker: Conversation):
    """It stayed blocked until the messages were visible again."""
    popper = Orderly(broker)
    sent(broker, b"a", b"b")
    popper.ack(popper.pop(max_msg_nums=1)[0])
    popper.pop()
    reset(broker, 0)
    assert bodies(popper.pop()) == [b"a", b"b"]


@pytest.mark.parametrize("is_popped_again", [False, True], ids=["before the next pop", "after it"])
def test_late_acknowledgements_in_order_do_not_undo_a_reset(broker: Conversation, is_popped_again: bool):
    """Ten were in flight when the group was reset to the first: the offset became 10, the replay was lost."""
    popper = Orderly(broker)
    sent(broker, *(b"%d" % number for number in range(10)))
    before = popper.pop()
    reset(broker, 0)
    after = popper.pop() if is_popped_again else []
    for message in before:
        assert popper.ack(message).code == ResponseCode.SUCCESS
    assert committed(broker) == 0
    after = after or popper.pop()
    assert len(after) == 10
    assert Orderly(broker).pop() == []
    for message in after:
        popper.ack(message)
    assert committed(broker) == 10


def test_a_late_acknowledgement_in_order_does_not_move_a_reset_back(broker: Conversation):
    popper = Orderly(broker)
    sent(broker, *(b"%d" % number for number in range(10)))
    before = popper.pop()
    reset(broker, 7)
    popper.ack(before[7])
    assert committed(broker) == 7
    assert bodies(popper.pop()) == [b"7", b"8", b"9"]


@pytest.mark.parametrize("consumer", [Popper, Orderly], ids=["any order", "in order"])
@pytest.mark.parametrize("has_members", [False, True])
def test_a_group_that_pops_is_reset(broker: Conversation, consumer: type[Popper], has_members: bool):
    """Connected members were only notified, which has no effect on those that pop."""
    popper = consumer(broker)
    if has_members:
        broker.beat(popper.peer, "popper")
    sent(broker, b"a", b"b", b"c")
    for message in popper.pop():
        popper.ack(message)
    waiting = popper.command(wait_ms=15_000)
    broker.give(popper.peer, waiting)
    reset(broker, 1)
    again = popped(answer(popper.peer, waiting))
    assert bodies(again) == [b"b", b"c"]
    for message in again:
        popper.ack(message)
    sent(broker, b"d", b"e")
    reset(broker, 5)
    assert popper.pop() == []
    sent(broker, b"f")
    assert bodies(popper.pop()) == [b"f"]


@pytest.mark.parametrize("consumer", [Popper, Orderly], ids=["any order", "in order"])
def test_a_reset_that_nobody_has_followed_survives_a_kill(tmp_path: Path, consumer: type[Popper]):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"a", b"b", b"c")
    popper = consumer(broker)
    popper.ack(popper.pop()[0])
    reset(broker, 0)
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert bodies(consumer(broker).pop()) == [b"a", b"b", b"c"]
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert consumer(broker).pop() == []
    broker.close()


def test_a_slave_hands_out_nothing_and_writes_nothing(tmp_path: Path):
    broker = Conversation(tmp_path, broker_id=1, broker_role="SLAVE", namesrv_addr="127.0.0.1:9876")
    command = Popper(broker).command()
    peer = FakePeer()
    broker.broker.topics.put(TopicConfig(topic_name="T"), broker.clock.wall_ms())
    broker.give(peer, command)
    assert answer(peer, command).code == ResponseCode.SYSTEM_BUSY
    broker.advance(10_000)
    broker.close()
    assert not (tmp_path / "config" / "timercheck").exists()


def test_what_waits_to_be_popped_again_is_deleted_with_its_topic(broker: Conversation):
    popper = Popper(broker)
    sent(broker, b"old")
    popper.pop(invisible_time=1_000)
    broker.advance(1_000)
    assert broker.messages(RETRY)
    popper.pop()
    command = popper.command(wait_ms=15_000)
    broker.give(popper.peer, command)
    broker.flush()
    broker.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    assert answer(popper.peer, command).code == ResponseCode.TOPIC_NOT_EXIST
    assert RETRY not in broker.broker.topics
    broker.create_topic("T", queues=1)
    broker.advance(60_000)
    assert popper.pop() == []


def test_a_connection_that_ends_takes_its_held_pop_with_it(broker: Conversation):
    first, second = Popper(broker), Popper(broker)
    command = first.command(wait_ms=15_000)
    broker.give(first.peer, command)
    first.peer.is_open = False
    broker.performer.closed(first.peer)
    sent(broker, b"a")
    assert bodies(second.pop()) == [b"a"]


def test_under_sync_flush_messages_are_handed_out_once_their_check_point_is_durable(tmp_path: Path):
    broker = Conversation(tmp_path, flush_disk_type="SYNC_FLUSH")
    broker.create_topic("T", queues=1)
    peer = FakePeer()
    broker.give(peer, broker.command(RequestCode.SEND_MESSAGE_V2, send_header("T"), b"a"))
    broker.flush()
    popper = Popper(broker)
    command = popper.command()
    broker.give(popper.peer, command)
    assert find_answer(popper.peer, command) is None
    broker.flush()
    (message,) = popped(answer(popper.peer, command))
    command = broker.command(RequestCode.ACK_MESSAGE, popper.ack_header(message))
    broker.give(popper.peer, command)
    assert find_answer(popper.peer, command) is None
    broker.flush()
    assert answer(popper.peer, command).code == ResponseCode.SUCCESS
    broker.close()


def test_a_full_disk_hands_out_nothing_and_loses_nothing(broker: Conversation):
    popper = Popper(broker)
    sent(broker, b"a")
    (first,) = popper.pop(invisible_time=1_000)
    sent(broker, b"b")
    broker.disk.bytes_left = 0
    command = popper.command()
    broker.give(popper.peer, command)
    assert answer(popper.peer, command).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert popper.ack(first).code == ResponseCode.SERVICE_NOT_AVAILABLE
    broker.advance(5_000)
    broker.disk.bytes_left = None
    broker.advance(5_000)
    assert sorted(bodies(popper.pop())) == [b"a", b"b"]


def test_what_is_not_in_memory_is_read_by_a_thread(tmp_path: Path):
    """This holds for popped messages and for messages that become visible again."""
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"a", b"b")
    broker.close()
    broker = Conversation(tmp_path, clock=broker.clock)
    broker.disk.is_cold = True
    popper = Popper(broker)
    command = popper.command(max_msg_nums=1, invisible_time=1_000)
    broker.give(popper.peer, command)
    assert find_answer(popper.peer, command) is None
    broker.disk.is_cold = False
    broker.read_cold()
    assert bodies(popped(answer(popper.peer, command))) == [b"a"]
    broker.disk.is_cold = True
    broker.advance(1_000)
    assert broker.messages(RETRY) == []
    broker.disk.is_cold = False
    broker.read_cold()
    broker.advance(1)
    assert bodies(broker.messages(RETRY)) == [b"a"]
    broker.close()


def test_a_message_wakes_held_pops_at_the_cost_of_one_queue(broker: Conversation, monkeypatch):
    """With a thousand groups popping a thousand queues, each message would take a second."""
    broker.create_topic("W", queues=64)
    poppers = [Popper(broker, group=f"G{number}", topic="W") for number in range(8)]
    commands = [popper.command(wait_ms=10_000) for popper in poppers]
    for popper, command in zip(poppers, commands, strict=True):
        broker.give(popper.peer, command)
    looked_at: list[int] = []
    position = Taking.position

    def counted(taking: Taking, wanted: PopSelection, topic: str, queue_id: int) -> int:
        looked_at.append(queue_id)
        return position(taking, wanted, topic, queue_id)

    monkeypatch.setattr(Taking, "position", counted)
    broker.send(FakePeer(), "W", body=b"a", queue_id=7)
    for popper, command in zip(poppers, commands, strict=True):
        assert bodies(popped(answer(popper.peer, command))) == [b"a"]
    assert looked_at == [7] * len(poppers)
    broker.give(poppers[0].peer, poppers[0].command(wait_ms=10_000))
    looked_at.clear()
    broker.advance(10_000)
    assert [reply.code for reply in poppers[0].peer.replies] == [ResponseCode.POLLING_TIMEOUT]
    assert looked_at == []


def test_a_group_that_acknowledges_nothing_leaves_others_room(broker: Conversation, monkeypatch, caplog):
    """One group gets at most half of the check points, two a third each, and the reply says why."""
    monkeypatch.setattr("libramq.pop.in_flight.CHECK_POINTS_MAX", 12)
    greedy, other = Popper(broker), Popper(broker, group="other")
    sent(broker, *(b"%d" % number for number in range(10)))
    taken = [message for _ in range(6) for message in greedy.pop(max_msg_nums=1)]
    assert len(taken) == 6

    refused = greedy.command(max_msg_nums=1, wait_ms=20_000)
    broker.give(greedy.peer, refused)
    reply = answer(greedy.peer, refused)
    assert (reply.code, reply.remark) == (
        ResponseCode.POLLING_FULL,
        "group G has 6 pops that are not acknowledged, of 6 of all groups; acknowledge messages, or pop more"
        " of them at once",
    )
    assert caplog.text.count("a group pops nothing more") == 1
    assert [bodies(other.pop(max_msg_nums=1)) for _ in range(3)] == [[b"0"], [b"1"], [b"2"]]
    assert Orderly(broker, group="orderly").pop(max_msg_nums=1)  # It needs no check point.

    for message in taken[:3]:
        assert greedy.ack(message).code == ResponseCode.SUCCESS
    assert bodies(greedy.pop(max_msg_nums=1)) == [b"6"]


def test_the_check_points_of_a_group_are_counted_across_a_kill(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("libramq.pop.in_flight.CHECK_POINTS_MAX", 4)
    first = Conversation(tmp_path)
    first.create_topic("T", queues=1)
    sent(first, b"a", b"b", b"c")
    popper = Popper(first)
    taken = [popper.pop(max_msg_nums=1) for _ in range(2)]
    popper.ack(taken[0][0])
    first.kill()
    second = Conversation(tmp_path)
    again = Popper(second)
    assert bodies(again.pop(max_msg_nums=1)) == [b"c"]
    refused = again.command()
    second.give(again.peer, refused)
    assert answer(again.peer, refused).code == ResponseCode.POLLING_FULL
    second.close()


@pytest.mark.parametrize("is_flushed", [False, True], ids=["not committed", "committed"])
def test_a_topic_that_was_made_again_is_popped_from_its_beginning_after_a_kill(
    tmp_path: Path, is_flushed: bool
):
    """The former topic's check points set the position, so the new topic's first messages were skipped."""
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"old 0", b"old 1", b"old 2")
    Popper(broker).pop(invisible_time=600_000)
    if is_flushed:
        broker.advance(1_000)
        broker.flush()
    broker.ask(FakePeer(), RequestCode.DELETE_TOPIC_IN_BROKER, h.TopicHeader(topic="T"))
    broker.create_topic("T", queues=1)
    sent(broker, b"0", b"1", b"2", b"3")
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert bodies(Popper(broker).pop()) == [b"0", b"1", b"2", b"3"]
    broker.close()


@pytest.mark.parametrize("consumer", [Popper, Orderly], ids=["any order", "in order"])
def test_a_group_that_was_removed_begins_again_after_a_kill(tmp_path: Path, consumer: type[Popper]):
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"0", b"1", b"2")
    popper = consumer(broker)
    popper.pop(invisible_time=600_000, max_msg_nums=2)
    header = h.DeleteGroupHeader(group_name="G", clean_offset=True)
    assert broker.ask(FakePeer(), RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == ResponseCode.SUCCESS
    config = SubscriptionGroupConfig(group_name="G")
    broker.ask(FakePeer(), RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, None, config)
    sent(broker, b"3")
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert bodies(consumer(broker).pop()) == [b"0", b"1", b"2", b"3"]
    broker.close()


def test_two_deliveries_of_a_message_that_are_changed_at_once_are_kept_apart(broker: Conversation):
    """The replay of a reset was lost: the second change took the name of the first, and its end as well."""
    popper = Popper(broker)
    broker.send(FakePeer(), body=b"a")
    (before,) = popper.pop(invisible_time=1_000)
    reset(broker, 0)
    broker.advance(10)
    (replayed,) = popper.pop(invisible_time=1_000)
    broker.advance(10)
    for message in (before, replayed):
        take_new_handle(message, popper.change(message, 1_000))
    assert popper.ack(before).code == ResponseCode.SUCCESS
    assert popper.change(replayed, 1_000).code == ResponseCode.SUCCESS
    broker.advance(1_000)
    assert bodies(popper.pop()) == [b"a"]


def test_a_message_from_before_a_reset_that_gets_another_time_does_not_undo_it_after_a_kill(tmp_path: Path):
    """Its new check point lies behind the reset in the journal."""
    broker = Conversation(tmp_path)
    broker.create_topic("T", queues=1)
    sent(broker, b"0", b"1", b"2", b"3")
    popper = Popper(broker)
    before = popper.pop(invisible_time=600_000)
    reset(broker, 0)
    assert bodies(popper.pop(max_msg_nums=1)) == [b"0"]
    assert popper.change(before[3], 600_000).code == ResponseCode.SUCCESS
    broker.advance(1_000)
    broker.flush()
    broker.kill()
    broker = Conversation(tmp_path, clock=broker.clock)
    assert bodies(Popper(broker).pop()) == [b"1", b"2", b"3"]
    broker.close()


def test_a_group_whose_offsets_were_removed_begins_again(broker: Conversation):
    """Its earlier pops were committed a moment later, and the group of that name continued after them."""
    popper = Popper(broker)
    for number in range(5):
        broker.send(popper.peer, body=b"%d" % number)
    assert len(popper.pop(max_msg_nums=3)) == 3
    header = h.DeleteGroupHeader(group_name="G", clean_offset=True)
    assert broker.ask(FakePeer(), RequestCode.DELETE_SUBSCRIPTIONGROUP, header).code == ResponseCode.SUCCESS
    broker.broker.store.flush()
    broker.broker.pop.settle()
    assert broker.broker.offsets.query("G", "T", 0) is None
    assert [message.body for message in popper.pop()] == [b"0", b"1", b"2", b"3", b"4"]


def test_a_check_point_behind_which_others_are_settled_is_written_again(broker: Conversation, monkeypatch):
    """Otherwise a start would read everything from it on; a settled check point stays in place."""
    monkeypatch.setattr(journal, "SETTLED_MAX", 6)
    popper = Popper(broker)
    for number in range(14):
        broker.send(FakePeer(), body=b"%d" % number)
    popper.ack(popper.pop(max_msg_nums=1)[0])
    popper.pop(max_msg_nums=1, invisible_time=600_000)
    for _ in range(12):
        popper.ack(popper.pop(max_msg_nums=1)[0])
    entries = [decode_entry(m.tags, m.body) for m in broker.messages(TIMER_TOPIC)]
    starts = [each.start_offset for each in entries if isinstance(each, CheckPointEntry)]
    assert sorted(starts) == sorted([*range(14), *[1] * (starts.count(1) - 1)])
    assert 2 <= starts.count(1) <= 4
