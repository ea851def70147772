"""Tests of the producer against a broker that can misbehave."""

import array
import asyncio
import random

import pytest

from libramq.client import Producer, SendStatus, by_hash
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import (
    BufferFull,
    ConfigError,
    ConnectFailed,
    ConnectionLost,
    InvalidMessage,
    InvalidName,
    LocalProtocolError,
    MessageIllegal,
    NameServerUnavailable,
    RemoteError,
    RequestTimeout,
    RouteNotFound,
    SystemBusy,
)
from libramq.message import Message, MessageQueue
from libramq.message.record import decode_records
from tests.client.fake_cluster import SENDS, FakeBroker, FakeNameServer


def producer(namesrv, **options):
    """Return a producer with timeouts for a busy machine."""
    options = {"send_timeout_ms": 30_000} | options
    return Producer(group="p", namesrv=namesrv.address, randomness=random.Random(1), **options)


def stored(broker, topic="T"):
    return [
        message
        for (name, _), records in sorted(broker.queues.items())
        if name == topic
        for message in decode_records(b"".join(records))
    ]


async def test_a_send_returns_where_the_message_is_stored(namesrv, broker):
    """The result has the status, the ids, the queue and the offset."""
    async with producer(namesrv) as sender:
        result = await sender.send(Message("T", b"hello", tags="a", keys="k"))
    (message,) = stored(broker)
    assert (message.body, message.tags, message.keys) == (b"hello", "a", ("k",))
    assert result.status is SendStatus.SEND_OK
    assert result.message_id == message.message_id
    assert result.queue == MessageQueue("T", "a", message.queue_id)
    assert result.queue_offset == 0
    assert result.offset_message_id == f"a-{message.queue_id}-0"


async def test_messages_are_spread_over_the_queues(namesrv, broker):
    """Each queue gets the same number."""
    async with producer(namesrv) as sender:
        for _ in range(8):
            await sender.send(Message("T", b"x"))
    assert sorted(message.queue_id for message in stored(broker)) == [0, 0, 1, 1, 2, 2, 3, 3]


async def test_a_queue_can_be_named_or_selected(namesrv, broker):
    """With a hash, the same key always selects the same queue."""
    async with producer(namesrv) as sender:
        given = await sender.send(Message("T", b"x"), queue=MessageQueue("T", "a", 2))
        selected = {(await sender.send(Message("T", b"x"), selector=by_hash("key"))).queue for _ in range(5)}
        assert await sender.publish_queues("T") == tuple(MessageQueue("T", "a", n) for n in range(4))
    assert given.queue.queue_id == 2
    assert len(selected) == 1


async def test_a_batch_is_one_request(namesrv, broker):
    """Its messages are stored one after the other, each with its own id and place."""
    async with producer(namesrv) as sender:
        results = await sender.send_batch([Message("T", b"%d" % n) for n in range(5)])
    assert broker.count(*SENDS) == 1
    assert [message.body for message in stored(broker)] == [b"0", b"1", b"2", b"3", b"4"]
    assert [result.queue_offset for result in results] == [0, 1, 2, 3, 4]
    assert [result.message_id for result in results] == [m.message_id for m in stored(broker)]
    assert results[4].offset_message_id.endswith("-4")


async def test_a_large_batch_is_split(namesrv, broker):
    """The limit is one mebibyte."""
    async with producer(namesrv) as sender:
        results = await sender.send_batch([Message("T", bytes(400_000)) for _ in range(5)])
    assert broker.count(*SENDS) == 3
    assert len(results) == 5


async def test_a_batch_of_two_topics_is_refused(namesrv):
    """Nothing of it is sent."""
    async with producer(namesrv) as sender:
        with pytest.raises(InvalidMessage, match="one topic"):
            await sender.send_batch([Message("T", b"x"), Message("U", b"x")])


async def test_a_oneway_send_expects_no_answer(namesrv, broker, until):
    """The message is stored nevertheless."""
    async with producer(namesrv) as sender:
        await sender.send_oneway(Message("T", b"x"))
        await until(lambda: stored(broker))
    assert broker.of(*SENDS)[0].is_oneway


