"""startMonitoring: the findings of one round about groups and their members."""

import asyncio
import json

from libramq.admin.monitoring import DEPLOYING_MS, STUCK_MS, notices_of, undone
from libramq.client import Producer, PushConsumer
from libramq.filter.subscription import SubscriptionData
from libramq.message.message import Message
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import ConsumerRunningInfo, OffsetWrapper, ProcessQueueInfo, TopicOffset
from tests.cli.test_admin_surface import libra, made

NOW_MS = 1_700_000_000_000
QUEUE = MessageQueue("T", "a", 3)


def member(
    tags: str = "*", *, queue: ProcessQueueInfo | None = None, kind: str = "PASSIVELY", **properties: str
) -> ConsumerRunningInfo:
    started = {"PROP_CONSUMER_START_TIMESTAMP": str(NOW_MS - DEPLOYING_MS - 1)}
    return ConsumerRunningInfo(
        properties={"PROP_CONSUME_TYPE": f"CONSUME_{kind}", **started, **properties},
        subscription_set=[SubscriptionData(topic="T", sub_string=tags)],
        mq_table={QUEUE: queue} if queue is not None else {},
    )


def test_members_that_differ_are_noticed_once_they_are_deployed():
    assert notices_of("g", {"one": member("a"), "two": member("a")}, NOW_MS) == []
    differing = {"one": member("a"), "two": member("b")}
    assert notices_of("g", differing, NOW_MS) == ["group g: members' subscriptions differ"]
    assert notices_of("g", differing, NOW_MS - DEPLOYING_MS) == []
    assert notices_of("g", {"one": member("a"), "two": member("b", kind="ACTIVELY")}, NOW_MS) == []
    assert notices_of("g", {}, NOW_MS) == []


def test_queues_that_stand_still_are_noticed():
    """A queue without messages is idle; an unlocked queue receives none."""

    def of(state: ProcessQueueInfo, **properties: str) -> list[str]:
        return notices_of("g", {"one": member(queue=state, **properties)}, NOW_MS)

    last_ms = NOW_MS - STUCK_MS - 5
    stuck = ProcessQueueInfo(commit_offset=1, cached_msg_count=2, last_consume_timestamp=last_ms)
    assert of(stuck) == ["group g: one, queue 3 of T: nothing handled for 60005 ms, perhaps it is blocked"]
    assert of(ProcessQueueInfo(commit_offset=1, last_consume_timestamp=last_ms)) == []
    assert of(ProcessQueueInfo(commit_offset=1, cached_msg_count=2)) == []
    orderly = {"PROP_CONSUMEORDERLY": "true"}
    assert of(ProcessQueueInfo(commit_offset=1, last_lock_timestamp=NOW_MS - 9), **orderly) == [
        "group g: one, queue 3 of T: not locked for 9 ms"
    ]
    assert of(ProcessQueueInfo(commit_offset=1, locked=True), **orderly) == []


def test_undone_messages_are_counted():
    queues = [MessageQueue("T", "a", number) for number in range(3)]
    offsets = {
        queues[0]: OffsetWrapper(broker_offset=13, consumer_offset=10, last_timestamp=NOW_MS),
        queues[1]: OffsetWrapper(broker_offset=15, consumer_offset=10, last_timestamp=NOW_MS),
        queues[2]: OffsetWrapper(broker_offset=9, consumer_offset=10, last_timestamp=0),
    }
    ends = {
        queues[0]: TopicOffset(min_offset=0, max_offset=13, last_update_timestamp=NOW_MS + 40),
        queues[2]: TopicOffset(min_offset=0, max_offset=9, last_update_timestamp=NOW_MS + 500),
    }
    assert undone(offsets, ends) == {"undone": 8, "undoneOfQueue": 5, "delayMs": 40}
    assert undone({}, {}) == {"undone": 0, "undoneOfQueue": 0, "delayMs": 0}


async def consume_and_send_more(up, topic: str) -> None:
    """Consume two messages in a group, and send three more once it has left."""
    async with Producer(group="p", namesrv=up.namesrv) as producer:
        consumer = PushConsumer(group="monitored", namesrv=up.namesrv, consume_from="earliest")
        seen = asyncio.Queue[object]()
        consumer.subscribe(topic, "*", seen.put_nowait)
        for _ in range(2):
            await producer.send(Message(topic, b"x"))
        async with consumer:
            for _ in range(2):
                await asyncio.wait_for(seen.get(), 60)
        for _ in range(3):
            await producer.send(Message(topic, b"y"))


def test_a_round_prints_each_group_and_topic(up):
    topic = made(up, "Monitored")
    asyncio.run(consume_and_send_more(up, topic))
    done = libra("admin", "startMonitoring", "-r", "1", "-n", up.namesrv, "--json")
    assert done.code == 0, done
    document = json.loads(done.out)
    (row,) = [each for each in document["groups"] if each["topic"] == topic]
    assert row["delayMs"] >= 0
    assert row == {"group": "monitored", "topic": topic, "undone": 3, "undoneOfQueue": 3} | {
        "delayMs": row["delayMs"]
    }
    table = libra("admin", "startMonitoring", "--rounds", "1", "-n", up.namesrv)
    assert "most in a queue" in table.out
    assert topic in table.out
