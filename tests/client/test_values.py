"""Values instead of bytes: producers' serializers, consumers' deserializers, and invalid bodies."""

import copy
import json
import pickle
import threading

import pytest

import libramq.sync
from libramq import (
    ConfigError,
    Consumer,
    InvalidMessage,
    Message,
    Producer,
    PushConsumer,
    SimpleConsumer,
)
from libramq.integrations.message_traces import traced
from libramq.testing import Broker
from tests.transport.loops import until


@pytest.fixture(scope="module")
def namesrv():
    with Broker() as broker:
        yield broker.namesrv


async def test_what_is_no_bytes_is_serialized_however_it_is_sent(namesrv):
    """Bytes are sent as they are."""
    async with Producer(namesrv=namesrv, serializer=json.dumps) as producer:
        await producer.send("Sent", {"n": 0})
        await producer.send(Message("Sent", {"n": 1}, tags="a"))
        await producer.send_batch([Message("Sent", {"n": 2}), Message("Sent", b'{"n": 3}')])
        await producer.send_oneway("Sent", {"n": 4})
        producer.send_nowait(Message("Sent", {"n": 5}))
        await producer.flush()
        await traced(producer).send("Sent", {"n": 6})
    async with Consumer(
        group="g", namesrv=namesrv, consume_from="earliest", deserializer=json.loads
    ) as reader:
        reader.subscribe("Sent")
        got = [(await reader.getone()).value["n"] for _ in range(7)]
    assert sorted(got) == list(range(7))


def test_blocking_clients_have_the_same(namesrv):
    with libramq.sync.Producer(namesrv=namesrv, serializer=json.dumps) as producer:
        producer.send("Blocking", [1])
        producer.send_nowait(Message("Blocking", [2]))
        producer.send_batch([Message("Blocking", [3])])
        producer.flush()
    options = {"namesrv": namesrv, "deserializer": json.loads}
    got, done = [], threading.Event()

    def handle(messages):
        got.extend(each.value for each in messages)
        if len(got) == 3:
            done.set()

    with libramq.sync.PushConsumer(group="b1", consume_from="earliest", **options) as push:
        push.subscribe("Blocking", "*", handle)
        assert done.wait(30)
    assert sorted(got) == [[1], [2], [3]]
    with libramq.sync.Consumer(group="b2", consume_from="earliest", **options) as consumer:
        consumer.subscribe("Blocking")
        values = []
        while len(values) < 3:
            values += [each.value for found in consumer.getmany().values() for each in found]
    assert sorted(values) == [[1], [2], [3]]
    with libramq.sync.SimpleConsumer(group="b3", **options) as simple:
        simple.subscribe("Blocking")
        assert simple.receive(1)[0].value in ([1], [2], [3])


@pytest.mark.parametrize(
    "more",
    [{}, {"orderly": True, "suspend_ms": 10}, {"pop": True, "invisible_ms": 1_000}],
    ids=["queues", "in order", "pop"],
)
async def test_a_body_that_cannot_be_decoded_becomes_a_dead_letter(namesrv, more):
    """It counts as a failed handler: it is redelivered, and other messages wait for it only in order."""
    topic, group, values = f"Poison{len(more)}{'pop' in more}", f"poisoned{len(more)}{'pop' in more}", []

    async def handle(messages):
        values.extend([each.value for each in messages])

    async with Producer(namesrv=namesrv, serializer=json.dumps) as producer:
        await producer.send(topic, 1)
        await producer.send(topic, b"{")
        await producer.send(topic, 2)
    consumer = PushConsumer(
        group=group,
        namesrv=namesrv,
        consume_from="earliest",
        deserializer=json.loads,
        max_reconsume_times=0 if "pop" not in more else 1,
        **more,
    )
    dead = Consumer(group="undertaker", namesrv=namesrv, consume_from="earliest")
    async with consumer, dead:
        consumer.subscribe(topic, "*", handle)
        await until(lambda: sorted(values) == [1, 2])
        dead.subscribe(f"%DLQ%{group}")
        letter = await dead.getone()
    assert letter.body == b"{"
    assert "JSONDecodeError" in letter.properties["LIBRA_ERROR_TYPE"]


