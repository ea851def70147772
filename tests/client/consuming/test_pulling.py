"""Tests of flow control with the documented numbers."""

from pathlib import Path

import pytest

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.pulling.pulling import PullLimits, pull_limits
from libramq.client.consuming.queues.owned_queue import HeldMessages
from libramq.codes import ResponseCode
from libramq.errors import ConfigError, broker_error
from libramq.logs import LINES_MAX
from libramq.store.config import StoreConfig
from libramq.store.reading.read import read_limits
from tests.client.consuming.conversation import Conversation, q
from tests.client.consuming.examples import message


def settings(**changes):
    return ConsumerSettings(group="g", client_id="c", **changes)


def queue_with(messages):
    held = HeldMessages()
    held.put(messages)
    return held


def test_the_defaults_are_upstreams():
    """They are 1000 messages, 100 MiB and a span of 2000."""
    assert pull_limits(settings(), 4) == PullLimits(1000, 100, 2000)


def test_a_thousand_waiting_messages_are_allowed_and_one_more_is_not():
    """The limit itself is allowed."""
    limits = pull_limits(settings(), 1)
    queue = queue_with([message(offset) for offset in range(1000)])
    assert not limits.are_exceeded_by(queue)
    queue.put([message(1000)])
    assert limits.are_exceeded_by(queue)


def test_sizes_are_compared_in_whole_mebibytes():
    """Upstream divides and compares: 1 MiB more, less one byte, is still allowed."""
    limits = pull_limits(settings(pull_threshold_mib_for_queue=1), 1)
    queue = queue_with([message(0, body=bytes(2 * 1024 * 1024 - 1))])
    assert not limits.are_exceeded_by(queue)
    queue.put([message(1)])
    assert limits.are_exceeded_by(queue)


def test_a_wide_span_of_offsets_pauses_pulling():
    """A span of 2000 is allowed, one of 2001 is not."""
    limits = pull_limits(settings(), 1)
    assert not limits.are_exceeded_by(queue_with([message(0), message(2000)]))
    assert limits.are_exceeded_by(queue_with([message(0), message(2001)]))
    assert not limits.are_exceeded_by(queue_with([]))


def test_a_topics_threshold_is_shared_by_its_queues():
    """Each queue gets at least one message."""
    of_topic = settings(pull_threshold_for_topic=100, pull_threshold_mib_for_topic=8)
    assert pull_limits(of_topic, 4) == PullLimits(25, 2, 2000)
    assert pull_limits(of_topic, 500) == PullLimits(1, 1, 2000)
    assert pull_limits(of_topic, 0).count_max == 1000


@pytest.mark.parametrize(
    "change",
    [
        {"batch_size": 0}, {"batch_size": 1025}, {"pull_batch_size": 1025}, {"span_max": 0},
        {"pull_threshold_for_queue": 65_536}, {"pull_threshold_mib_for_queue": 1025},
        {"pull_interval_ms": -1}, {"heartbeat_ms": 1}, {"max_reconsume_times": -2},
    ],
)  # fmt: skip
def test_settings_outside_upstreams_ranges_are_refused(change):
    """The error names the setting and the range."""
    with pytest.raises(ConfigError, match=f"{next(iter(change))} is between"):
        settings(**change)


def test_the_default_is_sixteen_retries():
    """The setting is maxReconsumeTimes = −1."""
    assert settings().retries_max == 16
    assert settings(max_reconsume_times=0).retries_max == 0


def test_a_pull_gets_as_many_messages_of_our_broker_as_it_requests():
    """It gets more than the 32 of an ordinary read, since it names more bytes than Apache's brokers
    return.
    """
    asked = settings()
    limits, _ = read_limits(StoreConfig(root=Path("store")), asked.pull_batch_size, asked.pull_batch_bytes)
    assert limits == (asked.pull_batch_size, asked.pull_batch_bytes)


def test_failed_pulls_are_logged_a_few_times_and_counted(caplog):
    """A member of 1,000 queues logged 330 lines a second while only an unreadable slave was left."""
    talk = Conversation().pulling(queues=4)
    for _ in range(LINES_MAX):
        for number in range(4):
            talk.pulled(q(number), broker_error(ResponseCode.SYSTEM_BUSY, "slaveReadEnable is false here"))
    assert len([line for line in caplog.messages if "pull failed" in line]) == LINES_MAX
