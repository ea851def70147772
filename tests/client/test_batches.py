"""Tests of `Consumer.batches`: record batches, with commits, messages in hand and filters as in `getmany`."""

import asyncio
import random
import sys

import pyarrow as pa
import pytest

from libramq import sync
from libramq.client import Consumer
from libramq.client.consuming.fetching.fetched_batch import HeldBatches
from libramq.client.consuming.pulling import pulled_records
from libramq.client.consuming.pulling.pulled_records import (
    PulledRecords,
    ends_of,
    queue_offset_at,
    record_batch,
    schema_of,
)
from libramq.client.consuming.queues.owned_queue import HeldMessages
from libramq.errors import ConfigError, LocalProtocolError, RemoteProtocolError
from libramq.message.queue import MessageQueue
from libramq.message.record import decode_records, encode_record
from tests.message.inner_batches import items, wrapped

T0 = MessageQueue("T", "a", 0)


def consumer(namesrv, expression="*", **options):
    made = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", randomness=random.Random(1), **options
    )
    made.subscribe("T", expression)
    return made


def record(offset, **fields):
    fields = {"body": b"%d" % offset, "properties": b"UNIQ_KEY\x01%d\x02" % offset} | fields
    return encode_record(topic="T", queue_id=0, queue_offset=offset, physical_offset=offset * 100, **fields)


async def test_batches_have_every_message_once_with_its_columns(namesrv, broker):
    """This includes messages pulled as objects before the first batch was requested."""
    found = []
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        for number in range(20):
            broker.put("T", number % 4, b"%d" % number, f"TAGS\x01t\x02UNIQ_KEY\x01id{number}\x02")
        batches = reader.batches(["queueId", "offset", "body", "msgId", "properties"])
        while len(found) < 20:
            found += (await anext(batches)).to_pylist()
        for number in range(20, 40):
            broker.put("T", number % 4, b"%d" % number, f"TAGS\x01t\x02UNIQ_KEY\x01id{number}\x02")
        while len(found) < 40:
            found += (await anext(batches)).to_pylist()
    assert sorted(found, key=lambda row: int(row["body"])) == [
        {
            "queueId": number % 4,
            "offset": number // 4,
            "body": b"%d" % number,
            "msgId": f"id{number}",
            "properties": [("TAGS", "t"), ("UNIQ_KEY", f"id{number}")],
        }
        for number in range(40)
    ]
    assert broker.offsets["g", "T", 2] == 10


async def test_the_batch_before_is_done_and_an_exception_leaves_the_last_one(namesrv, broker):
    for number in range(6):
        broker.put("T", 0, b"%d" % number)

    async def read():
        async with consumer(namesrv) as reader:
            async for batch in reader.batches(["offset"], max_records=2):
                assert len(batch) == 2
                if batch["offset"][0].as_py() == 4:
                    raise ValueError("bad")

    with pytest.raises(ValueError, match="bad"):
        await read()
    assert broker.offsets["g", "T", 0] == 4


async def test_no_message_of_a_batch_is_decoded(namesrv, broker, monkeypatch):
    """Offsets and times of a pull's ends were those of messages, each decoded anew, seven times a pull."""
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        batches = reader.batches(["offset"])
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        monkeypatch.setattr(PulledRecords, "__getitem__", sliced_only(PulledRecords.__getitem__))
        offsets = []
        for number in range(3):
            broker.put("T", 0, b"%d" % number)
            offsets += (await waiting)["offset"].to_pylist()
            waiting = asyncio.create_task(anext(batches))
        assert offsets == [0, 1, 2]
        await asyncio.sleep(0)
        await reader.commit()
        assert broker.offsets["g", "T", 0] == 3
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)


def sliced_only(original):
    def get(pulled, index):
        assert isinstance(index, slice), "one message is decoded"
        return original(pulled, index)

    return get


async def test_batches_end_when_the_consumer_is_stopped(namesrv, broker):
    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    await reader.start()
    stopping, rows = None, 0
    async for batch in reader.batches():
        rows += len(batch)
        stopping = asyncio.create_task(reader.stop(timeout_ms=60_000))
        await asyncio.sleep(0)
    await stopping
    assert rows == 1
    assert broker.offsets["g", "T", 0] == 1


async def test_tags_are_compared_and_positions_and_messages_work_beside_batches(namesrv, broker):
    """The fake broker filters nothing, as a broker whose hashes collide."""
    async with asyncio.timeout(60), consumer(namesrv, "even") as reader:
        batches = reader.batches(["offset", "tag"])
        waiting = asyncio.create_task(anext(batches))
        await asyncio.sleep(0)
        offsets = []
        for number in range(8):
            broker.put("T", 0, b"%d" % number, f"TAGS\x01{'odd' if number % 2 else 'even'}\x02")
        while len(offsets) < 4:
            batch = await waiting
            assert set(batch["tag"].to_pylist()) == {"even"}
            offsets += batch["offset"].to_pylist()
            waiting = asyncio.create_task(anext(batches))
        assert offsets == [0, 2, 4, 6]
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await reader.position(T0) == 8
        await reader.seek(T0, 3)
        assert (await reader.getone()).body == b"4"
        taken = await reader.getmany(timeout_ms=60_000)
        assert [message.body for message in taken[T0]] == [b"6"]


