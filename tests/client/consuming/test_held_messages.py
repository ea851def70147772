"""Tests of held messages: their number and the offset to commit, in any order of arrival and completion."""

from hypothesis import given
from hypothesis import strategies as st

from libramq.client.consuming.ownership.owned_queue import HeldMessages
from tests.client.consuming.examples import message

OFFSETS = st.lists(st.integers(0, 12), max_size=8)


@given(st.lists(st.tuples(st.booleans(), OFFSETS), max_size=8))
def test_held_messages_are_those_put_and_not_removed(steps):
    """Pulls ascend nearly always; those that go back or repeat messages are counted in the same way."""
    held, expected, highest = HeldMessages(), {}, -1
    for is_put, offsets in steps:
        messages = [message(offset, body=b"x" * (offset + number)) for number, offset in enumerate(offsets)]
        if is_put:
            held.put(messages)
            expected |= dict(zip(offsets, messages, strict=True))
            highest = max([highest, *offsets])
        else:
            held.remove(messages)
            for offset in offsets:
                expected.pop(offset, None)
        assert len(held) == len(expected)
        assert held.size == sum(len(each.body) for each in expected.values())
        assert held.commit_offset == min(expected, default=highest + 1 if highest >= 0 else None)
        assert held.bounds == ((min(expected), max(expected)) if expected else (0, 0))


def test_a_body_that_a_handler_replaces_counts_as_it_came():
    """A parsed body has another length or none; nothing of its queue was committed any more."""
    held, messages = HeldMessages(), [message(0, body=b"17"), message(1, body=b"18")]
    held.put(messages)
    for each in messages:
        each.body = int(each.body)
    assert (held.remove(messages), held.size) == (2, 0)
