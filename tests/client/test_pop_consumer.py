"""Tests of push consumers over POP with a real broker in this process."""

import asyncio
import threading
from types import SimpleNamespace

import pytest

import libramq.sync
from libramq import Message, Producer, PushConsumer, Reject, Retry, SimpleConsumer, Sql
from libramq.broker.processor.messages import pop_message
from libramq.cli.servers.ports import free_port
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.pop.pop_consumer_core import Places, PopConsumerCore
from libramq.client.popping.popped import Place
from libramq.client.routing.routes import RouteTable
from libramq.clock import SystemClock
from libramq.codes import ResponseCode as C
from libramq.errors import ConfigError, LocalProtocolError, RequestCodeNotSupported
from libramq.remoting import headers
from libramq.rpc import pop_calls
from libramq.testing import Broker
from tests.client.consuming.examples import route
from tests.client.older_brokers import unserved

TOPIC = "Popped"


@pytest.fixture
async def one():
    async with Broker() as broker:
        yield broker


async def fill(one, *bodies, topic=TOPIC, **fields):
    async with Producer(group="P", namesrv=one.namesrv) as producer:
        await producer.send_batch([Message(topic, body, **fields) for body in bodies])


class Handled:
    """The messages that handlers received, and a way to wait for them."""

    def __init__(self):
        self.messages = []
        self._changed = asyncio.Event()
        self._loop = asyncio.get_running_loop()

    def note(self, messages):
        self.messages += messages
        self._loop.call_soon_threadsafe(self._changed.set)

    def bodies(self):
        return [message.body for message in self.messages]

    async def wait(self, count):
        async with asyncio.timeout(60):
            while len(self.messages) < count:
                self._changed.clear()
                await self._changed.wait()


def popping(one, handler, *, topic=TOPIC, expression="*", **options):
    consumer = PushConsumer(
        group="G", namesrv=one.namesrv, pop=True, **({"consume_from": "earliest"} | options)
    )
    consumer.subscribe(topic, expression, handler)
    return consumer


async def left_over(one, group="G", topic=TOPIC):
    """Return the bodies that the group can still receive at once."""
    async with SimpleConsumer(group=group, namesrv=one.namesrv) as consumer:
        consumer.subscribe(topic)
        return [message.body for message in await consumer.receive(await_ms=0)]


NUMBERS = [b"%d" % number for number in range(100)]


async def test_messages_are_handled_once_and_acknowledged(one):
    """A plain and a coroutine handler of two members share a topic; after a clean stop nothing is left."""
    await fill(one, *NUMBERS)
    handled = Handled()

    async def handle(messages):
        handled.note(messages)

    async with popping(one, handled.note), popping(one, handle):
        await handled.wait(100)
    assert sorted(handled.bodies()) == sorted(NUMBERS)
    assert await left_over(one) == []


async def test_a_master_without_its_slave_delivers_to_members_that_pop():
    """Pops were answered with SLAVE_NOT_AVAILABLE: no handler saw the messages, which became dead letters."""
    handled = Handled()
    async with Broker(
        broker_role="SYNC_MASTER", in_sync_replicas=2, ha_listen_port=free_port("127.0.0.1")
    ) as one:
        await fill(one, *NUMBERS[:20])
        async with popping(one, handled.note):
            await handled.wait(20)
        assert sorted(handled.bodies()) == sorted(NUMBERS[:20])
        assert {message.reconsume_times for message in handled.messages} == {0}
        assert await left_over(one) == []


async def test_a_handler_may_change_what_it_gets(one):
    """Programs take reserved properties out, or replace the body: no acknowledgement was sent afterwards."""
    await fill(one, *[b"%d" % number for number in range(40)])
    handled = Handled()

    def handle(messages):
        handled.note(messages)
        for message in messages:
            message.properties.clear()
            message.queue_offset = 7
            message.body = int(message.body)
            if message.body == 7:
                raise ValueError

    async with popping(one, handle):
        await handled.wait(40)
        await fill(one, *[b"%d" % number for number in range(40, 140)])
        await handled.wait(140)
    assert await left_over(one) == []


async def test_a_blocking_program_pops_too(one):
    await fill(one, b"job")
    handled = Handled()

    def run():
        consumer = libramq.sync.PushConsumer(
            group="G", namesrv=one.namesrv, pop=True, consume_from="earliest"
        )
        consumer.subscribe(TOPIC, "*", handled.note)
        with consumer:
            done.wait()

    done = threading.Event()
    running = asyncio.create_task(asyncio.to_thread(run))
    await handled.wait(1)
    done.set()
    await running
    assert handled.bodies() == [b"job"]


