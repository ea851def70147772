"""Which messages of a producer share a batch, and what happens to the batches."""

import asyncio
import gc
import random
import time

import pytest

from libramq import sync
from libramq.client import Producer
from libramq.client.producing.accumulator import Accumulator
from libramq.clock import SystemClock
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import ConfigError, ConnectionLost, InvalidMessage, MessageIllegal, RequestTimeout
from libramq.message import Message, MessageQueue
from libramq.message import properties as names
from libramq.message.record import decode_records
from tests.client.fake_cluster import SENDS, FakeBroker, FakeNameServer


class Fastidious(FakeBroker):
    """A broker that refuses requests with a bad message in them, and bodies over a size."""

    body_bytes_max = 1 << 20

    def send_message_v2(self, peer, request):
        if b"bad" in request.body or len(request.body) > self.body_bytes_max:
            self.answer(peer, request, ResponseCode.MESSAGE_ILLEGAL, remark="the message is illegal")
        else:
            super().send_message_v2(peer, request)

    send_batch_message = send_message_v2


@pytest.fixture
async def fastidious(start):
    broker = await start(Fastidious("a", T=4))
    return broker, await start(FakeNameServer(broker))


class TickingClock(SystemClock):
    """A clock on which a millisecond passes at every third reading."""

    def __init__(self):
        self.readings = 0

    def monotonic_ms(self):
        self.readings += 1
        return super().monotonic_ms() + self.readings // 3


def producer(namesrv, **options):
    return Producer(group="p", namesrv=namesrv.address, randomness=random.Random(1), **options)


def bodies(broker):
    return [
        message.body
        for _, records in sorted(broker.queues.items())
        for message in decode_records(b"".join(records))
    ]


