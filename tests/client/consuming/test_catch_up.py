"""Tests of catching up: a queue that was taken over brings its backlog no faster than configured."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.client.consuming import effects as fx
from libramq.client.consuming.ownership.owned_queue import CatchUpPace
from tests.client.consuming.conversation import Conversation, found, nothing, q


def backlog(*offsets, end=1000):
    reply, messages = found(*offsets)
    return reply._replace(max_offset=end), messages


def test_a_backlog_is_pulled_in_small_portions_at_an_even_pace():
    """Each pull brings a tenth of a second's messages, and there is a pull every tenth of a second."""
    talk = Conversation(catch_up_rate=50).pulling(offset=100)
    times = []
    for start in range(100, 150, 5):
        (pull,) = talk.of(fx.Pull)
        assert (pull.offset, pull.count_max) == (start, 5)
        times.append(talk.now_ms)
        talk.pulled(q(0), backlog(*range(start, start + 5)))
        assert talk.of(fx.Pull) == []
        talk.at(talk.now_ms + 100)
    assert times == list(range(0, 1000, 100))


def test_at_the_end_of_the_queue_the_limit_ends():
    """It does not begin again."""
    talk = Conversation(catch_up_rate=50).pulling(offset=10)
    talk.pulled(q(0), backlog(10, 11, end=12))
    (pull,) = talk.of(fx.Pull)
    assert pull.count_max == talk.settings.pull_batch_size
    talk.pulled(q(0), backlog(*range(12, 100), end=1000))
    assert len(talk.of(fx.Pull)) == 1


def test_a_queue_without_messages_is_at_its_end():
    """Its pull was held and found nothing."""
    talk = Conversation(catch_up_rate=50).pulling(offset=100)
    talk.pulled(q(0), nothing(100))
    assert talk.of(fx.Pull)[0].count_max == talk.settings.pull_batch_size


def test_a_queue_without_a_former_reader_is_not_slowed_down():
    """It has no backlog of another member."""
    talk = Conversation(catch_up_rate=50).joined(1)
    talk.committed(q(0), None)
    talk.start_at(q(0), 5)
    assert talk.of(fx.Pull)[0].count_max == talk.settings.pull_batch_size


def test_without_a_rate_nothing_is_slowed_down():
    """This is the default."""
    talk = Conversation().pulling(offset=100)
    talk.pulled(q(0), backlog(100, 101))
    assert len(talk.of(fx.Pull)) == 1


@given(rate=st.integers(1, 100_000), counts=st.lists(st.integers(0, 256), min_size=1, max_size=50))
def test_pulls_are_never_faster_than_the_rate(rate, counts):
    """This holds for pulls that bring any number of messages."""
    pace, now_ms, brought = CatchUpPace(rate, 0), 0, 0
    for count in counts:
        brought += count
        now_ms += pace.brought(count, now_ms) + 1
        assert brought <= rate * now_ms / 1000 + 1