async def test_a_batch_handler_names_the_messages_that_failed(one):
    """They come again after the delay, with one attempt more; the others are done."""
    await fill(one, *NUMBERS[:20])
    handled = Handled()

    def handle(messages):
        handled.note(messages)
        first = [message for message in messages if not message.reconsume_times]
        return Retry(messages=[message for message in first if message.body == b"7"], after=0.2)

    async with popping(one, handle, batch_size=32):
        await handled.wait(21)
    assert sorted(handled.bodies()) == sorted([*NUMBERS[:20], b"7"])
    assert (handled.messages[-1].body, handled.messages[-1].reconsume_times) == (b"7", 1)
    assert handled.messages[-1].topic == TOPIC
    assert await left_over(one) == []


async def test_messages_of_several_queues_and_of_the_retry_topic_are_told_apart(one):
    """They come in one batch with equal offsets; each fails once, and none is taken for another."""
    async with Producer(group="P", namesrv=one.namesrv) as producer:
        for body in NUMBERS[:8]:
            await producer.send(Message(TOPIC, body))
    handled = Handled()

    def handle(messages):
        handled.note(messages)
        return Retry(messages=[each for each in messages if not each.reconsume_times], after=0.1)

    async with popping(one, handle, batch_size=32):
        await handled.wait(8)
        async with Producer(group="P", namesrv=one.namesrv) as producer:
            for body in NUMBERS[8:16]:
                await producer.send(Message(TOPIC, body))
        await handled.wait(32)
    assert sorted(handled.bodies()) == sorted(NUMBERS[:16] * 2)
    assert len({each.queue_id for each in handled.messages}) > 1
    assert await left_over(one) == []


async def test_an_exception_postpones_the_messages_of_a_call(one):
    """Without a delay of the handler's it is 10 s at first, so nothing comes again at once."""
    await fill(one, b"bad", b"good")
    handled = Handled()

    async def handle(messages):
        handled.note(messages)
        if messages[0].body == b"bad":
            raise ValueError

    async with popping(one, handle):
        await handled.wait(2)
    assert await left_over(one) == []


async def test_a_rejected_message_is_a_dead_letter_at_once(one):
    await fill(one, b"bad", b"good")
    handled = Handled()

    def handle(messages):
        handled.note(messages)
        return Reject() if messages[0].body == b"bad" else None

    async with popping(one, handle):
        await handled.wait(2)
        dead = await wait_dead(one, 1)
    assert dead == [b"bad"]
    assert await left_over(one) == []


async def test_a_message_becomes_a_dead_letter_after_the_groups_attempts(one):
    await fill(one, b"bad")
    handled = Handled()

    def handle(messages):
        handled.note(messages)
        return Retry(after=0)

    async with popping(one, handle, max_reconsume_times=2):
        await handled.wait(3)
        assert await wait_dead(one, 1) == [b"bad"]
    assert [message.reconsume_times for message in handled.messages] == [0, 1, 2]


async def wait_dead(one, count):
    dead = Handled()
    consumer = PushConsumer(
        group="reader", namesrv=one.namesrv, consume_from="earliest", route_refresh_ms=100
    )
    consumer.subscribe("%DLQ%G", "*", dead.note)
    async with consumer:
        await dead.wait(count)
    return dead.bodies()


async def visible_again(one, *, after_ms):
    """Wait until a message of another topic that was popped for so long is popped again."""
    await fill(one, b"marker", topic="Markers")
    async with SimpleConsumer(group="markers", namesrv=one.namesrv) as consumer:
        consumer.subscribe("Markers")
        (marker,) = await consumer.receive(invisible_ms=after_ms)
        assert not marker.reconsume_times
        while not (again := await consumer.receive()):
            pass
    assert again[0].reconsume_times == 1


async def test_a_message_stays_invisible_while_its_handler_runs(one, caplog):
    """The handler needs three times its invisible time; another member would get the message meanwhile, or
    the one that waits for the thread. Only a handler that has begun can fail to return.
    """
    await fill(one, b"slow", b"behind")
    handled, running, others = Handled(), Handled(), Handled()
    go_on = asyncio.Event()

    async def handle(messages):
        running.note(messages)
        await go_on.wait()
        handled.note(messages)

    async with popping(one, handle, threads=1, invisible_ms=1_000, consume_timeout_ms=60_000):
        await running.wait(1)
        async with popping(one, others.note):
            await visible_again(one, after_ms=3_000)
            go_on.set()
            await handled.wait(2)
    assert others.messages == []
    assert await left_over(one) == []
    assert "a handler does not return" not in caplog.text