def test_parts_of_a_pull_share_its_columns():
    """Each part was made from all columns: 80 µs a message for parts of 64, and 18 MB for a 1.2 MB reply."""
    pulled = PulledRecords.of(b"".join([record(offset, body=bytes(1_000)) for offset in range(64)]), "a")
    schema = schema_of(None)
    before = pa.total_allocated_bytes()
    parts = [pulled[start : start + 2].batch(schema) for start in range(0, 64, 2)]
    assert pa.total_allocated_bytes() - before < 2 * pulled.size
    assert [row["offset"] for part in parts for row in part.to_pylist()] == list(range(64))
    assert pulled[3:5].batch(schema_of(["offset"])).to_pydict() == {"offset": [3, 4]}


async def test_wrong_columns_and_a_missing_pyarrow_are_refused(namesrv, broker, monkeypatch):
    with pytest.raises(LocalProtocolError, match="does not run"):
        await anext(consumer(namesrv).batches(["body"]))
    async with consumer(namesrv) as reader:
        for columns, reason in (
            ("body", "a list of names"),
            (["colour"], "some of"),
            (["tag", "tag"], "once"),
        ):
            with pytest.raises(ConfigError, match=reason):
                await anext(reader.batches(columns))
        with pytest.raises(ConfigError, match="max_records"):
            await anext(reader.batches(max_records=0))
        monkeypatch.delitem(sys.modules, "libramq.columns.records")
        monkeypatch.setitem(sys.modules, "pyarrow", None)
        with pytest.raises(ConfigError, match=r"libramq\[arrow\]"):
            await anext(reader.batches())


async def test_blocking_programs_get_batches_too(namesrv, broker):
    for number in range(10):
        broker.put("T", 0, b"%d" % number)

    def read():
        made = sync.Consumer(group="g", namesrv=namesrv.address, consume_from="earliest")
        made.subscribe("T")
        bodies = []
        with made:
            for batch in made.batches(["body"], max_records=4):
                bodies += batch["body"].to_pylist()
                if len(bodies) == 10:
                    break
        return bodies

    assert await asyncio.to_thread(read) == [b"%d" % number for number in range(10)]
    assert broker.offsets["g", "T", 0] == 10


def test_pulled_records_are_a_sequence_of_the_same_messages():
    data = b"".join(record(offset, reconsume_times=offset) for offset in range(5))
    pulled, messages = PulledRecords.of(data, "a"), decode_records(data, broker_name="a")
    assert list(pulled) == messages
    assert [pulled[-1], *pulled[1:3]] == [messages[-1], *messages[1:3]]
    with pytest.raises(RemoteProtocolError, match="ends inside a record"):
        PulledRecords.of(data[:-1], "a")
    assert (len(pulled), len(pulled[1:3]), pulled.size) == (5, 2, len(data))
    schema = schema_of(None)
    for message in messages:
        message.add_properties({"MIN_OFFSET": "0", "MAX_OFFSET": "5"})
    assert record_batch(T0, pulled[1:3], schema) == record_batch(T0, messages[1:3], schema)
    whole = PulledRecords.of_messages(messages, "a")
    assert [whole._records.record(row) for row in range(5)] == [
        record(n, reconsume_times=n) for n in range(5)
    ]
    assert messages[2].properties["MAX_OFFSET"] == "5", "now it is encoded again"
    assert record_batch(T0, messages, schema) == record_batch(T0, pulled, schema)
    assert pulled_records._ADDED == ("MIN_OFFSET", "MAX_OFFSET")


@pytest.mark.parametrize("batch", [b"", wrapped(items(b"a", b"b", b"c"), 5, born_host=bytes(20))])
def test_offsets_and_times_are_those_of_the_messages(batch):
    data = b"".join(record(n, store_timestamp_ms=1_000 + n) for n in range(5)) + batch
    pulled = PulledRecords.of(data, "a", 2)
    messages = list(pulled)
    for part in (slice(None), slice(1, 3), slice(2, None)):
        found, expected = pulled[part], messages[part]
        for index in (0, 1, -1):
            assert queue_offset_at(found, index) == queue_offset_at(expected, index)
        assert ends_of(found) == ends_of(expected)
        assert ends_of(expected) == (expected[0].physical_offset, expected[-1].store_timestamp_ms)


def test_held_batches_agree_with_held_messages():
    one, other = HeldBatches(), HeldMessages()
    pulls = [decode_records(b"".join(record(n) for n in range(at, at + 4))) for at in (0, 4, 8)]
    for step in (0, 1, 2, ~0, ~1, 0, ~2, ~0):
        for held in (one, other):
            if step >= 0:
                held.put(pulls[step])
            else:
                held.remove(pulls[~step])
        assert (len(one), one.size, one.bounds) == (len(other), other.size, other.bounds)
        assert one.commit_offset == other.commit_offset
        assert one.span == one.bounds[1] - one.bounds[0]
    assert len(one) == 0
