"""Tests of queue selectors against Java's hash codes."""

import random

import pytest

from libramq.client.producing.queue_selector import by_hash, by_random
from libramq.client.routing.publish_info import publish_info
from libramq.errors import ConfigError
from libramq.message.message import Message
from tests.client.consuming.examples import route

QUEUES = publish_info("T", route(50)).queues
MESSAGE = Message("T", b"x")


@pytest.mark.parametrize(
    ("key", "code"),
    [
        ("test-group", 627841412),
        ("", 0),
        ("polygenelubricants", 2**31),  # Its hash is Integer.MIN_VALUE; Java takes Math.abs of the remainder.
        (0, 0),
        (7, 7),
        (-7, 7),
        (2**32 + 5, 4),  # Long.hashCode: high half xor low half.
        (-(2**40), 256),
    ],
)
def test_by_hash_equals_javas(key, code):
    """A key selects the same queue in every client, Java's and ours."""
    assert by_hash(key)(QUEUES, MESSAGE) == QUEUES[code % 50]


def test_by_random_reaches_every_queue():
    """It selects only queues of the topic."""
    select = by_random(random.Random(3))
    assert {select(QUEUES, MESSAGE) for _ in range(2000)} == set(QUEUES)


@pytest.mark.parametrize("key", [b"k", 1.5, None])
def test_a_key_is_a_text_or_a_number(key):
    """Other types raised a TypeError from the hash that did not name the key."""
    with pytest.raises(ConfigError, match="a text or a whole number"):
        by_hash(key)
