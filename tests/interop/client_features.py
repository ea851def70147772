"""The features of our client, each as one coroutine that uses it at a broker and checks the result."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from libramq import Reject, Retry
from libramq.client import (
    Admin,
    Consumer,
    Producer,
    PushConsumer,
    SimpleConsumer,
    Sql,
    Transaction,
    TransactionState,
    by_hash,
)  # fmt: skip
from libramq.errors import ConsumerNotOnline, FeatureNotSupported
from libramq.message import Message, MessageExt, MessageQueue
from libramq.message.properties import PRIORITY
from tests.interop import wire

#: The timeout of one wait; a busy machine may need several times as long as a quiet one.
WAIT_S = 60.0
#: Apache's broker takes 2 minutes to forget a member whose heartbeat it handled after its departure.
OFFLINE_S = 150.0
TIMEOUT_MS = 30_000
QUEUES = 2
COUNT = 10


class Place:
    """One broker, the names that a feature uses there, and the directory of its consumers' files."""

    def __init__(self, namesrv: str, feature: str, directory: Path) -> None:
        self.namesrv = namesrv
        self.directory = directory
        self.topic = f"Topic-{feature}"
        self.group = f"group-{feature}"

    def producer(self, **options: Any) -> Producer:
        return Producer(group=f"{self.group}-p", namesrv=self.namesrv, send_timeout_ms=TIMEOUT_MS, **options)

    def pushing(self, **options: Any) -> PushConsumer:
        return PushConsumer(
            **{"group": self.group, "namesrv": self.namesrv, "consume_from": "earliest",
               "route_refresh_ms": 500} | options
        )  # fmt: skip

    def fetching(self, **options: Any) -> Consumer:
        return Consumer(group=self.group, namesrv=self.namesrv, consume_from="earliest", **options)

    def admin(self) -> Admin:
        return Admin(namesrv=self.namesrv, timeout_ms=TIMEOUT_MS)

    async def send(self, *bodies: str, **fields: Any) -> None:
        async with self.producer() as producer:
            await producer.send_batch([Message(self.topic, body.encode(), **fields) for body in bodies])


class Inbox:
    """A handler that keeps messages; `until` waits for a condition on them."""

    def __init__(self, result: Callable[[MessageExt], object] = lambda _: None) -> None:
        self.messages: list[MessageExt] = []
        self._result = result
        self._changed = asyncio.Event()

    async def __call__(self, messages: list[MessageExt]) -> Any:
        self.messages += messages
        self._changed.set()
        return self._result(messages[0])

    @property
    def bodies(self) -> list[str]:
        return [message.body.decode() for message in self.messages]

    async def until(self, is_so: Callable[[list[str]], bool], within_s: float = WAIT_S) -> None:
        async with asyncio.timeout(within_s):
            while not is_so(self.bodies):
                self._changed.clear()
                await self._changed.wait()

    async def until_all(self, *bodies: str, within_s: float = WAIT_S) -> None:
        await self.until(lambda present: set(present) >= set(bodies), within_s)


def bodies(count: int = COUNT) -> list[str]:
    return [f"m{number}" for number in range(count)]


async def read(at: Place, count: int, expression: str | Sql = "*") -> list[MessageExt]:
    """Return this many messages of the topic, read with getmany."""
    found: list[MessageExt] = []
    consumer = at.fetching()
    consumer.subscribe(at.topic, expression)
    async with consumer, asyncio.timeout(WAIT_S):
        while len(found) < count:
            for messages in (await consumer.getmany()).values():
                found += messages
    return found