async def test_a_handler_that_does_not_return_gives_its_messages_back(one):
    """Its coroutine is cancelled after consume_timeout_ms, and the messages are popped again after 10 s."""
    await fill(one, b"stuck")
    running, cancelled = Handled(), Handled()

    async def handle(messages):
        running.note(messages)
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.note(messages)

    async with popping(one, handle, consume_timeout_ms=200, invisible_ms=1_000):
        await running.wait(1)
        await cancelled.wait(1)


async def test_what_a_stopped_member_did_not_begin_is_handled_by_others_at_once(one):
    """Its handler blocks on the first message; the others wait behind it and are given back by the stop."""
    await fill(one, *NUMBERS[:10])
    running, others = Handled(), Handled()
    go_on = asyncio.Event()

    async def handle(messages):
        running.note(messages)
        await go_on.wait()

    first = popping(one, handle, threads=1, invisible_ms=300_000)
    await first.start()
    await running.wait(1)
    stopping = asyncio.create_task(first.stop())
    await asyncio.sleep(0)
    go_on.set()
    await stopping
    async with popping(one, others.note):
        await others.wait(10 - len(running.messages))
    assert sorted(running.bodies() + others.bodies()) == NUMBERS[:10]


async def test_a_pause_delivers_nothing_until_it_ends(one):
    handled = Handled()
    async with popping(one, handled.note) as consumer:
        await consumer.pause()
        await fill(one, *NUMBERS[:5])
        assert await consumer.assignment() == []
        with pytest.raises(LocalProtocolError, match="owns no queues"):
            await consumer.pause([])
        await consumer.resume()
        await handled.wait(5)


class Skewed(SystemClock):
    """A client's clock beside the broker's: set otherwise, or ahead after a sleep of the machine."""

    def __init__(self, by_ms=0):
        self.by_ms = by_ms
        self.slept_ms = 0

    def wall_ms(self):
        return super().wall_ms() + self.by_ms

    def monotonic_ms(self):
        return super().monotonic_ms() + self.slept_ms


@pytest.mark.parametrize("says_how_long", [True, False])
@pytest.mark.parametrize("by_ms", [1_500, -60_000])
async def test_a_member_whose_clock_is_set_otherwise_handles_each_message_once(
    one, monkeypatch, by_ms, says_how_long
):
    """With its clock ahead it dropped the result of a held pop as expired; behind, its pops were refused.

    Apache's brokers do not say for how long they have held a pop.
    """
    if not says_how_long:
        monkeypatch.setattr(pop_message, "h", SimpleNamespace(**vars(headers) | {"HELD_MS": "unknown"}))
    handled = Handled()
    async with popping(one, handled.note, invisible_ms=1_000, clock=Skewed(by_ms)):
        await fill(one, b"first")
        await handled.wait(1)
        await asyncio.sleep(1.1)  # The next pop is held for longer than messages are invisible.
        await fill(one, b"second")
        await handled.wait(2)
    assert handled.bodies() == [b"first", b"second"]
    assert {message.reconsume_times for message in handled.messages} == {0}
    assert await left_over(one) == []


async def test_messages_whose_time_seems_over_are_handled_if_the_broker_still_hides_them(one):
    """They are postponed first: dropped, they would be attempts that no handler saw."""
    handled, clock = Handled(), Skewed()
    async with popping(one, handled.note, invisible_ms=10_000, clock=clock):
        await fill(one, b"first")
        await handled.wait(1)
        clock.slept_ms = 60_000
        await fill(one, b"after the sleep")
        await handled.wait(2)
    assert [message.reconsume_times for message in handled.messages] == [0, 0]
    assert await left_over(one) == []


async def test_messages_that_the_broker_has_made_visible_again_are_not_handled(one):
    """Another member has handled them while this one was paused."""
    handled = Handled()
    async with popping(one, handled.note, invisible_ms=1_000) as consumer:
        await fill(one, b"first")
        await handled.wait(1)
        await consumer.pause()
        await fill(one, b"held")  # It ends a held pop of this member.
        async with SimpleConsumer(group="G", namesrv=one.namesrv) as other:
            other.subscribe(TOPIC)
            messages = []
            while not messages:
                messages = await other.receive()
            assert (messages[0].body, messages[0].reconsume_times) == (b"held", 1)
            await other.ack(messages)
        await consumer.resume()
        await fill(one, b"last")
        await handled.wait(2)
    assert handled.bodies() == [b"first", b"last"]