async def test_many_messages_travel_in_few_requests(namesrv, broker):
    """`send_nowait` collects them. A callback is called for each message, in order within a queue."""
    results = []
    async with producer(namesrv) as sender:
        for number in range(2500):
            sender.send_nowait(Message("T", b"%d" % number), results.append)
        await sender.flush()
    assert broker.count(*SENDS) == 3
    assert sorted(int(message.body) for message in stored(broker)) == list(range(2500))
    assert len(results) == 2500
    assert {result.message_id for result in results} == {m.message_id for m in stored(broker)}


async def test_messages_for_a_queue_stay_in_order(namesrv, broker):
    """So do messages sent before the route was known."""
    queue = MessageQueue("T", "a", 1)
    async with producer(namesrv) as sender:
        for number in range(3000):
            sender.send_nowait(Message("T", b"%d" % number), queue=queue)
            if number % 500 == 0:
                await asyncio.sleep(0)
        await sender.flush()
    assert [int(message.body) for message in stored(broker)] == list(range(3000))
    assert {message.queue_id for message in stored(broker)} == {1}


@pytest.mark.parametrize(
    "properties", [{"TIMER_DELAY_SEC": "3"}, {"_SYS_MSG_PRIORITY_": "3"}, {"INNER_MULTI_DISPATCH": "%LMQ%a"}]
)
async def test_a_message_that_means_something_else_in_a_batch_travels_alone(namesrv, broker, properties):
    """Delivery times, priorities, and light queues at Apache's brokers apply to single messages."""
    async with producer(namesrv) as sender:
        sender.send_nowait(Message("T", b"special", properties=properties))
        sender.send_nowait(Message("T", b"plain"))
        await sender.flush()
    assert sorted(request.code for request in broker.of(*SENDS)) == sorted(SENDS)


async def test_stopping_sends_waiting_messages(namesrv, broker):
    """They do not wait for the rest of their linger time."""
    async with producer(namesrv, linger_ms=60_000) as sender:
        sender.send_nowait(Message("T", b"x"))
    assert len(stored(broker)) == 1


@pytest.mark.parametrize("linger_ms", [1, 3_600_000])
async def test_the_buffer_is_bounded(namesrv, broker, linger_ms):
    """There is room again when the broker has answered; without further sends no batch waits for more."""
    async with producer(namesrv, buffer_bytes_max=10_000, linger_ms=linger_ms) as sender:
        await sender.publish_queues("T")
        for _ in range(10):
            sender.send_nowait(Message("T", bytes(1000)))
        with pytest.raises(BufferFull, match="wait_for_room"):
            sender.send_nowait(Message("T", bytes(1000)))
        await sender.wait_for_room()
        sender.send_nowait(Message("T", bytes(1000)))
        await sender.flush()
    assert len(stored(broker)) == 11


async def test_unreported_errors_are_raised_by_flush(namesrv, broker):
    """No error is lost. A callback gets the errors of its messages itself."""
    heard = []
    async with producer(namesrv) as sender:
        broker.refuse(RequestCode.SEND_BATCH_MESSAGE, ResponseCode.MESSAGE_ILLEGAL, times=2)
        sender.send_nowait(Message("T", b"x"))
        with pytest.raises(MessageIllegal):
            await sender.flush()
        sender.send_nowait(Message("T", b"x"), heard.append)
        await sender.flush()
        await sender.flush()
    assert [type(error) for error in heard] == [MessageIllegal]


@pytest.mark.parametrize("error", [ZeroDivisionError, asyncio.CancelledError, SystemExit])
async def test_a_failing_callback_affects_no_other(namesrv, broker, error):
    """The other callbacks are called. The second error is that of a cancelled future that is asked."""
    heard = []

    def broken(result):
        raise error

    async with producer(namesrv) as sender:
        sender.send_nowait(Message("T", b"1"), broken)
        sender.send_nowait(Message("T", b"2"), heard.append)
        await sender.flush()
    assert len(heard) == 1


