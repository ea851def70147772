"""Bodies that do not match their checksums: pulled again, and accepted if they are stored that way."""

import asyncio
import logging
import random

import pytest

from libramq.client import Consumer
from libramq.client.consuming.pulling.pulled_records import PulledRecords
from libramq.errors import BodyDamaged
from libramq.message.record import damaged_records, decode_records, encode_record
from libramq.message.sys_flag import BORN_HOST_V6

GOOD = b"the body of a message"
BAD = b"the body oF a message"


def consumer(namesrv):
    made = Consumer(
        group="g", namesrv=namesrv.address, consume_from="earliest", randomness=random.Random(1),
        pull_batch_size=8,
    )  # fmt: skip
    made.subscribe("T")
    return made


async def bodies(reader: Consumer, *, as_batches: bool) -> list[bytes]:
    """Return the bodies of three messages."""
    found: list[bytes] = []
    batches = reader.batches(["body"]) if as_batches else None
    while len(found) < 3:
        if batches is not None:
            found += (await anext(batches))["body"].to_pylist()
        else:
            found += [m.body for messages in (await reader.getmany()).values() for m in messages]
    return found


def damage(broker, times: int) -> list[int]:
    """Change a byte of each pull's bodies in transit, this many times; return those pulls' offsets."""
    answer, damaged = broker.answer, []

    def answered(peer, request, *args, **fields):
        body = fields.get("body")
        if body and GOOD in body and len(damaged) < times:
            damaged.append(int(request.ext["queueOffset"]))
            fields["body"] = body.replace(GOOD, BAD)
        return answer(peer, request, *args, **fields)

    broker.answer = answered
    return damaged


@pytest.mark.parametrize("as_batches", [False, True])
async def test_a_body_that_is_damaged_on_the_way_is_pulled_again(namesrv, broker, as_batches):
    for body in (b"1", GOOD, b"3"):
        broker.put("T", 0, body)
    damaged = damage(broker, times=1)
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        assert await bodies(reader, as_batches=as_batches) == [b"1", GOOD, b"3"]
    assert len(damaged) == 1


@pytest.mark.parametrize("as_batches", [False, True])
async def test_a_body_that_is_stored_damaged_does_not_stop_its_queue(namesrv, broker, as_batches, caplog):
    """Java's client does not look at checksums at all; ours delivers it, and writes an error."""
    for body in (b"1", GOOD, b"3"):
        broker.put("T", 0, body)
    damaged = damage(broker, times=2)
    async with asyncio.timeout(60), consumer(namesrv) as reader:
        assert await bodies(reader, as_batches=as_batches) == [b"1", BAD, b"3"]
    assert damaged == [damaged[0]] * 2
    assert "a message is delivered as it is stored" in caplog.text


@pytest.mark.parametrize("fields", [{}, {"born_host": bytes(20), "sys_flag": BORN_HOST_V6}])
def test_checksums_are_checked_on_request(fields):
    """Of records with IPv4 hosts in one loop, of others by themselves."""
    parts = {"topic": "T", "queue_id": 3, "properties": b"", **fields}
    records = [
        encode_record(queue_offset=number, physical_offset=number, body=GOOD, **parts) for number in range(3)
    ]
    assert len(decode_records(b"".join(records), check_crc=True)) == 3
    assert len(PulledRecords.of(b"".join(records), "a", check_crc=True)) == 3
    records[1] = records[1].replace(GOOD, BAD)
    data = b"".join(records)
    with pytest.raises(BodyDamaged, match="T, queue 3, offset 1 "):
        decode_records(data, check_crc=True)
    with pytest.raises(BodyDamaged):
        PulledRecords.of(data, "a", check_crc=True)
    assert [head.queue_offset for head in damaged_records(data)] == [1]
    assert [message.body for message in decode_records(data)] == [GOOD, BAD, GOOD]


async def test_a_reply_at_which_the_consumer_fails_is_pulled_again(namesrv, broker):
    """A filter of the program's log raises while the reply is processed: the queue was never pulled again."""
    broker.put("T", 0, GOOD)
    damage(broker, times=2)
    raised = []

    def refuse(record):
        if "pulled again" in record.getMessage() and not raised:
            raised.append(record)
            raise RuntimeError("the log is full")
        return True

    pulling = logging.getLogger("libramq.client.consuming.pulling.pulling")
    pulling.addFilter(refuse)
    try:
        async with asyncio.timeout(60), consumer(namesrv) as reader:
            assert (await reader.getone()).body == GOOD
    finally:
        pulling.removeFilter(refuse)
    assert raised