async def test_sends_awaited_together_travel_together(namesrv, broker):
    """Each gets its own place, and the next batch goes to the next queue."""
    async with producer(namesrv, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        for _ in range(2):
            results = await asyncio.gather(*[sender.send(Message("T", b"%d" % n)) for n in range(10)])
            assert len({result.queue for result in results}) == 1
            assert [result.queue_offset for result in results] == list(range(10))
    assert [request.code for request in broker.of(*SENDS)] == [RequestCode.SEND_BATCH_MESSAGE] * 2
    assert len({request.ext["e"] for request in broker.of(*SENDS)}) == 2
    assert len(set(bodies(broker))) == 10


async def test_a_tick_of_the_clock_does_not_split_a_batch(namesrv, broker):
    """The remaining timeouts differ by the time that passed between two sends."""
    async with producer(namesrv, clock=TickingClock(), send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        await asyncio.gather(*[sender.send(Message("T", b"%d" % n)) for n in range(10)])
    assert [request.code for request in broker.of(*SENDS)] == [RequestCode.SEND_BATCH_MESSAGE]


async def test_sends_with_other_timeouts_travel_apart(namesrv, broker):
    """A message must not fail because another one has little time left."""
    async with producer(namesrv, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        await asyncio.gather(
            *[sender.send(Message("T", b"%d" % n), timeout_ms=30_000 * (1 + n % 2)) for n in range(10)]
        )
    assert [request.code for request in broker.of(*SENDS)] == [RequestCode.SEND_BATCH_MESSAGE] * 2


async def test_a_send_by_itself_is_no_batch(namesrv, broker):
    """It is sent as other clients send it; so are those with a queue, a delay, a priority or a large body."""
    queue = MessageQueue("T", "a", 1)
    async with producer(namesrv, compress_over_bytes=100) as sender:
        await sender.send(Message("T", b"alone"))
        await asyncio.gather(
            sender.send(Message("T", b"x"), queue=queue),
            sender.send(Message("T", b"y"), selector=lambda queues, _: queues[0]),
            sender.send(Message("T", b"z", delay_level=1)),
            sender.send(Message("T", b"p", properties={"_SYS_MSG_PRIORITY_": "1"})),
            sender.send(Message("T", b"l", properties={"INNER_MULTI_DISPATCH": "%LMQ%a"})),
            sender.send(Message("T", bytes(1000))),
            sender.send(Message("T", b"the only one of its kind")),
        )
    assert [request.code for request in broker.of(*SENDS)] == [RequestCode.SEND_MESSAGE_V2] * 8


async def test_a_refused_message_fails_alone(fastidious):
    """Its neighbours are sent again in halves, until it is alone."""
    broker, namesrv = fastidious
    messages = [Message("T", b"%d" % n) for n in range(20)]
    messages[7] = Message("T", b"bad")
    async with producer(namesrv) as sender:
        await sender.publish_queues("T")
        outcomes = await asyncio.gather(*map(sender.send, messages), return_exceptions=True)
        assert [n for n, each in enumerate(outcomes) if isinstance(each, MessageIllegal)] == [7]
        heard = {}
        for number, message in enumerate(messages):
            sender.send_nowait(message, lambda outcome, number=number: heard.update({number: outcome}))
        await sender.flush()
    assert [n for n in range(20) if isinstance(heard[n], MessageIllegal)] == [7]
    assert len(bodies(broker)) == 38
    assert b"bad" not in bodies(broker)


async def test_a_message_that_cannot_be_encoded_fails_alone(namesrv, broker):
    """Others of its turn, of any topic, are sent: one that was changed after `send` had stopped them all."""
    broker.topics["U"] = 4
    properties = {"p": "x"}
    async with producer(namesrv) as sender:
        for topic in ("T", "U"):
            await sender.publish_queues(topic)
        sends = [
            asyncio.create_task(sender.send(Message("T", b"x", properties=properties))),
            asyncio.create_task(sender.send(Message("T", b"T"))),
            asyncio.create_task(sender.send(Message("U", b"U"))),
        ]
        asyncio.get_running_loop().call_soon(properties.update, {"p": "x" * 40_000})
        outcomes = await asyncio.gather(*sends, return_exceptions=True)
    assert isinstance(outcomes[0], InvalidMessage)
    assert [each.queue.topic for each in outcomes[1:]] == ["T", "U"]


async def test_a_batch_too_large_for_the_broker_is_halved_in_order(fastidious):
    """That works for any maxMessageSize, and a queue's messages keep their order."""
    broker, namesrv = fastidious
    broker.body_bytes_max = 1_000
    async with producer(namesrv) as sender:
        for number in range(100):
            sender.send_nowait(Message("T", b"%d" % number), queue=MessageQueue("T", "a", 2))
        await sender.flush()
    assert [int(body) for body in bodies(broker)] == list(range(100))


async def test_batches_grow_while_answers_are_awaited(namesrv, broker, until):
    """Five requests of a topic may be unanswered; later messages wait for the next answer."""
    heard = []
    async with producer(namesrv, linger_ms=0, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=5)
        for number in range(1, 6):
            sender.send_nowait(Message("T", b"unanswered"))
            await until(lambda number=number: broker.count(*SENDS) == number)
        for _ in range(50):
            sender.send_nowait(Message("T", b"x"), heard.append)
            await asyncio.sleep(0)
        broker.cut(RequestCode.SEND_MESSAGE_V2)
        await sender.send(Message("T", b"alone"))  # The connection ends, and all six are sent again.
        await sender.flush()
    assert len(heard) == 50
    assert broker.count(RequestCode.SEND_BATCH_MESSAGE) == 5 + 5 + 1
    assert len(bodies(broker)) == 56


async def test_queues_that_were_chosen_do_not_wait_for_each_other(namesrv, broker, until):
    """Only a batch for a queue with an unanswered request is held back."""
    async with producer(namesrv, linger_ms=0, send_timeout_ms=60_000) as sender:
        queues = await sender.publish_queues("T")
        broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=4)
        for number in (0, 0, 1, 1, 2, 3):
            sender.send_nowait(Message("T", b"x"), queue=queues[number])
            await until(lambda number=number: broker.count(*SENDS) == number + 1)
        broker.cut(RequestCode.SEND_MESSAGE_V2)
        await sender.send(Message("T", b"alone"))  # The connection ends, and all are sent again.
        await sender.flush()
    assert len(bodies(broker)) == 7


async def test_what_follows_a_refused_batch_is_stored_behind_what_is_sent_again(fastidious, monkeypatch):
    """Messages for a chosen queue, for example of one group, keep their order despite refusals."""
    monkeypatch.setattr(Accumulator.__init__, "__defaults__", (1 << 20, 4))
    broker, namesrv = fastidious
    failed = []
    async with producer(namesrv, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        for number in range(40):
            body = b"bad" if number == 1 else b"%d" % number
            sender.send_nowait(Message("T", body), failed.append, queue=MessageQueue("T", "a", 2))
        await sender.flush()
    assert [int(body) for body in bodies(broker)] == [0, *range(2, 40)]
    assert [isinstance(each, MessageIllegal) for each in failed] == [number == 1 for number in range(40)]


@pytest.mark.parametrize("is_chosen", [True, False])
async def test_hundreds_of_batches_that_fail_at_once_are_all_reported(
    namesrv, broker, until, monkeypatch, is_chosen
):
    """A stop in a hurry sends nothing more; each callback is called once, and nothing is left."""
    monkeypatch.setattr(Accumulator.__init__, "__defaults__", (1 << 20, 1))
    broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=2_000)
    failed = []
    sender = producer(namesrv, send_timeout_ms=60_000)
    await sender.start()
    await sender.publish_queues("T")
    monkeypatch.setattr("libramq.client.producing.send_pipeline.IN_FLIGHT_BYTES_MAX", 1)
    for _ in range(600):
        sender.send_nowait(
            Message("T", b"x"), failed.append, queue=MessageQueue("T", "a", 2) if is_chosen else None
        )
    await until(lambda: broker.count(*SENDS) == 1)
    stopping = asyncio.create_task(sender.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert len(failed) == 600
    assert {type(each) for each in failed} == {ConnectionLost}


async def test_messages_for_thousands_of_chosen_queues_leave_while_others_have_the_loop(namesrv, broker):
    """A third of the work was one turn that scanned all waiting messages for each one: 0.46 s."""
    count, longest_s, all_s = 4_000, 0.0, 0.0
    for code in SENDS:
        broker.silence(code, times=count)
    sender = producer(namesrv, send_timeout_ms=60_000)
    await sender.start()
    await sender.publish_queues("T")
    for number in range(count):
        sender.send_nowait(Message("T", b"x"), queue=MessageQueue("T", "a", number))
    gc.disable()  # A collection takes a tenth of a second in a process that has run many tests.
    try:
        while broker.count(*SENDS) < count:
            began = time.thread_time()
            await asyncio.sleep(0)
            took_s = time.thread_time() - began
            longest_s, all_s = max(longest_s, took_s), all_s + took_s
    finally:
        gc.enable()
    stopping = asyncio.create_task(sender.stop())
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert longest_s < all_s / 4


async def test_batches_that_wait_behind_one_without_an_answer_time_out_with_it(namesrv, broker, monkeypatch):
    """Otherwise each in turn takes the whole timeout, and a stop takes that times the number of batches."""
    monkeypatch.setattr(Accumulator.__init__, "__defaults__", (1 << 20, 1))
    broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=100)
    failed = []
    async with producer(namesrv, send_timeout_ms=100) as sender:
        await sender.publish_queues("T")
        for _ in range(50):
            sender.send_nowait(Message("T", b"x"), failed.append, queue=MessageQueue("T", "a", 2))
        await sender.flush()
        assert sender._network.pipeline.buffered_bytes == 0
    assert len(failed) == 50
    assert {type(each) for each in failed} == {RequestTimeout}
    assert broker.count(*SENDS) <= 3  # Since the flush, hardly any time is left for others than the first.


async def test_callbacks_that_send_again_at_once_do_not_hold_the_loop(namesrv, broker, until):
    """Each fails at once, as no broker has that name, and is sent again: others have the loop in between."""
    nowhere = MessageQueue("T", "no-such-broker", 0)
    failed = 0
    is_persistent = True

    def again(outcome):
        nonlocal failed
        failed += 1
        if is_persistent and failed < 200_000:  # Otherwise a failing test would never end.
            sender.send_nowait(Message("T", b"y"), again, queue=nowhere)

    async with producer(namesrv, linger_ms=0) as sender:
        await sender.publish_queues("T")
        for _ in range(1_001):
            sender.send_nowait(Message("T", b"x"), again, queue=nowhere)
        await until(lambda: failed)
        assert failed < 200_000
        is_persistent = False
        await sender.flush()
        assert sender._network.pipeline.buffered_bytes == 0


CHOSEN = MessageQueue("T", "a", 2)
#: Messages that no batch accepts: one that brokers answer before storing it, one for a light queue.
ALONE = [{names.WAIT: "false"}, {names.INNER_MULTI_DISPATCH: "%LMQ%x"}]


@pytest.mark.parametrize("alone", ALONE, ids=["not waited for", "light queue"])
async def test_what_travels_alone_to_a_chosen_queue_passes_nobody(fastidious, alone):
    """This holds even if the batch before it is refused and resent in parts."""
    broker, namesrv = fastidious
    outcomes = []
    async with producer(namesrv, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")
        for number in range(40):
            body = b"bad" if number == 1 else b"%d" % number
            properties = alone if number % 10 == 5 else {}
            sender.send_nowait(Message("T", body, properties=properties), outcomes.append, queue=CHOSEN)
        await sender.flush()
    assert [int(body) for body in bodies(broker)] == [0, *range(2, 40)]
    assert [isinstance(each, MessageIllegal) for each in outcomes] == [number == 1 for number in range(40)]


async def test_awaited_sends_to_a_chosen_queue_pass_nothing_that_was_queued(fastidious):
    broker, namesrv = fastidious
    async with producer(namesrv, send_timeout_ms=60_000) as sender:
        await sender.publish_queues("T")

        def queue_two(number, body=b""):
            for each in (number, number + 1):
                message = Message("T", body or b"%d" % each)
                sender.send_nowait(message, lambda outcome: None, queue=CHOSEN)

        queue_two(0)
        await sender.send(Message("T", b"2"), queue=CHOSEN)
        queue_two(3)
        result = await sender.send(Message("T", b"5"), selector=lambda queues, message: queues[2])
        queue_two(6)
        results = await sender.send_batch([Message("T", b"8"), Message("T", b"9")], queue=CHOSEN)
        queue_two(10)
        await sender.send_oneway(Message("T", b"12"), queue=CHOSEN)
        queue_two(0, b"bad")
        with pytest.raises(MessageIllegal):
            await sender.send(Message("T", b"bad"), queue=CHOSEN)
        await sender.send(Message("T", b"13"), queue=CHOSEN)
    assert [int(body) for body in bodies(broker)] == list(range(14))
    assert [each.queue_offset for each in (result, *results)] == [5, 8, 9]


async def test_an_awaited_send_waits_behind_others_no_longer_than_its_time(namesrv, broker):
    broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=100)
    async with producer(namesrv, send_timeout_ms=2_000) as sender:
        await sender.publish_queues("T")
        sender.send_nowait(Message("T", b"unanswered"), lambda outcome: None, queue=CHOSEN)
        with pytest.raises(RequestTimeout, match="before it"):
            await sender.send(Message("T", b"x"), queue=CHOSEN, timeout_ms=20)
        await sender.send(Message("T", b"other"), queue=MessageQueue("T", "a", 1))
    assert bodies(broker) == [b"other"]


async def test_awaited_sends_leave_together_when_what_was_queued_is_answered(start):
    """One after the other, a broker that is 10 ms away would get a hundred a second, and the rest fail."""

    class Patient(FakeBroker):
        """Answers single messages when it has four of them."""

        def __init__(self):
            super().__init__("a", T=4)
            self.waiting = []

        def send_message_v2(self, peer, request):
            self.waiting.append((peer, request))
            if len(self.waiting) == 4:
                for each in self.waiting:
                    super().send_message_v2(*each)

    broker = await start(Patient())
    namesrv = await start(FakeNameServer(broker))
    async with producer(namesrv, send_timeout_ms=5_000) as sender:
        await sender.publish_queues("T")
        sender.send_nowait(Message("T", b"0"), lambda outcome: None, queue=CHOSEN)
        await asyncio.gather(*[sender.send(Message("T", b"%d" % n), queue=CHOSEN) for n in range(1, 5)])
    assert [int(body) for body in bodies(broker)] == list(range(5))


async def test_an_awaited_send_has_its_own_time_behind_one_without_an_answer(namesrv, broker):
    broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=100)
    queued = []
    async with producer(namesrv, send_timeout_ms=100) as sender:
        await sender.publish_queues("T")
        for number in range(2):  # The second one fails with the first, behind which it has waited.
            message = Message("T", b"%d" % number, properties={names.WAIT: "false"} if number else {})
            sender.send_nowait(message, queued.append, queue=CHOSEN)
        await sender.send(Message("T", b"awaited"), queue=CHOSEN, timeout_ms=60_000)
    assert [type(outcome) for outcome in queued] == [RequestTimeout] * 2
    assert bodies(broker) == [b"awaited"]


async def test_a_delayed_message_passes_others_of_its_queue(namesrv, broker):
    """It is stored elsewhere until its time has come."""
    broker.silence(RequestCode.SEND_BATCH_MESSAGE, times=100)
    async with producer(namesrv, send_timeout_ms=2_000) as sender:
        await sender.publish_queues("T")
        sender.send_nowait(Message("T", b"unanswered"), lambda outcome: None, queue=CHOSEN)
        await sender.send(Message("T", b"first", delay_level=1), queue=CHOSEN)
        arrived = asyncio.get_running_loop().create_future()
        sender.send_nowait(Message("T", b"second", delay_level=1), arrived.set_result, queue=CHOSEN)
        await arrived
        assert bodies(broker) == [b"first", b"second"]


async def test_a_priority_and_a_chosen_queue_exclude_each_other(namesrv, broker):
    """The broker chooses the queue by the priority."""
    message = Message("T", b"x", properties={names.PRIORITY: "3"})
    choices = [{"queue": CHOSEN}, {"selector": lambda queues, message: queues[2]}]
    async with producer(namesrv) as sender:
        await sender.publish_queues("T")
        for chosen in choices:
            with pytest.raises(ConfigError, match="priority"):
                await sender.send(message, **chosen)
            with pytest.raises(ConfigError, match="priority"):
                await sender.send_oneway(message, **chosen)
            with pytest.raises(ConfigError, match="priority"):
                sender.send_nowait(message, **chosen)
        await sender.send(message)
    assert bodies(broker) == [b"x"]


def test_blocking_sends_to_a_chosen_queue_pass_nothing_that_was_queued(cluster):
    """More messages are queued than the producer's thread accepts at once."""
    namesrv, broker = cluster
    with sync.Producer(namesrv=namesrv.address, send_timeout_ms=60_000) as sender:
        for number in range(2_500):
            sender.send_nowait(Message("T", b"%d" % number), queue=CHOSEN)
        sender.send(Message("T", b"2500"), queue=CHOSEN)
        sender.send_nowait(Message("T", b"2501"), queue=CHOSEN)
        sender.send_batch([Message("T", b"2502")], queue=CHOSEN)
        with pytest.raises(ConfigError, match="priority"):
            sender.send(Message("T", b"x", properties={names.PRIORITY: "3"}), queue=CHOSEN)
    assert [int(body) for body in bodies(broker)] == list(range(2_503))


async def test_a_flush_to_a_chosen_queue_of_a_silent_broker_takes_one_timeout(namesrv, broker, until):
    """Batches waiting for an unanswered one were sent afterwards, each with a full timeout."""
    for code in SENDS:
        broker.silence(code, 10)
    queue, ended = MessageQueue("T", "a", 0), []
    async with Producer(namesrv=namesrv.address, send_timeout_ms=1_500, retries=0) as sender:
        began = time.monotonic()

        def note(outcome):
            assert isinstance(outcome, RequestTimeout)
            ended.append(time.monotonic() - began)

        sender.send_nowait(Message("T", b"first"), note, queue=queue)
        await until(lambda: broker.count(*SENDS))
        sender.send_nowait(Message("T", b"second"), note, queue=queue)
        await sender.flush()
    first, second = ended
    assert second < 1.5 * first