@pytest.mark.parametrize("fault", ["cut", "refuse"])
async def test_a_failed_send_is_retried_at_another_broker(start, fault):
    """A broken connection and a temporary error are worth another attempt."""
    brokers = [await start(FakeBroker(name, T=2)) for name in "ab"]
    namesrv = await start(FakeNameServer(*brokers))
    if fault == "cut":
        brokers[0].cut(RequestCode.SEND_MESSAGE_V2, times=10)
    else:
        brokers[0].refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY, times=10)
    async with producer(namesrv) as sender:
        for _ in range(4):
            result = await sender.send(Message("T", b"x"))
            assert result.queue.broker_name == "b"
    assert brokers[0].count(*SENDS) >= 1


async def test_fault_tolerance_avoids_a_failing_broker(start):
    """A failure excludes a broker for a while. Otherwise every other message tries it."""
    brokers = [await start(FakeBroker(name, T=2)) for name in "ab"]
    namesrv = await start(FakeNameServer(*brokers))
    brokers[0].cut(RequestCode.SEND_MESSAGE_V2, times=20)
    async with producer(namesrv, latency_fault=True) as sender:
        for _ in range(10):
            await sender.send(Message("T", b"x"))
    assert brokers[0].count(*SENDS) == 1


async def test_an_error_that_every_broker_would_give_is_raised_at_once(namesrv, broker):
    """It has the code, the broker's remark and a remedy."""
    broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.MESSAGE_ILLEGAL)
    async with producer(namesrv) as sender:
        with pytest.raises(MessageIllegal, match="the test refuses it") as caught:
            await sender.send(Message("T", b"x"))
    assert caught.value.response_code == 13
    assert broker.count(*SENDS) == 1


@pytest.mark.parametrize("fields", [{}, {"msgId": "a", "queueId": "x", "queueOffset": "0"}])
async def test_an_answer_that_cannot_be_read_is_an_error(start, fields):
    """It ended the connection, and the sender waited for ever."""

    class Garbled(FakeBroker):
        def send_message_v2(self, peer, request):
            self.answer(peer, request, **fields)

        send_batch_message = send_message_v2

    namesrv = await start(FakeNameServer(await start(Garbled("a", T=4))))
    heard = []
    async with producer(namesrv) as sender:
        with pytest.raises(RemoteError, match="cannot be read"):
            await sender.send(Message("T", b"x"))
        sender.send_nowait(Message("T", b"x"), heard.append)
        await sender.flush()
    assert isinstance(heard[0], RemoteError)


async def test_attempts_are_bounded(namesrv, broker):
    """The error of the third is raised."""
    broker.refuse(RequestCode.SEND_MESSAGE_V2, ResponseCode.SYSTEM_BUSY, times=10)
    async with producer(namesrv) as sender:
        with pytest.raises(SystemBusy):
            await sender.send(Message("T", b"x"))
    assert broker.count(*SENDS) == 3


async def test_timeouts_are_kept(namesrv, broker):
    """No send waits longer than its timeout."""
    broker.silence(RequestCode.SEND_MESSAGE_V2, times=10)
    async with producer(namesrv) as sender, asyncio.timeout(60):
        with pytest.raises(RequestTimeout):
            await sender.send(Message("T", b"x"), timeout_ms=100)


async def test_an_unknown_topic_is_created_by_the_first_send(namesrv, broker):
    """The send uses the route of TBW102, and the topic has four queues."""
    async with producer(namesrv) as sender:
        await sender.send(Message("New", b"x"))
        assert len(await sender.publish_queues("New")) == 4
    assert len(stored(broker, "New")) == 1


async def test_an_unknown_topic_that_nobody_creates_is_an_error(namesrv):
    """It names a remedy, also for messages of `send_nowait`."""
    namesrv.auto_create = False
    async with producer(namesrv) as sender:
        with pytest.raises(RouteNotFound, match="updateTopic"):
            await sender.send(Message("New", b"x"))
        heard = []
        sender.send_nowait(Message("New", b"x"), heard.append)
        await sender.flush()
        assert [type(error) for error in heard] == [RouteNotFound]