async def test_filters_apply(one):
    """Filters are by tags and by SQL92; messages that only match a tag's hash are not handled."""
    handled, by_sql = Handled(), Handled()
    await fill(one, b"paid", tags="paid")
    await fill(one, b"open", tags="open")
    await fill(one, b"dear", topic="Sums", properties={"sum": "7"})
    await fill(one, b"cheap", topic="Sums", properties={"sum": "1"})
    consumer = popping(one, handled.note, expression="paid")
    consumer.subscribe("Sums", Sql("sum > 5"), by_sql.note)
    async with consumer:
        await handled.wait(1)
        await by_sql.wait(1)
    assert (handled.bodies(), by_sql.bodies()) == ([b"paid"], [b"dear"])


async def test_a_broker_that_takes_one_acknowledgement_a_request_gets_them_so(one, monkeypatch, caplog):
    """As Apache's 5.0 brokers: without an acknowledgement every message would come again."""
    unserved(monkeypatch, "batch_ack")
    acknowledge, acknowledged = pop_calls.ack_message, []

    def ack_message(header):
        acknowledged.append((header.queue_id, header.offset))
        return acknowledge(header)

    monkeypatch.setattr(pop_calls, "ack_message", ack_message)
    await fill(one, *NUMBERS)
    handled = Handled()
    async with popping(one, handled.note, batch_size=32):
        await handled.wait(100)
    assert len(set(acknowledged)) == len(acknowledged) == 100
    assert "could not be settled" not in caplog.text


async def test_a_broker_without_pop_is_reported(one, monkeypatch):
    """Apache's before 5.0 are: once, with the request's name, although they are queried repeatedly."""
    unserved(monkeypatch, "pop_message")
    await fill(one, b"x")
    reported = asyncio.Queue()
    async with popping(one, Handled().note, on_error=reported.put_nowait):
        error = await reported.get()
    assert isinstance(error, RequestCodeNotSupported)
    assert "answered GET_ROUTEINFO_BY_TOPIC with 3" in str(error)
    assert reported.empty()


def test_a_place_that_left_the_routes_is_not_popped_again():
    """A pop is nearly always in flight: such a place stayed, and was popped again after each answer."""
    routes = RouteTable()
    places = Places(ConsumerSettings(group="G", client_id="c"), ("T", "U"), routes)
    routes.update("T", route(brokers=("a", "b")))
    routes.update("U", route(brokers=("b",)))
    places.routes_changed()
    popped = [place for place, _ in places.to_pop(0)]
    assert popped == [Place("T", "a"), Place("T", "b"), Place("U", "b")]
    routes.update("T", route(brokers=("a",)))
    places.routes_changed()
    for place in popped:
        places.popped(place, 0, 20_000, found=False)
    assert [place for place, _ in places.to_pop(20_000)] == [Place("T", "a"), Place("U", "b")]


def test_of_two_brokers_the_one_without_pop_is_reported_once():
    """The other one answers in between. It is reported again once it has had POP."""
    core = PopConsumerCore(ConsumerSettings(group="G", client_id="c"), {}, SystemClock(), lambda *_: None)
    lacks = RequestCodeNotSupported(C.REQUEST_CODE_NOT_SUPPORTED)

    def answered(topic, address, outcome):
        core.pop_answered(topic, address, outcome)
        effects = core.kernel.effects.pending.copy()
        core.kernel.effects.pending.clear()
        return effects

    reports = [answered(topic, "a:1", lacks) for topic in ("T", "T", "U")]
    assert answered("T", "b:1", None) == []
    reports += [answered("T", "a:1", outcome) for outcome in (lacks, None, lacks)]
    assert [len(each) for each in reports] == [1, 0, 0, 0, 0, 1]


@pytest.mark.parametrize(
    "options",
    [
        {"orderly": True},
        {"broadcasting": True},
        {"instance_id": "till"},
        {"consume_from": "timestamp"},
        {"strategy": "AVG"},
        {"on_revoked": print},
        {"invisible_ms": 999},
        {"invisible_ms": 300_001},
        {"pop": "yes"},
    ],
)
def test_options_of_queues_are_refused(options):
    with pytest.raises(ConfigError):
        PushConsumer(**({"group": "G", "namesrv": "localhost:1", "pop": True} | options))
