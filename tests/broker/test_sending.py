"""Appending: several messages of any protocol are stored by one write, or none of them is."""

from pathlib import Path

import pytest

from libramq.broker.messages.drafts import Draft
from libramq.errors import MessageIllegal
from libramq.message.properties import PROPERTIES_BYTES_MAX
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


class Waiting:
    """A waiter that keeps its answer."""

    def __init__(self) -> None:
        self.connection = FakePeer()
        self.answers: list[object] = []

    def answer(self, result: object) -> None:
        self.answers.append(result)

    def refuse(self, error: Exception) -> None:
        raise error


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path, commit_log_file_bytes=64 << 10)
    talk.create_topic("T", 1)
    yield talk
    talk.close()


@pytest.mark.parametrize(
    "refused",
    [
        pytest.param(
            Draft("T", 0, b"x", f"key\x01{'v' * PROPERTIES_BYTES_MAX}\x02"), id="its properties are too long"
        ),
        pytest.param(Draft("T", 0, bytes(64 << 10)), id="no file of the log can hold it"),
        pytest.param(Draft("T", 0, b"x", "key\x01a\0b\x02"), id="a NUL in a property"),
    ],
)
@pytest.mark.parametrize("position", [0, 1, 2])
def test_nothing_is_stored_if_one_of_several_messages_is_refused(talk, refused, position):
    drafts = [Draft("T", 0, b"first"), Draft("T", 0, b"second")]
    drafts.insert(position, refused)
    waiter = Waiting()
    clock = talk.clock
    with pytest.raises(MessageIllegal):
        talk.broker.sends.sending.append(drafts, waiter, wall_ms=clock.wall_ms(), now_ms=clock.monotonic_ms())
    assert waiter.answers == []
    assert talk.messages("T") == []


def test_the_handle_of_a_pop_is_stored_with_no_protocols_messages(talk):
    """A Kafka record's header may have any name; a consumer would acknowledge what a forged handle names."""
    waiter = Waiting()
    draft = Draft("T", 0, b"x", "POP_CK\x011 2 3\x02a\x01b\x02")
    clock = talk.clock
    talk.broker.sends.sending.append([draft], waiter, wall_ms=clock.wall_ms(), now_ms=clock.monotonic_ms())
    (message,) = talk.messages("T")
    assert message.properties["a"] == "b"
    assert "POP_CK" not in message.properties


def test_messages_that_no_file_holds_together_are_stored_nevertheless(talk):
    drafts = [Draft("T", 0, bytes([number]) * 20_000) for number in range(5)]
    waiter = Waiting()
    clock = talk.clock
    talk.broker.sends.sending.append(drafts, waiter, wall_ms=clock.wall_ms(), now_ms=clock.monotonic_ms())
    assert len(waiter.answers) == 1
    assert [message.body for message in talk.messages("T")] == [draft.body for draft in drafts]
