"""Apache's Java producer: every way of sending, in every dialect, and what a consumer receives."""

import pytest

from tests.interop.cluster import DIALECTS, Cluster
from tests.interop.process import PATIENCE_S, Event

pytestmark = pytest.mark.interop

QUEUES = 4


@pytest.mark.parametrize("dialect", DIALECTS)
def test_every_kind_of_send_arrives_unchanged(cluster: Cluster, dialect: str) -> None:
    """Body, keys, tags, flag and properties are equal; queue and offset are those returned by the send."""
    topic = cluster.fresh_name("Kinds")
    cluster.create_topic(topic, QUEUES)
    message = {
        "topic": topic,
        "tags": "TagA",
        "keys": "key-1 key-2",
        "flag": 7,
        "properties": {"colour": "blau-grün", "empty words": "a b c"},
    }
    told = {
        kind: cluster.send(
            dialect, kind=kind, body=f"{kind} – ünïcödé", hashBy="N14228", queueId=2, **message
        )
        for kind in ("sync", "async", "hash", "queue", "oneway")
    }
    # The producer compresses bodies of 4 KiB and more; the consumer decompresses them.
    told["compressed"] = cluster.send(dialect, kind="sync", body="compressed ", repeat=1_000, **message)

    consumer = cluster.consumer(cluster.fresh_name("group"), topic, dialect=dialect)
    received = {delivery["body"].split(" ")[0]: delivery for delivery in consumer.wait_count(6, "message")}

    assert received.keys() == told.keys()
    assert received["compressed"]["body"] == "compressed " * 1_000
    for kind, delivery in received.items():
        assert delivery["tags"] == "TagA"
        assert delivery["keys"] == "key-1 key-2"
        assert delivery["flag"] == 7
        assert delivery["properties"]["colour"] == "blau-grün"
        assert delivery["properties"]["empty words"] == "a b c"
        assert delivery["reconsumeTimes"] == 0
        assert delivery["broker"] == cluster.broker_name
        if kind != "oneway":
            assert place(delivery) == place(told[kind])
            assert delivery["msgId"] == told[kind]["msgId"]
    assert received["queue"]["queueId"] == 2


@pytest.mark.parametrize("dialect", ["json", "rocketmq"])
def test_a_batch_is_stored_as_single_messages(cluster: Cluster, dialect: str) -> None:
    """The messages get consecutive offsets of one queue, and each has its own id, tags and keys."""
    topic = cluster.fresh_name("Batch")
    cluster.create_topic(topic, QUEUES)
    messages = [{"body": f"message {i}", "tags": f"Tag{i}", "keys": f"key-{i}"} for i in range(5)]
    told = cluster.send(dialect, kind="batch", topic=topic, messages=messages)
    assert len(told["msgId"].split(",")) == len(told["offsetMsgId"].split(",")) == 5

    consumer = cluster.consumer(cluster.fresh_name("group"), topic, dialect=dialect)
    received = sorted(consumer.wait_count(5, "message"), key=lambda delivery: delivery["offset"])

    assert [(delivery["body"], delivery["tags"], delivery["keys"]) for delivery in received] == [
        (message["body"], message["tags"], message["keys"]) for message in messages
    ]
    assert [place(delivery) for delivery in received] == [
        (told["queueId"], told["offset"] + i) for i in range(5)
    ]


def test_messages_are_spread_over_all_queues(cluster: Cluster) -> None:
    """The producer cycles through the queues in the route."""
    topic = cluster.fresh_name("Spread")
    cluster.create_topic(topic, QUEUES)
    told = [cluster.send(topic=topic, body=str(i)) for i in range(2 * QUEUES)]
    assert sorted(place(one) for one in told) == [
        (queue, offset) for queue in range(QUEUES) for offset in (0, 1)
    ]


def test_an_offset_message_id_names_the_broker_and_a_physical_offset(cluster: Cluster) -> None:
    """An id is address (4), port (4) and physical offset (8) in hex; a later message has a higher offset."""
    topic = cluster.fresh_name("Ids")
    cluster.create_topic(topic, 1)
    first, second = (
        bytes.fromhex(cluster.send(topic=topic, body=body)["offsetMsgId"]) for body in ("one", "two")
    )
    host, port = cluster.broker_address.split(":")
    for identity in (first, second):
        assert identity[:4] == bytes(map(int, host.split(".")))
        assert int.from_bytes(identity[4:8]) == int(port)
    assert int.from_bytes(second[8:]) > int.from_bytes(first[8:])


def test_sending_to_an_unknown_topic_creates_it(cluster: Cluster) -> None:
    """It gets as many queues as the client requests, 4, and its route is available afterwards."""
    topic = cluster.fresh_name("Created")
    assert cluster.route(topic) is None
    cluster.send(topic=topic, body="creates its topic")
    cluster.wait_until(lambda: cluster.route(topic) is not None, "no route", within_s=PATIENCE_S)
    route = cluster.route(topic)
    assert route is not None
    (queues,) = route["queueDatas"]
    assert (queues["readQueueNums"], queues["writeQueueNums"], queues["perm"]) == (4, 4, 6)


def place(event: Event) -> tuple[int, int]:
    return event["queueId"], event["offset"]