async def test_a_name_server_that_is_gone_is_an_error():
    """The error is one clear line."""
    async with Producer(namesrv="127.0.0.1:1") as sender:
        with pytest.raises(NameServerUnavailable, match="NAMESRV_ADDR"):
            await sender.send(Message("T", b"x"))


async def test_any_name_server_can_be_used(namesrv, broker):
    """The others may be down."""
    addresses = f"127.0.0.1:1;{namesrv.address};127.0.0.1:2"
    for seed in range(4):
        async with Producer(namesrv=addresses, randomness=random.Random(seed)) as sender:
            await sender.send(Message("T", b"x"))
    assert len(stored(broker)) == 4


@pytest.mark.parametrize(
    ("message", "error"),
    [
        (Message("../x", b"x"), InvalidName),
        (Message("T", b""), InvalidMessage),
        (Message("T", bytes(5_000_000)), InvalidMessage),
        (Message("T", memoryview(array.array("q", range(600_000)))), InvalidMessage),
        (Message("T", b"x", properties={"UNIQ_KEY": "mine"}), InvalidMessage),
        (Message("T", b"x", properties={"p": "x" * 32_700}), InvalidMessage),
        (Message("T", b"x", keys=iter(["k"])), InvalidMessage),
    ],
    ids=[
        "name",
        "empty",
        "large",
        "large view",
        "reserved",
        "properties",
        "keys that are gone when they are sent",
    ],
)
async def test_invalid_messages_are_not_sent(namesrv, broker, message, error):
    """Each way of sending refuses them."""
    async with producer(namesrv) as sender:
        with pytest.raises(error):
            await sender.send(message)
        with pytest.raises(error):
            sender.send_nowait(message)
        with pytest.raises(error):
            await sender.send_batch([message])
        with pytest.raises(error):
            await sender.send_oneway(message)
    assert broker.count(*SENDS) == 0


@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
async def test_a_selector_that_raises_fails_its_message_only(namesrv, broker, error):
    """That holds before the route is known and afterwards."""

    def broken(queues, message):
        raise error

    heard = []
    async with producer(namesrv) as sender:
        sender.send_nowait(Message("T", b"1"), heard.append, selector=broken)
        sender.send_nowait(Message("T", b"2"))
        await sender.flush()
    assert "selector failed" in str(heard[0])
    assert [message.body for message in stored(broker)] == [b"2"]


@pytest.mark.parametrize("choice", [3, "T-a-0", MessageQueue("Other", "a", 0)], ids=repr)
async def test_a_choice_that_is_no_queue_of_the_topic_fails_its_message_only(namesrv, broker, choice):
    """Before the route is known its callback gets the error, afterwards the caller does."""
    heard = []
    async with producer(namesrv) as sender:
        sender.send_nowait(Message("T", b"1"), heard.append, selector=lambda queues, message: choice)
        await sender.flush()
        assert isinstance(heard[0], ConfigError | InvalidMessage)
        for chosen in ({"queue": choice}, {"selector": lambda queues, message: choice}):
            with pytest.raises((ConfigError, InvalidMessage)):
                sender.send_nowait(Message("T", b"2"), **chosen)
            with pytest.raises((ConfigError, InvalidMessage)):
                await sender.send(Message("T", b"3"), **chosen)
        with pytest.raises((ConfigError, InvalidMessage)):
            await sender.send_batch([Message("T", b"4")], queue=choice)
        sender.send_nowait(Message("T", b"5"))
        await sender.flush()
    assert [message.body for message in stored(broker)] == [b"5"]


