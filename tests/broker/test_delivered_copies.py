"""Messages that a delay level delivered before a kill are in the log and are not delivered again."""

from pathlib import Path

import pytest

from libramq.timers import delivered_copies
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


@pytest.fixture
def talk(tmp_path: Path) -> Conversation:
    talk = Conversation(tmp_path)
    talk.create_topic("T", queues=1)
    return talk


def send(talk: Conversation, body: bytes, level: str = "1", **fields: object) -> None:
    properties = {"DELAY": level, "UNIQ_KEY": f"KEY{body.decode()}"}
    talk.send(FakePeer(), body=body, **({"properties": properties} | fields))


def bodies(talk: Conversation) -> list[bytes]:
    return [message.body for message in talk.messages("T")]


def killed(talk: Conversation) -> Conversation:
    talk.kill()
    return Conversation(talk.broker.store.config.root, clock=talk.clock)


def test_what_was_delivered_before_a_kill_is_not_delivered_again(talk: Conversation) -> None:
    """The offset of its level is written every 10 s only."""
    for number in range(300):
        send(talk, b"%d" % number)
    send(talk, b"later", level="3")
    talk.advance(1_500)
    assert len(bodies(talk)) == 300
    again = killed(talk)
    again.advance(20_000)
    assert bodies(again) == [b"%d" % number for number in range(300)] + [b"later"]
    again.close()


def test_a_level_of_which_a_part_was_delivered_goes_on_with_the_rest(talk: Conversation) -> None:
    send(talk, b"one")
    talk.advance(500)
    send(talk, b"two")
    talk.advance(600)
    assert bodies(talk) == [b"one"]
    again = killed(talk)
    again.advance(20_000)
    assert bodies(again) == [b"one", b"two"]
    again.close()


def test_one_copy_stands_for_one_message(talk: Conversation) -> None:
    """A producer may send a message twice, with its key; either is delivered."""
    send(talk, b"twin")
    talk.advance(1_000)
    send(talk, b"twin")
    again = killed(talk)
    again.advance(20_000)
    assert bodies(again) == [b"twin", b"twin"]
    again.close()


def test_beyond_what_is_looked_at_messages_are_delivered_again_rather_than_never(
    talk: Conversation, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        send(talk, b"%d" % number)
    talk.advance(1_000)
    monkeypatch.setattr(delivered_copies, "LOOKED_AT_MAX", 2)
    again = killed(talk)
    again.advance(20_000)
    assert bodies(again) == [b"0", b"1", b"2", b"2"]
    again.close()


def test_messages_whose_copies_lie_in_a_cold_file_are_delivered_once(talk: Conversation) -> None:
    for number in range(100):
        send(talk, b"%d" % number)
    talk.advance(1_000)
    talk.kill()
    again = Conversation(talk.broker.store.config.root, clock=talk.clock)
    again.disk.is_cold = True
    for _ in range(200):
        again.advance(100)
        again.threads.run_all()
        again.performer.follow()
    again.disk.is_cold = False
    assert len(bodies(again)) == 100
    again.close()


def test_what_was_delivered_before_a_kill_is_forgotten_once_all_of_it_was_passed(talk: Conversation) -> None:
    """Each message took a KiB until the process ended: 300 MB at 20,000 delayed messages a second."""
    for level in ("1", "3"):
        for number in range(5):
            send(talk, b"%d" % number, level=level)
    talk.advance(1_500)
    again = killed(talk)
    again.advance(500)
    copies = again.broker.files.schedule.copies
    assert copies.count == 5
    again.advance(1_000)
    assert copies.count == 0
    send(again, b"new")
    again.advance(20_000)
    assert len(bodies(again)) == 11
    again.close()


def test_a_clock_that_was_set_back_keeps_what_was_delivered_in_mind(talk: Conversation) -> None:
    send(talk, b"one", level="3")
    talk.advance(10_000)
    assert bodies(talk) == [b"one"]
    talk.clock.set_wall(by_ms=-5_000)
    again = killed(talk)
    again.advance(60_000)
    assert bodies(again) == [b"one"]
    again.close()
