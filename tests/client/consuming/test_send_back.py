"""Tests of the send-back and of the copy that replaces it."""

from dataclasses import replace

import pytest

from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.send_back import (
    CHOSEN_BY_BROKER,
    DEAD_LETTER,
    INNER_PRODUCER,
    delay_level,
    failure_of,
    retry_copy,
    send_back_header,
    what_follows,
)
from libramq.client.consuming.queues.owned_queue import HandlerError
from libramq.client.producing.send_request import send_call
from libramq.message.properties import properties_from_text
from libramq.message.queue import MessageQueue
from libramq.remoting.headers import encode_header
from tests.client.consuming.examples import message

SETTINGS = ConsumerSettings(group="g", client_id="c")


def test_the_request_names_the_stored_message():
    """The broker takes its body from the log; level 0 lets the broker choose the delay."""
    assert encode_header(send_back_header(message(7), SETTINGS, CHOSEN_BY_BROKER)) == {
        "offset": "1007", "group": "g", "delayLevel": "0", "originMsgId": "id-7", "originTopic": "T",
        "maxReconsumeTimes": "16",
    }  # fmt: skip


def test_the_copy_equals_the_brokers():
    """It has the retry topic, one more attempt, a delay that grows with the attempts, and the same unique
    id.
    """
    failed = message(7, tag="a")
    failed.reconsume_times = 2
    failed.properties.update({"MIN_OFFSET": "0", "MAX_OFFSET": "9", "TRAN_MSG": "true"})
    copy = retry_copy(failed, SETTINGS, CHOSEN_BY_BROKER)
    assert properties_from_text(copy.properties) == {
        "UNIQ_KEY": "id-7", "TAGS": "a", "ORIGIN_MESSAGE_ID": "id-7", "RETRY_TOPIC": "T", "DELAY": "5",
    }  # fmt: skip
    call = send_call(copy, MessageQueue("%RETRY%g", "a", 0), INNER_PRODUCER, born_ms=1)
    assert (call.ext["b"], call.ext["j"], call.ext["l"]) == ("%RETRY%g", "3", "16")
    assert call.ext["a"] == "CLIENT_INNER_PRODUCER"


def test_a_copy_of_a_copy_keeps_the_first_id():
    """ORIGIN_MESSAGE_ID is set once."""
    failed = message(7)
    failed.properties["ORIGIN_MESSAGE_ID"] = "first"
    copy = retry_copy(failed, SETTINGS, CHOSEN_BY_BROKER)
    assert properties_from_text(copy.properties)["ORIGIN_MESSAGE_ID"] == "first"


@pytest.mark.parametrize(
    ("after_ms", "level"),
    [(None, 0), (0, 1), (1, 1), (1000, 1), (1001, 2), (60_000, 5), (3_600_001, 18), (7_200_000, 18)],
)
def test_a_delay_becomes_the_next_level(after_ms, level):
    """The level is never shorter than the delay. Without a delay the broker chooses."""
    assert delay_level(after_ms) == level


def test_a_copy_carries_the_requested_delay():
    """It replaces the one that grows with the attempts."""
    copy = retry_copy(message(7), SETTINGS, 9)
    assert properties_from_text(copy.properties)["DELAY"] == "9"


def test_a_copy_of_a_rejected_message_exceeds_the_maximum_attempts():
    """The broker therefore puts it among the dead letters."""
    copy = retry_copy(message(7), SETTINGS, DEAD_LETTER)
    assert copy.reconsume_times > copy.max_reconsume_times


@pytest.mark.parametrize(
    ("attempts", "log"),
    [
        ((0,), "its messages are redelivered later"),
        ((2,), "its message becomes a dead letter in %DLQ%g"),
        ((2, 3), "its messages become dead letters in %DLQ%g"),
        ((0, 2, 1), "1 of its 3 messages become dead letters in %DLQ%g, the others are redelivered"),
    ],
)
def test_the_log_says_what_becomes_of_a_failed_handlers_messages(attempts, log):
    """The last attempt is not followed by another one."""
    failed = [message(number) for number in range(len(attempts))]
    for each, times in zip(failed, attempts, strict=True):
        each.reconsume_times = times
    assert what_follows(failed, replace(SETTINGS, max_reconsume_times=2)) == log


@pytest.mark.parametrize(
    ("times", "options", "about"),
    [
        (0, {}, {"attempt": "1 of 17", "next_attempt": "in 10 s"}),
        (4, {}, {"attempt": "5 of 17", "next_attempt": "in 180 s"}),
        (15, {}, {"attempt": "16 of 17", "next_attempt": "in 7200 s"}),
        (16, {}, {"attempt": "17 of 17"}),
        # As a producer of another client may have set it at Apache's broker.
        (-(1 << 31), {}, {"attempt": f"{1 - (1 << 31)} of 17", "next_attempt": "in 10 s"}),
        (0, {"max_reconsume_times": 0}, {"attempt": "1 of 1"}),
        (2, {"orderly": True, "suspend_ms": 500}, {"attempt": "3", "next_attempt": "in 0.5 s"}),
        (0, {"pop": True}, {"attempt": "1 of 17"}),
        (0, {"broadcasting": True}, {}),
    ],
)
def test_the_log_says_which_attempt_has_failed_and_when_the_next_one_is(times, options, about):
    failed = message(7)
    failed.reconsume_times = times
    assert failure_of([failed], replace(SETTINGS, **options))[1] == {"group": "g", **about}


def test_only_the_last_attempt_takes_the_error_along():
    """The error is for the dead letter; retries are handled again."""
    error = HandlerError.of(ValueError("x\x01y"))
    failed = message(7)
    assert send_back_header(failed, SETTINGS, CHOSEN_BY_BROKER, error=error).lb_error_type is None
    failed.reconsume_times = 16
    sent = send_back_header(failed, SETTINGS, CHOSEN_BY_BROKER, error=error)
    assert (sent.lb_error_type, sent.lb_error_text) == ("ValueError", "x y")
    silent = replace(SETTINGS, dead_letter_errors=False)
    assert send_back_header(failed, silent, DEAD_LETTER, error=error).lb_error_text is None