async def sends(at: Place) -> None:
    """Messages of every kind of send arrive, complete and in the queue named by the result."""
    sent = {}
    async with at.producer() as producer:
        for body in ("one ü", "compressed " * 1_000):
            sent[body] = await producer.send(_full(at, body))
        sent["hash"] = await producer.send(_full(at, "hash"), selector=by_hash("N14228"))
        queue = MessageQueue(at.topic, sent["hash"].queue.broker_name, 1)
        sent["queue"] = await producer.send(_full(at, "queue"), queue=queue)
        assert sent["queue"].queue == queue
        batch = [_full(at, f"batch {number}") for number in range(3)]
        for message, result in zip(batch, await producer.send_batch(batch), strict=True):
            sent[message.body.decode()] = result
        for body in ("nowait 1", "nowait 2"):
            producer.send_nowait(_full(at, body), lambda result, body=body: sent.update({body: result}))
        await producer.flush()
        await producer.send_oneway(_full(at, "oneway"))
        messages = {each.body.decode(): each for each in await read(at, len(sent) + 1)}
    assert messages.keys() == sent.keys() | {"oneway"}
    for body, message in messages.items():
        assert (message.tags, message.keys, message.properties["colour"]) == ("TagA", ("k1", "k2"), "grün")
        if body != "oneway":
            assert message.message_id == sent[body].message_id
            assert (message.queue_id, message.queue_offset) == (
                sent[body].queue.queue_id, sent[body].queue_offset,
            )  # fmt: skip


def _full(at: Place, body: str) -> Message:
    return Message(
        at.topic, body.encode(), tags="TagA", keys=("k1", "k2"), properties={"colour": "grün"}, flag=7
    )


async def created_topics(at: Place) -> None:
    """The first send creates a topic."""
    at.topic += "-new"
    await at.send("x")
    assert [each.body for each in await read(at, 1)] == [b"x"]


async def concurrent(at: Place) -> None:
    """Handled messages are committed; a failed one is redelivered, a rejected one becomes a dead letter."""

    def result(message: MessageExt) -> object:
        if message.body == b"again" and not message.reconsume_times:
            return Retry(after=1)
        return Reject() if message.body == b"bad" else None

    await at.send("good", "again", "bad")
    inbox, dead = Inbox(result), Inbox()
    consumer, reader = at.pushing(), at.pushing(group=f"{at.group}-dead")
    consumer.subscribe(at.topic, "*", inbox)
    reader.subscribe(f"%DLQ%{at.group}", "*", dead)
    async with consumer, reader, at.admin() as admin:
        await inbox.until(lambda present: present.count("again") == 2)
        await dead.until_all("bad")
        assert sorted(inbox.bodies) == ["again", "again", "bad", "good"]
        await until(lambda: _is_committed(admin, at))
    again = [each for each in inbox.messages if each.body == b"again"]
    assert [each.reconsume_times for each in again] == [0, 1]
    assert {each.topic for each in again} == {at.topic}


async def _is_committed(admin: Admin, at: Place) -> bool:
    stats = await admin.consume_stats(at.group, at.topic)
    return sum(each.consumer_offset for each in stats.values()) == 3


async def until(is_so: Callable[[], Any], within_s: float = WAIT_S) -> None:
    """Poll a condition at the servers, for which there is no notification."""
    async with asyncio.timeout(within_s):
        while not await is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.05)


async def orderly(at: Place) -> None:
    """One queue's messages are handled in order, and a failed one before those behind it."""
    failed: set[bytes] = set()

    def result(message: MessageExt) -> object:
        if message.body == b"m3" and message.body not in failed:
            failed.add(message.body)
            return Retry(after=0.05)
        return None

    async with at.producer() as producer:
        for body in bodies():
            await producer.send(Message(at.topic, body.encode()), selector=by_hash("one"))
    inbox = Inbox(result)
    consumer = at.pushing(orderly=True)
    consumer.subscribe(at.topic, "*", inbox)
    async with consumer:
        await inbox.until_all("m9")
    assert inbox.bodies == ["m0", "m1", "m2", "m3", *bodies()[3:]]