async def test_a_message_that_waits_for_its_route_stays_as_it_was_passed(namesrv, broker):
    """Its body is often a buffer that is filled again; the buffer's accounting must not follow it."""
    body, properties = bytearray(b"first"), {"n": "1"}
    async with producer(namesrv) as sender:
        sender.send_nowait(Message("T", body, properties=properties))
        body[:], properties["n"] = b"the second", "2"
        sender.send_nowait(Message("T", body, properties=properties))
        await sender.flush()
    assert [(each.body, each.properties["n"]) for each in stored(broker)] == [
        (b"first", "1"),
        (b"the second", "2"),
    ]


async def test_brokers_get_heartbeats_and_a_goodbye(namesrv, broker, until):
    async with producer(namesrv, heartbeat_ms=20) as sender:
        await sender.send(Message("T", b"x"))
        await until(lambda: broker.count(RequestCode.HEART_BEAT))
    (goodbye,) = broker.of(RequestCode.UNREGISTER_CLIENT)
    assert goodbye.ext == {"clientID": sender.client_id, "producerGroup": "p"}


async def test_new_queues_are_used_when_routes_are_refreshed(namesrv, broker, until):
    """Routes are refreshed every 30 s, or as configured."""
    async with producer(namesrv, route_refresh_ms=20) as sender:
        await sender.send(Message("T", b"x"))
        broker.topics["T"] = 6
        await until(lambda: namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 4)
        assert len(await sender.publish_queues("T")) == 6


async def test_a_topic_that_vanishes_keeps_its_route(namesrv, broker, until):
    """The name server may have lost its broker for a moment."""
    async with producer(namesrv, route_refresh_ms=20) as sender:
        await sender.send(Message("T", b"x"))
        topics, broker.topics = broker.topics, {}
        asked = namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await until(lambda: namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= asked + 3)
        assert len(await sender.publish_queues("T")) == 4
        broker.topics = topics
        await sender.send(Message("T", b"y"))


async def test_a_topic_that_may_not_be_written_is_an_error(namesrv, broker, until):
    """Messages that were already waiting get it too."""
    heard = []
    async with producer(namesrv, linger_ms=60_000, route_refresh_ms=20) as sender:
        await sender.send(Message("T", b"x"))
        sender.send_nowait(Message("T", b"y"), heard.append)
        broker.topics["T"] = 0
        asked = namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC)
        await until(lambda: namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= asked + 3)
        await sender.flush()
        with pytest.raises(RouteNotFound, match="written"):
            await sender.send(Message("T", b"z"))
    assert [type(error) for error in heard] == [RouteNotFound]


async def test_a_producer_that_is_not_running_does_not_send():
    """Starting it twice is an error."""
    sender = Producer(namesrv="127.0.0.1:1")
    with pytest.raises(LocalProtocolError, match="async with"):
        await sender.send(Message("T", b"x"))
    with pytest.raises(LocalProtocolError):
        sender.send_nowait(Message("T", b"x"))
    async with sender:
        with pytest.raises(LocalProtocolError, match="already"):
            await sender.start()
    await sender.stop()


def test_options_are_checked(monkeypatch):
    """Each error is one clear line."""
    with pytest.raises(ConfigError, match="host:port"):
        Producer(namesrv="nonsense")
    with pytest.raises(ConfigError, match="retries"):
        Producer(namesrv="127.0.0.1:1", retries=-1)
    with pytest.raises(InvalidName):
        Producer(namesrv="127.0.0.1:1", group="no spaces")
    monkeypatch.setenv("NAMESRV_ADDR", "127.0.0.1:1")
    assert Producer().client_id.startswith("127.0.0.1@")


async def test_a_start_during_the_stop_is_refused(namesrv):
    """The stop would close the start's connections, or they would never be closed."""
    producer = Producer(namesrv=namesrv.address)
    await producer.start()
    await producer.send(Message("T", b"x"))
    stopping = asyncio.create_task(producer.stop())
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="is being stopped"):
        await producer.start()
    await stopping
    async with producer:
        await producer.send(Message("T", b"x"))


