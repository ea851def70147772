"""Tests of `Consumer.decoded`: a deserializer's results, and messages that it cannot read."""

import asyncio
import json
import random

import pytest

from libramq import sync
from libramq.client import Consumer
from libramq.errors import ConfigError


def consumer(namesrv, client=Consumer):
    options = {"consume_from": "earliest", "randomness": random.Random(1)}
    made = client(group="g", namesrv=namesrv.address, **options)
    made.subscribe("T")
    return made


async def test_messages_come_with_what_the_deserializer_returns(namesrv, broker):
    for number in range(3):
        broker.put("T", 0, json.dumps({"number": number}).encode())
    found = []
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        async for message, value in reader.decoded(json.loads):
            found.append((message.queue_offset, value))
            if len(found) == 3:
                break
    assert found == [(0, {"number": 0}), (1, {"number": 1}), (2, {"number": 2})]
    assert broker.offsets["g", "T", 0] == 3


async def test_an_error_names_its_message_and_the_next_step_goes_on(namesrv, broker):
    for body in (b"1", b"one", b"3"):
        broker.put("T", 0, body)
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        decoded = reader.decoded(int)
        assert (await anext(decoded))[1] == 1
        with pytest.raises(ValueError, match="one") as raised:
            await anext(decoded)
        assert "T, queue 0, offset 1" in raised.value.__notes__[0]
        assert (await anext(decoded))[1] == 3
    assert broker.offsets["g", "T", 0] == 3


async def test_what_could_not_be_read_is_delivered_again_if_the_error_ends_the_block(namesrv, broker):
    for body in (b"1", b"one"):
        broker.put("T", 0, body)

    async def read():
        async with asyncio.timeout(60), consumer(namesrv) as reader:
            async for _ in reader.decoded(int):
                pass

    with pytest.raises(ValueError, match="one"):
        await read()
    assert broker.offsets["g", "T", 0] == 1


async def test_a_deserializer_cannot_end_the_loop(namesrv, broker):
    """StopIteration, of `next` in a deserializer, would look like the end of the messages."""
    broker.put("T", 0, b"")

    def stops(body):
        raise StopAsyncIteration

    async with asyncio.timeout(60), consumer(namesrv) as reader:
        with pytest.raises(RuntimeError, match=r"StopAsyncIteration.*T, queue 0, offset 0"):
            await anext(reader.decoded(stops))


async def test_a_deserializer_that_cannot_be_called_is_refused_at_once(namesrv):
    with pytest.raises(ConfigError, match="the deserializer is a function, not 'json'"):
        consumer(namesrv).decoded("json")


async def test_a_blocking_consumer_decodes(namesrv, broker):
    """It ends as its messages do, when it is stopped, and not by the deserializer."""
    for body in (b"1", b"one", b"", b"4"):
        broker.put("T", 0, body)

    def read():
        with consumer(namesrv, sync.Consumer) as reader:
            decoded = reader.decoded(lambda body: int(body) if body else next(iter(())))
            found = [next(decoded)[1]]
            with pytest.raises(ValueError, match="one"):
                next(decoded)
            with pytest.raises(RuntimeError, match="StopIteration"):
                next(decoded)
            found.append(next(decoded)[1])
            reader.stop()
            return [*found, *decoded]

    assert await asyncio.to_thread(read) == [1, 4]
    assert broker.offsets["g", "T", 0] == 4