async def shared(at: Place) -> None:
    """Two members divide the queues, and the one that stays gets those of the other."""
    first, second = at.pushing(), at.pushing()
    inboxes = Inbox(), Inbox()
    for consumer, inbox in zip((first, second), inboxes, strict=True):
        consumer.subscribe(at.topic, "*", inbox)

    async def owned(*consumers: PushConsumer) -> bool:
        return [await _queues(each, at) for each in consumers] == [QUEUES // len(consumers)] * len(consumers)

    async with first:
        async with second:
            await until(lambda: owned(first, second))
            await at.send(*bodies())
            await until(lambda: _has(inboxes, bodies()))
        await until(lambda: owned(first))
        await at.send("last")
        await inboxes[0].until_all("last", within_s=OFFLINE_S)


async def _queues(consumer: PushConsumer, at: Place) -> int:
    return len([queue for queue in await consumer.assignment() if queue.topic == at.topic])


async def _has(inboxes: Sequence[Inbox], wanted: list[str]) -> bool:
    return set().union(*(inbox.bodies for inbox in inboxes)) >= set(wanted)


async def broadcast(at: Place) -> None:
    """Each of two members gets every message."""
    inboxes = Inbox(), Inbox()
    consumers = [
        at.pushing(
            broadcasting=True, instance_name=f"{at.group}-{number}", local_offsets=at.directory / "offsets"
        )
        for number in (1, 2)
    ]
    for consumer, inbox in zip(consumers, inboxes, strict=True):
        consumer.subscribe(at.topic, "*", inbox)
    async with consumers[0], consumers[1]:
        await at.send(*bodies())
        for inbox in inboxes:
            await inbox.until_all(*bodies())


async def filters(at: Place) -> None:
    """Brokers filter by tags and by SQL92."""
    async with at.producer() as producer:
        for number in range(COUNT):
            tags = "even" if number % 2 == 0 else "odd"
            await producer.send(
                Message(at.topic, b"%d" % number, tags=tags, properties={"number": str(number)})
            )
    by_tag = await read(at, COUNT // 2, "even || none")
    assert sorted(each.body for each in by_tag) == [b"%d" % number for number in range(0, COUNT, 2)]
    at.group += "-sql"
    by_sql = await read(at, 3, Sql("number > 6"))
    assert sorted(each.body for each in by_sql) == [b"7", b"8", b"9"]


async def fetches(at: Place) -> None:
    """A program reads queues from its own positions, commits selected offsets, and reads record batches."""
    await at.send(*bodies())
    async with at.fetching(auto_commit=False) as consumer, asyncio.timeout(WAIT_S):
        queues = await consumer.queues(at.topic)
        assert len(queues) == QUEUES
        await consumer.assign(queues)
        found = [await consumer.getone() for _ in range(COUNT)]
        assert sorted(each.body.decode() for each in found) == bodies()
        queue = MessageQueue(at.topic, found[0].broker_name, found[0].queue_id)
        await consumer.seek(queue, 0)
        assert (await consumer.getone()).queue_offset == 0
        await consumer.commit({queue: 1})
        assert await consumer.committed(queue) == 1
    at.group += "-arrow"
    read_bodies: list[str] = []
    consumer = at.fetching()
    consumer.subscribe(at.topic)
    async with consumer, asyncio.timeout(WAIT_S):
        async for batch in consumer.batches(["offset", "body"]):
            read_bodies += [each.decode() for each in batch.column("body").to_pylist()]
            if len(read_bodies) == COUNT:
                break
    assert sorted(read_bodies) == bodies()


async def delays(at: Place) -> None:
    """A message with a delay level is stored in its topic once the delay is over."""
    async with at.producer() as producer:
        await producer.send(Message(at.topic, b"later", delay_level=1))
        (message,) = await read(at, 1)
    assert message.store_timestamp_ms - message.born_timestamp_ms >= 900


async def transactions(at: Place) -> None:
    """The broker delivers committed messages, and checks transactions that were left open."""
    checked: list[str] = []

    async def check(message: MessageExt) -> TransactionState:
        # Apache's brokers may also check others before processing how those ended.
        checked.append(message.body.decode())
        return TransactionState.ROLLBACK if message.body == b"rolled back" else TransactionState.COMMIT

    inbox = Inbox()
    consumer = at.pushing()
    consumer.subscribe(at.topic, "*", inbox)
    async with at.producer(check_transaction=check) as producer, consumer:
        for body in ("committed", "rolled back", "open"):
            try:
                async with producer.transaction(Message(at.topic, body.encode())) as transaction:
                    _end(transaction, body)
            except _RollBack:
                pass
        await inbox.until_all("committed", "open")
    assert "open" in checked
    assert "rolled back" not in inbox.bodies


class _RollBack(Exception):
    """Stands for a failure of the program's own work."""


def _end(transaction: Transaction, body: str) -> None:
    if body == "rolled back":
        raise _RollBack
    if body == "open":
        transaction.leave_open()


async def requests(at: Place) -> None:
    """A handler's reply reaches the program that waits for it."""
    async with at.producer() as replying, at.producer() as requesting:

        async def handle(messages: list[MessageExt]) -> None:
            for message in messages:
                await replying.reply(message, message.body.upper())

        consumer = at.pushing()
        consumer.subscribe(at.topic, "*", handle)
        async with consumer:
            reply = await requesting.request(Message(at.topic, b"question"))
    assert reply.body == b"QUESTION"


async def administration(at: Place) -> None:
    """Topics, routes, statistics, groups and their members, and setting offsets."""
    async with at.admin() as admin:
        info = await admin.cluster_info()
        assert len(info.broker_addr_table) == 1
        assert at.topic in await admin.topics()
        assert [each.read_queue_nums for each in (await admin.topic_route(at.topic)).queue_datas] == [QUEUES]
        await at.send(*bodies())
        await until(lambda: _stored(admin, at.topic, COUNT))
        inbox = Inbox()
        consumer = at.pushing()
        consumer.subscribe(at.topic, "*", inbox)
        async with consumer:
            await inbox.until_all(*bodies())
            (member,) = (await admin.consumer_connection(at.group)).connection_set
            running = await admin.running_info(at.group, member.client_id)
            assert at.topic in {each.topic for each in running.subscription_set}
            done = await admin.consume_directly(at.group, member.client_id, inbox.messages[0].offset_id)
            assert inbox.bodies.count(inbox.bodies[0]) == 2, done
        await until(lambda: _is_offline(admin, at.group), OFFLINE_S)
        offsets = await admin.reset_offsets(at.group, at.topic, 0)
        assert {queue.topic: offset for queue, offset in offsets.items()} == {at.topic: 0}
        again = Inbox()
        consumer = at.pushing()
        consumer.subscribe(at.topic, "*", again)
        async with consumer:
            await again.until_all(*bodies())
        await until(lambda: _is_offline(admin, at.group), OFFLINE_S)
        await admin.delete_group(at.group, offsets=True)
        await admin.delete_topic(at.topic)
        assert at.topic not in await admin.topics()


async def _stored(admin: Admin, topic: str, count: int) -> bool:
    return sum(each.max_offset for each in (await admin.topic_stats(topic)).values()) == count


async def _is_offline(admin: Admin, group: str) -> bool:
    try:
        await admin.consumer_connection(group)
    except ConsumerNotOnline:
        return True
    return False


async def queue_resets(at: Place) -> None:
    """One queue's offset is set; the others stay."""
    await at.send(*bodies())
    await read(at, COUNT)
    async with at.admin() as admin:
        queue = min(await admin.topic_stats(at.topic))
        await until(lambda: _is_reset(admin, at.group, queue), OFFLINE_S)


async def _is_reset(admin: Admin, group: str, queue: MessageQueue) -> bool:
    """Return whether a queue was reset to its beginning; old brokers refuse while they know a member."""
    try:
        return await admin.reset_queue(group, queue, 0) == 0
    except FeatureNotSupported as error:
        if "with members online" not in str(error):
            raise
        return False


async def timers(at: Place) -> None:
    """A message arrives at its time."""
    async with at.producer() as producer:
        at_time = datetime.now(UTC) + timedelta(seconds=2)
        await producer.send(Message(at.topic, b"at a time", deliver_at=at_time))
        await producer.send(Message(at.topic, b"after a delay", delay_ms=1_500))
        messages = await read(at, 2)
    for message in messages:
        assert message.store_timestamp_ms - message.born_timestamp_ms >= 1_000, message


async def recalls(at: Place) -> None:
    """A message that waits for its time is recalled."""
    async with at.producer() as producer:
        later = await producer.send(Message(at.topic, b"recalled", delay_ms=3_000))
        last = await producer.send(Message(at.topic, b"last", delay_ms=5_000))
        await producer.recall(later.recall_handle)
        assert last.recall_handle
        messages = await read(at, 1)
    assert [each.body for each in messages] == [b"last"]


async def priorities(at: Place) -> None:
    """The first popped message has the highest priority."""
    async with at.producer() as producer:
        for body in ("0", "1", "1", "0"):
            await producer.send(Message(at.topic, body.encode(), properties={PRIORITY: body}))
    async with at.admin() as admin:  # Apache's broker acknowledges a message before it can be popped.
        await until(lambda: _stored(admin, at.topic, 4))
    async with SimpleConsumer(group=at.group, namesrv=at.namesrv, prefetch=False) as consumer:
        consumer.subscribe(at.topic)
        found = [each.body for _ in range(4) for each in await _received(consumer, 1)]
    assert found == [b"1", b"1", b"0", b"0"], found


async def pops(at: Place) -> None:
    """Handlers over POP: a failed message is redelivered."""

    def result(message: MessageExt) -> object:
        return Retry(after=1) if message.body == b"m1" and not message.reconsume_times else None

    await at.send(*bodies())
    inbox, failed = Inbox(result), asyncio.get_running_loop().create_future()
    consumer = at.pushing(pop=True, on_error=lambda error: failed.done() or failed.set_exception(error))
    consumer.subscribe(at.topic, "*", inbox)
    handled = asyncio.ensure_future(
        inbox.until(lambda all_bodies: set(all_bodies) >= set(bodies()) and all_bodies.count("m1") == 2)
    )
    async with consumer:
        await asyncio.wait([handled, failed], return_when=asyncio.FIRST_COMPLETED)
    if failed.done():
        handled.cancel()
        await failed
    await handled
    assert sorted(inbox.bodies) == sorted([*bodies(), "m1"])


async def simple(at: Place) -> None:
    """Messages are acknowledged one by one; a returned one is redelivered."""
    await at.send(*bodies())
    async with SimpleConsumer(group=at.group, namesrv=at.namesrv) as consumer:
        consumer.subscribe(at.topic)
        messages = await _received(consumer, COUNT)
        assert sorted(each.body.decode() for each in messages) == bodies()
        first, second, *others = messages
        await consumer.change_invisible_time(first, TIMEOUT_MS * 2)
        await consumer.nack(second, delay_ms=1_000)
        await consumer.ack(first)
        await consumer.ack(others)
        (again,) = await _received(consumer, 1)
        assert (again.body, again.reconsume_times) == (second.body, 1)
        await consumer.ack(again)


async def _received(consumer: SimpleConsumer, count: int) -> list[MessageExt]:
    messages: list[MessageExt] = []
    async with asyncio.timeout(WAIT_S):
        while len(messages) < count:
            messages += await consumer.receive(count, invisible_ms=TIMEOUT_MS, await_ms=1_000)
    return messages


FEATURES = {
    function.__name__: function
    for function in (
        sends, created_topics, concurrent, orderly, shared, broadcast, filters, fetches, delays, transactions,
        requests, administration, queue_resets, timers, recalls, pops, simple, priorities,
    )
}  # fmt: skip


async def use(namesrv: str, directory: Path) -> dict[str, BaseException | None]:
    """Use all features at once, each with its own topic; return the outcome of each."""
    places = {name: Place(namesrv, name, directory) for name in FEATURES}
    async with Admin(namesrv=namesrv, timeout_ms=TIMEOUT_MS) as admin:
        info = await admin.cluster_info()
        (broker,) = info.broker_addr_table.values()
        for name, place in places.items():
            await admin.create_topic(place.topic, queues=QUEUES)
            if name == "priorities":
                await _type_of_priorities(str(broker.master_address), place.topic)
    ends = await asyncio.gather(
        *(FEATURES[name](place) for name, place in places.items()), return_exceptions=True
    )
    return dict(zip(places, ends, strict=True))


async def _type_of_priorities(address: str, topic: str) -> None:
    """Make a topic a priority topic, as `mqadmin updateTopic -a` does; brokers before 5.4 refuse that."""
    fields = {
        "topic": topic, "defaultTopic": "TBW102", "readQueueNums": str(QUEUES), "writeQueueNums": str(QUEUES),
        "perm": "6", "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false",
        "attributes": "+message.type=PRIORITY",
    }  # fmt: skip
    await asyncio.to_thread(wire.ask, address, wire.UPDATE_AND_CREATE_TOPIC, fields)
