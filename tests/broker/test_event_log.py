"""Rebalance events are stored after the answers of the turn that recorded them have left."""

from pathlib import Path

import pytest

from libramq.broker.files.event_logs import APPENDED_MAX
from libramq.groups.rebalance_event import decode_event
from tests.broker.brokers import Conversation
from tests.fakes import FakePeer


def stored(talk: Conversation) -> list[str]:
    """Return the groups of the stored events."""
    return [decode_event(message.body).group for message in talk.messages("LIBRA_REBALANCE_EVENTS")]


@pytest.fixture
def talk(tmp_path: Path):
    talk = Conversation(tmp_path)
    yield talk
    talk.close()


def test_an_event_is_stored_after_the_answers_of_its_turn(talk: Conversation):
    """Members wait for answers; no one waits for history."""
    assert talk.beat(FakePeer(), "alice").code == 0
    assert stored(talk) == []
    assert talk.broker.engine.next_due_ms == talk.clock.monotonic_ms()
    talk.tick()
    assert stored(talk) == ["G"]


def test_many_events_are_stored_in_order_some_at_a_time(talk: Conversation):
    names = [f"G{number:03}" for number in range(APPENDED_MAX + 1)]
    for number, name in enumerate(names):
        talk.beat(FakePeer(f"10.0.0.1:{number}"), "alice", name)
    talk.tick()
    assert stored(talk) == names[:APPENDED_MAX]
    talk.tick()
    assert stored(talk) == names


def test_a_clean_stop_stores_what_is_pending(tmp_path: Path):
    talk = Conversation(tmp_path)
    talk.beat(FakePeer(), "alice")
    talk.close()
    again = Conversation(tmp_path)
    assert stored(again) == ["G"]
    again.close()