async def test_a_producer_of_another_loop_is_refused(namesrv):
    """Its connections belong to the loop on which it was started."""
    async with Producer(namesrv=namesrv.address) as producer:
        await producer.send(Message("T", b"x"))

        def elsewhere():
            for call in (lambda: producer.send(Message("T", b"x")), producer.flush, producer.stop):
                with pytest.raises(LocalProtocolError, match="another event loop"):
                    asyncio.run(call())
            with pytest.raises(LocalProtocolError, match="another event loop"):
                producer.send_nowait(Message("T", b"of a thread without a loop"))

        await asyncio.to_thread(elsewhere)
        await producer.send(Message("T", b"x"))


class Slow(FakeBroker):
    """A broker that stores messages when it is made to."""

    def __init__(self, name, **topics):
        super().__init__(name, **topics)
        self.waiting = []

    def send_message_v2(self, *send):
        self.waiting.append(send)

    send_batch_message = send_message_v2

    def store(self):
        for send in self.waiting:
            super().send_message_v2(*send)


@pytest.mark.parametrize("way", ["send", "send_batch"])
async def test_a_stop_waits_for_the_sends_that_are_awaited(start, until, way):
    broker = await start(Slow("a", T=4))
    producer = Producer(namesrv=(await start(FakeNameServer(broker))).address, send_timeout_ms=60_000)
    await producer.start()
    message = Message("T", b"x")
    sending = asyncio.create_task(
        producer.send(message) if way == "send" else producer.send_batch([message, message])
    )
    await until(lambda: broker.count(*SENDS) == 1)
    stopping = asyncio.create_task(producer.stop())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not stopping.done()
    broker.store()
    await stopping
    assert await sending
    assert stored(broker)


async def test_a_stop_waits_for_an_awaited_send_as_long_as_one_may_take(namesrv, broker, until):
    producer = Producer(namesrv=namesrv.address, send_timeout_ms=50)
    await producer.start()
    broker.silence(RequestCode.SEND_MESSAGE_V2)
    sending = asyncio.create_task(producer.send(Message("T", b"x"), timeout_ms=60_000))
    await until(lambda: broker.count(*SENDS) == 1)
    async with asyncio.timeout(30):
        await producer.stop()
    with pytest.raises(ConnectionLost, match="stopped"):
        await sending


@pytest.mark.parametrize("times", [1, 2, 3])
async def test_however_often_a_stop_is_cancelled_the_producer_can_be_started_again(namesrv, broker, times):
    """The stop ends at the latest when its goodbye is answered or has timed out."""
    producer = Producer(namesrv=namesrv.address)
    await producer.start()
    producer.send_nowait(Message("T", b"x"))
    stopping = asyncio.create_task(producer.stop())
    for _ in range(times):
        await asyncio.sleep(0)
        stopping.cancel()
    await asyncio.wait([stopping])
    async with asyncio.timeout(60):
        while True:
            try:
                await producer.start()
            except LocalProtocolError as error:
                assert "is being stopped" in str(error)  # noqa: PT017
                await asyncio.sleep(0)
            else:
                break
    await producer.stop()


async def test_a_broker_that_has_returned_is_found_soon(start, broker):
    """A name server had left a frozen broker out; its queues were refused until the next refresh, 30 s."""
    frozen = await start(FakeBroker("frozen", T=1))
    namesrv = await start(FakeNameServer(broker))
    queue = MessageQueue("T", "frozen", 0)
    async with producer(namesrv, route_refresh_ms=3_600_000) as sender:
        await sender.send(Message("T", b"x"))
        namesrv.brokers.append(frozen)
        async with asyncio.timeout(60):
            while True:
                try:
                    result = await sender.send(Message("T", b"y"), queue=queue)
                except ConnectFailed:
                    await asyncio.sleep(0.01)
                else:
                    break
    assert result.queue == queue
    assert namesrv.count(RequestCode.GET_ROUTEINFO_BY_TOPIC) <= 3


def test_a_producer_that_was_not_started_says_so_of_its_room():
    """The error denied that it has has_room, and suggested has_room."""
    with pytest.raises(LocalProtocolError, match="does not run"):
        _ = Producer(group="p", namesrv="127.0.0.1:1").has_room
