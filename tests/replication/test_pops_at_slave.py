"""An acting slave serves groups that pop, and its master goes on behind what was acknowledged there."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from libramq.broker.pop import pops_at_slave
from libramq.client.popping.popped import batch_acks
from libramq.codes import RequestCode, ResponseCode
from libramq.formats.document import decode_body, encode_body
from libramq.formats.tables import MessageRequestMode
from libramq.message import MessageExt
from libramq.message.queue import MessageQueue
from libramq.pop import unwritten
from libramq.pop.unwritten import Unwritten
from libramq.remoting.body.consumers import (
    QueryAssignmentBody,
    QueryAssignmentReply,
)
from libramq.remoting.body.pop import BatchAckBody
from libramq.remoting.command import Command
from tests.broker.brokers import Conversation, answer, heartbeat
from tests.broker.test_pop import Popper, popped
from tests.fakes import FakePeer
from tests.replication.pairs import Pair
from tests.replication.test_escaping import ACTING, ROUND_MS, SECONDS, lose_master, return_master
from tests.replication.test_escaping_pops import INVISIBLE_MS, pop, send


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    pair = open_pair(tmp_path)
    yield pair
    pair.close()


def open_pair(root: Path, **of_slave: object) -> Pair:
    pair = Pair(root)
    pair.slave.close()
    pair.open_slave(**ACTING, **of_slave)
    pair.master.create_topic("T", queues=1)
    assert Popper(pair.master).pop() == []  # The group is created.
    pair.run(ROUND_MS)
    return pair


def texts(messages: list[MessageExt]) -> list[str]:
    return [message.body.decode() for message in messages]


def ack(talk: Conversation, *messages: MessageExt) -> None:
    for message in messages:
        assert Popper(talk).ack(message).code == ResponseCode.SUCCESS


def committed(talk: Conversation) -> int | None:
    return talk.broker.offsets.query("G", "T", 0)


def leave(pair: Pair, *texts: str) -> None:
    """Send messages, and lose the master once its slave has them and what was committed."""
    send(pair, *texts)
    pair.run(ROUND_MS)
    lose_master(pair)
    pair.run(15 * SECONDS)


def refusal(talk: Conversation, **fields: object) -> int:
    popper = Popper(talk)
    command = popper.command(**fields)
    talk.give(popper.peer, command)
    return answer(popper.peer, command).code


def test_a_group_pops_at_the_acting_slave_and_its_master_goes_on_behind_it(pair: Pair) -> None:
    send(pair, "zero")
    ack(pair.master, *pop(pair.master))
    leave(pair, "one", "two", "three")
    end = pair.slave.broker.store.end
    messages = pop(pair.slave)
    assert texts(messages) == ["one", "two", "three"]
    assert pop(pair.slave) == [], "they are invisible"
    one, two, three = messages
    ack(pair.slave, one, three)
    pair.run(1 * SECONDS)
    assert committed(pair.slave) == 2, "up to the first message that is not done"
    ack(pair.slave, two)
    pair.run(1 * SECONDS)
    assert committed(pair.slave) == 4
    assert pair.slave.broker.store.end == end, "a slave writes nothing to its log"
    return_master(pair)
    assert committed(pair.master) == 4
    send(pair, "four")
    assert texts(pop(pair.master)) == ["four"]


def test_what_is_not_acknowledged_in_time_is_handed_out_again(pair: Pair) -> None:
    leave(pair, "one", "two", "three", "four")
    one, two, *_ = pop(pair.slave)
    ack(pair.slave, two)
    pair.run(INVISIBLE_MS + 100)
    again = pop(pair.slave, max_msg_nums=2)
    assert texts(again) == ["one", "three"]
    (acks,) = batch_acks("G", again).values()
    body = encode_body(BatchAckBody(broker_name="broker-a", acks=acks))
    batch = pair.slave.ask(FakePeer(), RequestCode.BATCH_ACK_MESSAGE, None, body)
    assert batch.code == ResponseCode.SUCCESS
    assert Popper(pair.slave).ack(one).code == ResponseCode.SYSTEM_BUSY, "that pop is over"
    assert texts(pop(pair.slave)) == ["four"]
    pair.run(SECONDS)
    assert committed(pair.slave) == 3


def test_a_held_pop_gets_what_is_due(pair: Pair) -> None:
    leave(pair, "one")
    pop(pair.slave, invisible_time=5 * SECONDS)
    popper = Popper(pair.slave)
    command = popper.command(wait_ms=15 * SECONDS)
    pair.slave.give(popper.peer, command)
    pair.run(4 * SECONDS)
    assert popper.peer.replies == []
    pair.run(2 * SECONDS)
    assert texts(popped(answer(popper.peer, command))) == ["one"]


def test_each_held_pop_gets_what_is_due_at_its_moment(pair: Pair) -> None:
    """After a round the next one had no deadline until something else happened."""
    leave(pair, "one", "two", "three")
    slave, peers = pair.slave, [FakePeer() for _ in range(3)]
    for invisible_ms in (5_000, 5_030, 5_060):
        pop(slave, invisible_time=invisible_ms, max_msg_nums=1)
    for peer in peers:
        slave.give(peer, Popper(slave).command(wait_ms=15 * SECONDS, max_msg_nums=1))
    slave.advance(4_990)
    answered = []
    for _ in range(8):
        slave.advance(10)
        answered.append(sum(len(peer.replies) for peer in peers))
    assert answered == [1, 1, 1, 2, 2, 2, 3, 3]


def test_an_invisible_time_can_be_changed_there(pair: Pair) -> None:
    leave(pair, "one")
    (one,) = pop(pair.slave)
    changed = Popper(pair.slave).change(one, 2 * SECONDS)
    assert changed.code == ResponseCode.SUCCESS
    pair.run(1 * SECONDS)
    assert not committed(pair.slave)
    pair.run(2 * SECONDS)
    assert texts(pop(pair.slave)) == ["one"]


def test_what_is_in_flight_there_its_master_hands_out_again(pair: Pair) -> None:
    leave(pair, "one", "two", "three")
    messages = pop(pair.slave)
    ack(pair.slave, messages[0], messages[2])
    pair.run(SECONDS)
    return_master(pair)
    assert refusal(pair.slave) == ResponseCode.SYSTEM_BUSY
    assert texts(pop(pair.master)) == ["two", "three"]
    ack(pair.master, messages[0])  # It is answered and forgotten.


def test_a_slave_that_is_killed_goes_on_behind_what_was_acknowledged(pair: Pair) -> None:
    leave(pair, "one", "two", "three")
    messages = pop(pair.slave)
    ack(pair.slave, messages[0])
    pair.run(SECONDS)
    pair.slave.kill()
    pair.open_slave(**ACTING)
    pair.run(15 * SECONDS)
    assert texts(pop(pair.slave)) == ["two", "three"]


def test_a_slave_refuses_pops_while_its_master_is_there_and_what_it_cannot_do(pair: Pair) -> None:
    send(pair, "one")
    pair.run(ROUND_MS)
    assert refusal(pair.slave) == ResponseCode.SYSTEM_BUSY
    lose_master(pair)
    pair.run(15 * SECONDS)
    assert refusal(pair.slave, order=True) == ResponseCode.SYSTEM_BUSY
    strange = Popper(pair.slave, group="New")
    command = strange.command()
    pair.slave.give(strange.peer, command)
    assert answer(strange.peer, command).code == ResponseCode.SYSTEM_BUSY
    assert texts(pop(pair.slave)) == ["one"]


def test_members_that_pop_are_assigned_the_queues_that_a_name_server_knows(pair: Pair) -> None:
    mode = encode_body(MessageRequestMode(topic="T", consumer_group="G", mode="POP", pop_share_queue_num=-1))
    code = RequestCode.SET_MESSAGE_REQUEST_MODE
    assert pair.master.ask(FakePeer(), code, None, mode).code == ResponseCode.SUCCESS
    leave(pair)
    peer = FakePeer()
    pair.slave.give(peer, pair.slave.command(RequestCode.HEART_BEAT, None, heartbeat("me")))
    pair.run(100)

    def assigned(topic: str) -> Command:
        query = QueryAssignmentBody(topic=topic, consumer_group="G", client_id="me", strategy_name="AVG")
        return pair.slave.ask(peer, RequestCode.QUERY_ASSIGNMENT, None, encode_body(query))

    assert decode_body(assigned("T").body, QueryAssignmentReply).value() is None
    pair.run(100)
    reply = decode_body(assigned("T").body, QueryAssignmentReply)
    assert reply.value() == [MessageQueue("T", "broker-a", -1)]
    assert [each.mode for each in reply.message_queue_assignments or ()] == ["POP"]
    assert assigned("U").code == ResponseCode.SYSTEM_BUSY, "that the group pulls"


def test_held_pops_are_refused_when_the_master_is_back(pair: Pair) -> None:
    leave(pair)
    popper = Popper(pair.slave)
    command = popper.command(wait_ms=15 * SECONDS)
    pair.slave.give(popper.peer, command)
    pair.return_master(namesrv_addr="127.0.0.1:9876", **ACTING)
    pair.run(8 * SECONDS)
    assert answer(popper.peer, command).code == ResponseCode.SYSTEM_BUSY


def test_a_slave_that_knows_its_masters_journal_begins_behind_what_that_had_popped(tmp_path: Path) -> None:
    """The committed offset that it has copied is older."""
    pair = open_pair(tmp_path, enable_remote_escape=True)
    try:
        send(pair, "one", "two")
        assert texts(pop(pair.master, max_msg_nums=1)) == ["one"]
        pair.run(100)
        lose_master(pair)
        pair.run(15 * SECONDS)
        two = pop(pair.slave)
        assert texts(two) == ["two"]
        ack(pair.slave, *two)
        pair.run(SECONDS)
        return_master(pair)
        pair.run(INVISIBLE_MS)
        assert texts(pop(pair.master)) == ["one"]
    finally:
        pair.close()


def test_a_group_gets_no_more_than_can_be_remembered(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unwritten, "UNSETTLED_MAX", 3)
    monkeypatch.setattr(pops_at_slave, "DISTANCE_MAX", 2)
    leave(pair, *(f"{number}" for number in range(8)))
    first = pop(pair.slave, max_msg_nums=3)
    assert pop(pair.slave) == []
    pair.run(INVISIBLE_MS + 100)
    assert texts(pop(pair.slave)) == ["0", "1"]
    ack(pair.slave, *pop(pair.slave))
    assert pop(pair.slave) == [], "the first message is not done"
    assert len(first) == 3


def test_what_is_before_the_first_open_message_is_done() -> None:
    queue = ("G", "T", 0)
    account = Unwritten()
    assert not account
    account.handed_out(queue, [5, 7, 8], 9)
    account.done(queue, [7])
    assert (account.first_open(queue), account.next_offset(queue)) == (5, 9)
    account.done(queue, [5])
    assert account.first_open(queue) == 8
    account.give_again(queue, [8])
    account.handed_out(queue, [9], 10)
    assert list(account.again(queue)) == [8]
    account.handed_out(queue, [8], 10)
    assert list(account.again(queue)) == []
    account.done(queue, [9, 8])
    assert account.first_open(queue) == 10
    account.forget(lambda each: each == queue)
    assert not account
    assert not account.changed