async def test_a_value_is_made_once_and_its_error_names_the_message(namesrv):
    calls = []

    def count(body):
        calls.append(body)
        return {"mutable": body}

    async with Producer(namesrv=namesrv) as producer:
        await producer.send(Message("Once", b"x"))
    async with Consumer(group="once", namesrv=namesrv, consume_from="earliest", deserializer=count) as reader:
        reader.subscribe("Once")
        message = await reader.getone()
        assert not calls  # Not before it is read.
        assert message.value is message.value
        assert calls == [b"x"]
    async with Consumer(
        group="twice", namesrv=namesrv, consume_from="earliest", deserializer=json.loads
    ) as reader:
        reader.subscribe("Once")
        message = await reader.getone()
        with pytest.raises(json.JSONDecodeError) as caught:
            _ = message.value
    assert f"message {message.message_id} (Once, queue" in caught.value.__notes__[0]
    async with Consumer(group="plain", namesrv=namesrv, consume_from="earliest") as reader:
        reader.subscribe("Once")
        assert (await reader.getone()).value == b"x"


async def test_mistakes_are_named(namesrv):
    for client in (Consumer, PushConsumer, SimpleConsumer):
        with pytest.raises(ConfigError, match="deserializer is a function, not 'json'"):
            client(group="g", deserializer="json")
    with pytest.raises(ConfigError, match="serializer is a function, not 'json'"):
        Producer(serializer="json")
    async with Producer(namesrv=namesrv, serializer=json.dumps) as producer:
        with pytest.raises(InvalidMessage, match=r"the serializer cannot make a body for topic T: TypeError"):
            await producer.send("T", {1, 2})
        with pytest.raises(ConfigError, match=r"send\(topic, value\)"):
            await producer.send(Message("T", b"1"), 2)
    async with Producer(namesrv=namesrv) as producer:
        with pytest.raises(InvalidMessage, match=r"Producer\(serializer=json.dumps\)"):
            await producer.send("T", {"a": 1})


async def refused_by(serializer, namesrv):
    async with Producer(namesrv=namesrv, serializer=serializer) as producer:
        with pytest.raises(InvalidMessage) as caught:
            await producer.send("Refused", {"n": 1})
        with pytest.raises(InvalidMessage):
            producer.send_nowait(Message("Refused", {"n": 1}))
    return str(caught.value)


async def test_what_a_serializer_returned_is_named_if_it_is_no_body(namesrv):
    """The advice to set a serializer would mislead a user who has one."""

    async def later(value):
        return b"1"

    wanted = "the serializer must return bytes or a text for topic Refused, not"
    assert await refused_by(lambda _: None, namesrv) == f"{wanted} NoneType"
    assert await refused_by(later, namesrv) == f"{wanted} coroutine"  # It is not left to be warned of.
    assert "surrogates not allowed" in await refused_by(lambda _: "\ud800", namesrv)


async def test_a_message_can_be_pickled_and_copied_before_and_after_a_look_at_its_value(namesrv):
    """A handler passes it to a pool of processes."""
    async with Producer(namesrv=namesrv, serializer=json.dumps) as producer:
        await producer.send("Pickled", {"n": [1]})
    async with SimpleConsumer(group="pickles", namesrv=namesrv, deserializer=json.loads) as consumer:
        consumer.subscribe("Pickled")
        (message,) = await consumer.receive(1)
    for _ in range(2):
        for other in (pickle.loads(pickle.dumps(message)), copy.deepcopy(message), copy.copy(message)):
            assert other == message
            assert other.value == {"n": [1]}
        assert message.value is message.value
