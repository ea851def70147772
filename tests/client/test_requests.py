"""Tests of requests that are sent as messages, and of their replies, with a real broker in this process."""

import asyncio
import threading

import pytest

import libramq.sync
from libramq import Message, Producer, PushConsumer
from libramq.errors import BrokerError, ConfigError, ConnectionLost, RequestTimeout
from libramq.testing import Broker


@pytest.fixture
async def one():
    async with Broker() as broker:
        yield broker


def producer(one):
    return Producer(group="asking", namesrv=one.namesrv)


def consumer(one, handle):
    made = PushConsumer(group="repliers", namesrv=one.namesrv, consume_from="earliest")
    made.subscribe("Asked", "*", handle)
    return made


async def test_a_request_gets_the_reply_of_a_handler(one):
    """Each of many requests gets its own, with the replier's properties; large bodies are compressed."""
    async with producer(one) as requester, producer(one) as replier:

        async def handle(messages):
            for message in messages:
                body = message.body.upper() * 2000
                await replier.reply(message, body, tags="T", keys=["k", "l"], properties={"by": "handler"})

        async with consumer(one, handle):
            asked = [requester.request(Message("Asked", b"%c" % c), timeout_ms=60_000) for c in b"abcde"]
            replies = await asyncio.gather(*asked)
    assert [reply.body for reply in replies] == [b"%c" % c * 2000 for c in b"ABCDE"]
    assert {(reply.properties["by"], reply.tags, reply.keys) for reply in replies} == {
        ("handler", "T", ("k", "l"))
    }


async def test_a_request_without_a_reply_times_out(one):
    """The error names the topic."""
    async with producer(one) as requester:
        with pytest.raises(RequestTimeout, match="no reply in time to a request in Asked"):
            await requester.request(Message("Asked", b"x"), timeout_ms=50)


async def test_a_reply_to_a_client_that_has_left_is_an_error(one):
    """The replier learns that no client received it."""
    outcome = asyncio.get_running_loop().create_future()
    async with producer(one) as replier:

        async def handle(messages):
            try:
                await replier.reply(messages[0], b"late")
            except BrokerError as error:
                outcome.set_result(str(error))

        async with producer(one) as requester:
            await requester.send(Message("Other", b"x"))  # Connects, so the request leaves before the stop.
            with pytest.raises(RequestTimeout):
                await requester.request(Message("Asked", b"x"), timeout_ms=1)
        async with consumer(one, handle):
            assert "not found" in await outcome


async def test_what_is_no_request_cannot_be_replied_to(one):
    """No client waits for a reply to it."""
    refused = asyncio.get_running_loop().create_future()
    async with producer(one) as sender:

        async def handle(messages):
            try:
                await sender.reply(messages[0], b"x")
            except ConfigError as error:
                refused.set_result(str(error))

        await sender.send(Message("Asked", b"x"))
        async with consumer(one, handle):
            assert "is no request" in await refused


@pytest.mark.parametrize("request_", [None, [], Message("T", b"x")])
async def test_a_reply_to_what_is_no_received_message_says_so(request_):
    """A handler gets a list; passing it on whole raised an AttributeError about properties."""
    with pytest.raises(ConfigError, match="one message that was received, not to a"):
        await Producer(group="p", namesrv="127.0.0.1:1").reply(request_, b"x")


async def test_a_stop_ends_the_waiting(one):
    """Another task stops the producer while the handler is at work."""
    arrived = asyncio.Event()

    async def handle(messages):
        arrived.set()

    requester = producer(one)
    await requester.start()
    waiting = asyncio.create_task(requester.request(Message("Asked", b"x"), timeout_ms=60_000))
    async with consumer(one, handle):
        await arrived.wait()
        await requester.stop()
    with pytest.raises(ConnectionLost):
        await waiting


def test_blocking_code_sends_requests_and_replies():
    """Its methods have the same names, and the handler runs on a thread that may block."""
    answered = threading.Event()
    with (
        Broker() as broker,
        libramq.sync.Producer(group="asking", namesrv=broker.namesrv) as requester,
        libramq.sync.Producer(group="replying", namesrv=broker.namesrv) as replier,
    ):

        def handle(messages):
            for message in messages:
                replier.reply(message, b"yes")
                answered.set()

        replying = libramq.sync.PushConsumer(
            group="repliers", namesrv=broker.namesrv, consume_from="earliest"
        )
        replying.subscribe("Asked", "*", handle)
        with replying:
            assert requester.request(Message("Asked", b"?"), timeout_ms=60_000).body == b"yes"
            assert answered.wait(60)
