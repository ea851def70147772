"""Tests of the position to pull from: the whole table."""

import pytest

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.ownership.offset_actions import where_to_pull_from
from libramq.client.options import ConsumeFrom
from libramq.message.queue import MessageQueue
from libramq.rpc.broker_calls import max_offset, search_offset

TIME_MS, SINCE_MS = 1_000, 2_000


def start(consume_from, topic, committed, since_ms=0):
    settings = ConsumerSettings(
        group="g", client_id="me", consume_from=consume_from, consume_timestamp_ms=TIME_MS
    )
    found = where_to_pull_from(settings, MessageQueue(topic, "a", 0), committed, since_ms)
    return found if isinstance(found, int) else found.command()


@pytest.mark.parametrize("consume_from", ConsumeFrom)
@pytest.mark.parametrize("topic", ["T", "%RETRY%g"])
@pytest.mark.parametrize("committed", [0, 17])
@pytest.mark.parametrize("since_ms", [0, SINCE_MS])
def test_a_committed_offset_always_wins(consume_from, topic, committed, since_ms):
    """Zero is a valid offset."""
    assert start(consume_from, topic, committed, since_ms) == committed


def end(queue):
    return max_offset(queue).command()


def at_time(queue):
    return search_offset(queue, TIME_MS).command()


def since(queue):
    return search_offset(queue, SINCE_MS).command()


def beginning(_):
    return 0


@pytest.mark.parametrize(
    ("consume_from", "topic", "expected", "if_known_since"),
    [
        (ConsumeFrom.LAST_OFFSET, "T", end, since),
        (ConsumeFrom.LAST_OFFSET, "%RETRY%g", beginning, beginning),
        (ConsumeFrom.FIRST_OFFSET, "T", beginning, beginning),
        (ConsumeFrom.FIRST_OFFSET, "%RETRY%g", beginning, beginning),
        (ConsumeFrom.TIMESTAMP, "T", at_time, since),
        (ConsumeFrom.TIMESTAMP, "%RETRY%g", end, since),
    ],
)
def test_without_a_commit_the_groups_setting_decides(consume_from, topic, expected, if_known_since):
    """The retry topic differs: LAST starts at its beginning, TIMESTAMP at its end."""
    queue = MessageQueue(topic, "a", 0)
    assert start(consume_from, topic, None) == expected(queue)
    assert start(consume_from, topic, None, SINCE_MS) == if_known_since(queue)
