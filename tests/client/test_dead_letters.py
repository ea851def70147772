"""The last attempt, at a real broker: the log line and the contents of the dead letter."""

import asyncio
import logging

import pytest

from libramq import Message, Producer, PushConsumer
from libramq.admin.dead_letters import DeadLetters
from libramq.client import Reject
from libramq.testing import Broker

#: The first redelivery comes after the third level.
DELAYS = "1s 1s 1s 1s 1s"


class Declined(Exception):
    """The exception of a program's handler."""


@pytest.fixture
async def namesrv():
    async with Broker(message_delay_level=DELAYS) as broker:
        yield broker.namesrv


def newest(namesrv):
    with DeadLetters(namesrv, "g") as letters:
        return letters.newest(10)


async def dead_letter(namesrv, handler, **options):
    """Let a message fail until it is a dead letter; return the dead letter."""
    async with Producer(namesrv=namesrv) as producer:
        await producer.send(Message("T", b"x", keys="k", properties={"a": "1"}))
    consumer = PushConsumer(
        **{"group": "g", "namesrv": namesrv, "consume_from": "earliest", "suspend_ms": 10, **options}
    )
    consumer.subscribe("T", "*", handler)
    async with consumer, asyncio.timeout(60):
        while True:
            found = await asyncio.to_thread(newest, namesrv)
            if found:
                (letter,) = found
                return letter
            await asyncio.sleep(0.05)


def raises(messages):
    raise Declined("card 42 \x01\x02" + "é" * 1_000)


@pytest.mark.parametrize(
    "options", [{}, {"orderly": True}, {"pop": True, "invisible_ms": 1_000}], ids=["plain", "orderly", "pop"]
)
async def test_the_last_attempt_says_so_and_the_dead_letter_says_why(namesrv, caplog, options):
    """The text is bounded, and cannot end a property."""
    caplog.set_level(logging.WARNING)
    letter = await dead_letter(namesrv, raises, max_reconsume_times=1, **options)
    first, last = (each for each in caplog.messages if each.startswith("a handler failed"))
    assert first.startswith("a handler failed; its messages are redelivered later")
    assert last.startswith("a handler failed; its message becomes a dead letter in %DLQ%g")
    assert "group=g attempt='1 of 2'" in first
    assert "group=g attempt='2 of 2'" in last
    assert f"topic=T message_id={letter.message_id}" in first
    (line,) = (each for each in caplog.messages if each.startswith("a message failed for the last time"))
    assert "it becomes a dead letter in %DLQ%g" in line
    assert "attempts=2" in line
    assert "Declined" in line
    assert letter.topic == "T"
    assert letter.error.endswith(".Declined: card 42   " + "é" * 502)
    assert letter.message.properties["a"] == "1"
    assert list(letter.message.keys) == ["k"]


async def test_an_error_with_half_a_character_does_not_keep_its_message(namesrv, caplog):
    """`json.loads` returns a lone surrogate for half an emoji, and a file's name may have one."""
    caplog.set_level(logging.CRITICAL)  # pytest-xdist ends where such a text is in what a test has logged.

    def fails(_):
        raise ValueError("no customer 'J\ud83d'")

    letter = await dead_letter(namesrv, fails, max_reconsume_times=0)
    assert letter.error == "ValueError: no customer 'J?'"


async def test_an_option_keeps_the_error_out_of_the_dead_letter(namesrv, caplog):
    letter = await dead_letter(namesrv, raises, max_reconsume_times=0, dead_letter_errors=False)
    assert letter.error is None
    assert "Declined" in caplog.text


@pytest.mark.parametrize("result", [False, Reject()], ids=["failed", "rejected"])
async def test_a_result_without_an_exception_is_logged_as_well(namesrv, caplog, result):
    letter = await dead_letter(namesrv, lambda _: result, max_reconsume_times=0)
    assert letter.error is None
    assert "it becomes a dead letter in %DLQ%g" in caplog.text
