"""A broker sends inner batches whole: consumers get each message once, with its own offset."""

import asyncio
import random

import pytest

from libramq.client import Consumer, PushConsumer
from libramq.message.batch import BatchItem
from libramq.message.record import decode_records
from tests.message.inner_batches import wrapped

SIZE, COUNT = 5, 23


@pytest.fixture
def batching(broker):
    """Return a broker that has messages in batches, and serves these whole to clients that unwrap them."""

    def batch(records, base):
        items = [BatchItem(m.flag, m.body, m._stored) for each in records for m in decode_records(each)]
        return wrapped(items, base)

    def pull_message(peer, request):
        assert request.ext["lbTakesBatches"] == "true"
        queue = broker.queues[request.ext["topic"], int(request.ext["queueId"])]
        offset = int(request.ext["queueOffset"])
        bounds = {"minOffset": 0, "maxOffset": len(queue), "suggestWhichBrokerId": 0}
        if offset == len(queue):
            broker.held.append((peer, request))
            return
        pulls.append(offset)
        base = offset - offset % SIZE
        end = min(base + 2 * SIZE, len(queue))
        body = b"".join(batch(queue[at : min(at + SIZE, end)], at) for at in range(base, end, SIZE))
        broker.answer(peer, request, body=body, nextBeginOffset=end, **bounds)

    pulls = broker.pulls = []
    broker.pull_message = pull_message
    for number in range(COUNT):
        broker.put("T", 0, b"%d" % number, f"UNIQ_KEY\x01id{number}\x02TAGS\x01t\x02")
    return broker


def consumer(namesrv, **options):
    made = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", randomness=random.Random(1), **options
    )
    made.subscribe("T")
    return made


async def test_a_consumer_goes_on_within_a_batch(namesrv, batching):
    """Its predecessor has handled three of the five."""
    found = []
    async with asyncio.timeout(60):
        async with consumer(namesrv) as reader:
            while len(found) < 13:
                for messages in (await reader.getmany(max_records=13 - len(found))).values():
                    found += messages
        assert batching.offsets["g", "T", 0] == 13
        async with consumer(namesrv) as reader:
            async for message in reader:
                found.append(message)
                if len(found) == COUNT:
                    break
    assert [int(message.body) for message in found] == list(range(COUNT))
    assert [message.queue_offset for message in found] == list(range(COUNT))
    assert [message.message_id for message in found] == [f"id{number}" for number in range(COUNT)]
    assert {message.properties["MAX_OFFSET"] for message in found} == {str(COUNT)}
    assert 13 in batching.pulls


async def test_record_batches_go_on_within_a_batch(namesrv, batching):
    found = []
    async with asyncio.timeout(60):
        async with consumer(namesrv) as reader:
            async for rows in reader.batches(["offset", "body", "msgId"], max_records=7):
                found += rows.to_pylist()
                if len(found) >= 7:
                    break
        done = len(found)
        assert batching.offsets["g", "T", 0] == done
        async with consumer(namesrv) as reader:
            async for rows in reader.batches(["offset", "body", "msgId"]):
                found += rows.to_pylist()
                if len(found) >= COUNT:
                    break
    assert found == [
        {"offset": number, "body": b"%d" % number, "msgId": f"id{number}"} for number in range(COUNT)
    ]
    assert done in batching.pulls


@pytest.mark.parametrize("orderly", [False, True])
async def test_handlers_get_the_messages_of_batches(namesrv, batching, watch, orderly):
    handled = []

    def handle(messages):
        handled.extend(messages)
        watch.touch()

    pushed = PushConsumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", batch_size=4, orderly=orderly,
        randomness=random.Random(1),
    )  # fmt: skip
    pushed.subscribe("T", "*", handle)
    async with pushed:
        await watch.until(lambda: len(handled) == COUNT)
    assert sorted(int(message.body) for message in handled) == list(range(COUNT))
    assert batching.offsets["g", "T", 0] == COUNT
