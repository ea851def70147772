"""Records damaged on the disk: later messages are still delivered, checked and popped.

The damaged records are not stored again, since that would give them a valid checksum.
"""

from pathlib import Path

import pytest

from libramq.kernel.effect import Thread
from libramq.message.names import TIMER_TOPIC
from tests.broker.brokers import Conversation
from tests.broker.test_pop import Popper
from tests.broker.test_transactions import INTERVAL_MS, checks, prepare
from tests.fakes import FakePeer

NOW_MS = 1_700_000_000_000
DAMAGED = b"the message that the disk has damaged"


def damage(root: Path, body: bytes) -> None:
    """Change a byte of a body in the log."""
    (path,) = (root / "commitlog").iterdir()
    data = bytearray(path.read_bytes())
    at = data.rfind(body)
    assert at >= 0
    data[at] ^= 1
    path.write_bytes(data)


def advance(talk: Conversation, milliseconds: int) -> None:
    for _ in range(0, milliseconds, 500):
        talk.advance(500)
        talk.flush()
        talk.threads.run_all(Thread.READ)


@pytest.mark.parametrize("properties", [{"DELAY": "2"}, {"TIMER_DELIVER_MS": str(NOW_MS + 5_000)}])
def test_a_message_that_waits_behind_a_damaged_one_is_delivered(tmp_path, peer, properties):
    talk = Conversation(tmp_path)
    for body in (b"1", DAMAGED, b"2"):
        talk.send(peer, body=body, properties=properties)
    talk.close()
    damage(tmp_path, DAMAGED)
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 7_000)
    assert [message.body for message in again.messages("T")] == [b"1", b"2"]
    again.close()


def test_a_half_message_behind_a_damaged_one_is_checked(tmp_path, peer):
    talk = Conversation(tmp_path)
    for body in (b"1", DAMAGED, b"2"):
        prepare(talk, peer, body, UNIQ_KEY="K")
    talk.close()
    damage(tmp_path, DAMAGED)
    again = Conversation(tmp_path, clock=talk.clock)
    producer = FakePeer("10.0.0.7:1")
    again.beat_producer(producer, "producer")
    advance(again, INTERVAL_MS + 1_000)
    assert [message.body for _, message in checks(producer)] == [b"1", b"2"]
    again.close()


def test_a_popped_message_behind_a_damaged_one_is_visible_again(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=1)
    popper = Popper(talk)
    for body in (b"1", DAMAGED, b"2"):
        talk.send(peer, body=body)
        assert len(popper.pop()) == 1
    talk.close()
    damage(tmp_path, DAMAGED)
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 11_000)
    assert [message.body for message in Popper(again).pop()] == [b"1", b"2"]
    again.close()


def test_a_damaged_entry_of_pops_journal_does_not_keep_a_broker_from_starting(tmp_path, peer):
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=1)
    popper = Popper(talk)
    for body in (b"1", b"2", b"3"):
        talk.send(peer, body=body)
        assert len(popper.pop()) == 1
    assert len(talk.messages(TIMER_TOPIC)) == 3
    middle = talk.messages(TIMER_TOPIC)[1].body
    talk.close()
    damage(tmp_path, middle)
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 11_000)
    assert {b"1", b"3"} <= {message.body for message in Popper(again).pop()}
    again.close()


def test_damaged_messages_alone_do_not_end_a_level(tmp_path, peer):
    """A read that returns only such messages is not the end of the queue."""
    talk = Conversation(tmp_path)
    bodies = [DAMAGED + b" %02d" % number for number in range(32)]
    for body in (*bodies, b"behind"):
        talk.send(peer, body=body, properties={"DELAY": "1"})
    talk.close()
    for body in bodies:
        damage(tmp_path, body)
    again = Conversation(tmp_path, clock=talk.clock)
    advance(again, 3_000)
    assert [message.body for message in again.messages("T")] == [b"behind"]
    again.close()
