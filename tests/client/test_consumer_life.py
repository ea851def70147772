"""Tests of a push consumer's life: starts and stops that overlap, and event loops that end before it."""

import asyncio
import random
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from libramq.client import ConsumeFrom, Consumer, PushConsumer
from libramq.client.consuming.consumer_network import ConsumerNetwork
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.known_brokers import KnownBrokers
from libramq.client.network_thread import THREAD_NAME
from libramq.codes import RequestCode, ResponseCode
from libramq.errors import (
    ConnectFailed,
    InvalidState,
    LocalProtocolError,
    LoopClosed,
    NameServerUnavailable,
    NoPermission,
)
from libramq.filter.tag import parse_tag_filter
from libramq.message.queue import MessageQueue
from tests.fakes import ManualClock, ManualTimers


def consumer(namesrv, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20} | options
    return PushConsumer(group="g", namesrv=namesrv.address, **options)


def network_threads():
    return [thread for thread in threading.enumerate() if thread.name == THREAD_NAME]


async def test_one_of_two_concurrent_starts_is_refused(namesrv, broker, watch):
    """Otherwise a member would be left that no call can stop."""
    reader = consumer(namesrv)
    reader.subscribe("T", "*", print)
    outcomes = await asyncio.gather(reader.start(), reader.start(), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), InvalidState]
    assert "is being started" in str(outcomes[1])
    with pytest.raises(LocalProtocolError, match="runs already"):
        await reader.start()
    await reader.stop()
    await watch.until(lambda: not broker.members["g"])
    assert network_threads() == []


async def test_a_start_that_gets_no_network_thread_may_be_repeated(namesrv, broker, monkeypatch):
    """The consumer had been starting ever after, and its stop had failed with an AttributeError."""
    reader = consumer(namesrv)
    reader.subscribe("T", "*", print)
    gevent = SimpleNamespace(is_module_patched=lambda name: name == "threading")
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "gevent.monkey", gevent)
        for _ in range(2):
            with pytest.raises(LocalProtocolError, match="gevent has replaced"):
                await reader.start()
        await reader.stop()
    async with reader:
        pass
    assert network_threads() == []


def test_a_start_that_fails_leaves_no_timer_behind():
    """The timer of a consumer paused meanwhile fired for ever, on the shared thread."""
    timers, dialed, outcomes = ManualTimers(), [], []
    parts = ("deliver", "give_up", "notify", "begin_trouble", "end_trouble")
    network = ConsumerNetwork(
        ConsumerSettings(group="g", client_id="me"),
        {"T": parse_tag_filter("*")},
        name_server_addresses=["ns:1"],
        dialer=SimpleNamespace(dial=lambda address, connection: dialed.append(connection)),
        timers=timers,
        clock=ManualClock(),
        randomness=random.Random(1),
        run=SimpleNamespace(**dict.fromkeys(parts, lambda _: None)),
    )
    network.start(outcomes.append)
    network.pause(None)
    dialed[0].refused(ConnectFailed("nobody is there"))
    assert [type(outcome) for outcome in outcomes] == [NameServerUnavailable]
    assert timers.due == []


@pytest.fixture
def failures(monkeypatch):
    """Simulate a bug in processing new routes: the first time fails."""
    meet, failures = KnownBrokers.meet, []

    def fail_once(self):
        if not failures:
            failures.append(self)
            raise ZeroDivisionError
        meet(self)

    monkeypatch.setattr(KnownBrokers, "meet", fail_once)
    return failures


async def test_a_start_ends_even_if_the_first_routes_cannot_be_processed(namesrv, broker, watch, failures):
    """It had waited for ever; the next heartbeat makes up for the failure."""
    reader = consumer(namesrv, heartbeat_ms=1000)
    reader.subscribe("T", "*", print)
    async with asyncio.timeout(60), reader:
        await watch.until(lambda: broker.members["g"])
    assert failures


async def test_an_assignment_ends_even_if_its_routes_cannot_be_processed(namesrv, broker, failures):
    """As a start: the name server's connection was closed, and the call waited for ever."""
    broker.put("T", 0, b"x")
    reader = Consumer(group="g", namesrv=namesrv.address, consume_from="earliest", heartbeat_ms=1000)
    async with asyncio.timeout(60), reader:
        await reader.assign([MessageQueue("T", "a", 0)])
        assert (await reader.getone()).body == b"x"
    assert failures


async def test_a_stop_during_the_start_waits_for_it(namesrv, broker, watch):
    """It leaves no member behind."""
    reader = consumer(namesrv)
    reader.subscribe("T", "*", print)
    starting = asyncio.create_task(reader.start())
    await asyncio.sleep(0)
    await reader.stop()
    await starting
    assert network_threads() == []
    await watch.until(lambda: not broker.members["g"])


async def test_a_start_during_the_stop_is_refused(namesrv, watch):
    """The error says so, and the consumer can be started again afterwards."""
    reader = consumer(namesrv)
    reader.subscribe("T", "*", print)
    await reader.start()
    stopping = asyncio.create_task(reader.stop())
    await asyncio.sleep(0)
    with pytest.raises(LocalProtocolError, match="is being stopped"):
        await reader.start()
    await asyncio.gather(stopping, reader.stop())
    await reader.start()
    await reader.stop()
    await reader.stop()
    assert network_threads() == []


async def test_a_cancelled_start_leaves_no_member(namesrv, broker, watch):
    """The start may be cancelled at any point."""
    for turns in range(0, 60, 3):
        reader = consumer(namesrv)
        reader.subscribe("T", "*", print)
        starting = asyncio.create_task(reader.start())
        for _ in range(turns):
            await asyncio.sleep(0)
        starting.cancel()
        await asyncio.wait([starting])
        await reader.stop()
        assert network_threads() == []
    await watch.until(lambda: not broker.members["g"])


@pytest.mark.parametrize("times", [1, 2, 3, 4])
async def test_however_often_a_start_is_cancelled_the_consumer_can_be_stopped_and_started(
    namesrv, broker, watch, times
):
    """No part of it stays half stopped."""
    for turns in range(0, 40, 3):
        reader = consumer(namesrv)
        reader.subscribe("T", "*", print)
        starting = asyncio.create_task(reader.start())
        await cancel(starting, times, turns=turns)
        async with asyncio.timeout(60):
            await reader.stop()
            await reader.start()
            await reader.stop()
        assert network_threads() == []
    await watch.until(lambda: not broker.members["g"])


@pytest.mark.parametrize("times", [1, 2, 3, 4])
async def test_however_often_a_stop_is_cancelled_the_consumer_ends(namesrv, broker, watch, times):
    """From then on it does not wait for a handler that hangs."""
    gate, began = threading.Event(), asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(messages):
        loop.call_soon_threadsafe(began.set)
        gate.wait()

    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", hang)
    await reader.start()
    await began.wait()
    stopping = asyncio.create_task(reader.stop(timeout_ms=600_000))
    await cancel(stopping, times, turns=3)
    async with asyncio.timeout(60):
        await reader.wait_closed()
        await reader.stop()
    assert network_threads() == []
    gate.set()


async def cancel(task, times, *, turns):
    """Cancel a task this many times, a few turns of the loop apart."""
    for _ in range(times):
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.sleep(0)
    await asyncio.wait([task])


@pytest.mark.parametrize("kind", ["plain", "coroutine", "awaitable"])
async def test_stop_in_a_handler_is_refused(namesrv, broker, watch, kind):
    """It would wait for itself. Another task may stop the consumer meanwhile."""
    errors = []

    async def handle(messages):
        with pytest.raises(LocalProtocolError) as caught:
            await reader.stop()
        errors.append(str(caught.value))
        watch.touch()

    def handle_plain(messages):
        asyncio.run(handle(messages))

    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    handlers = {
        "plain": handle_plain,
        "coroutine": handle,
        "awaitable": lambda messages: handle(messages),  # noqa: PLW0108
    }
    reader.subscribe("T", "*", handlers[kind])
    async with reader:
        await watch.until(lambda: errors)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 1)
    assert "would wait for the handler itself" in errors[0]


async def test_a_handler_can_stop_the_consumer_through_a_task(namesrv, broker, watch):
    """The task waits for the handler."""
    stopping = []

    async def handle(messages):
        stopping.append(asyncio.create_task(reader.stop()))
        watch.touch()

    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle)
    await reader.start()
    await watch.until(lambda: stopping)
    await stopping[0]
    assert broker.offsets["g", "T", 0] == 1


class Handled:
    """A handler that counts messages. Any thread can wait for a count."""

    def __init__(self):
        self.count = 0
        self._more = threading.Condition()

    def __call__(self, messages):
        with self._more:
            self.count += len(messages)
            self._more.notify_all()

    async def as_coroutine(self, messages):
        self(messages)

    async def reach(self, count):
        def wait():
            with self._more:
                assert self._more.wait_for(lambda: self.count >= count, 60)

        await asyncio.to_thread(wait)


@pytest.mark.parametrize("kind", ["plain", "coroutine", "awaitable"])
def test_a_loop_that_ends_without_stop_ends_the_consumer(cluster, caplog, kind):
    """It logs that, leaves its group and uses no processor. Unhandled messages are not committed."""
    namesrv, broker = cluster
    handled = Handled()
    handlers = {
        "plain": handled,
        "coroutine": handled.as_coroutine,
        "awaitable": lambda messages: handled.as_coroutine(messages),  # noqa: PLW0108
    }
    reader = consumer(namesrv)
    reader.subscribe("T", "*", handlers[kind])

    async def program():
        broker.put("T", 0, b"1")
        await reader.start()
        await handled.reach(1)

    asyncio.run(program())
    broker.put("T", 0, b"2")
    broker.put("T", 0, b"3")
    for thread in network_threads():
        thread.join(60)
    assert network_threads() == []
    assert broker.count(RequestCode.UNREGISTER_CLIENT) == 1
    assert "was closed while it ran" in caplog.text
    if kind != "plain":
        assert handled.count == 1
        assert broker.offsets["g", "T", 0] == 1
    assert broker.sent_back == []

    async def again():
        await reader.stop()
        assert await reader.assignment() == []
        with pytest.raises(LocalProtocolError, match="does not run"):
            await reader.pause()
        await reader.start()
        await handled.reach(3)
        await reader.stop()

    asyncio.run(again())


async def test_a_denied_member_reports_it_and_resumes_when_permitted(namesrv, broker, watch):
    """Its program gets the error from `on_error` and from `wait_closed`; a log line alone is not enough."""
    errors = []

    async def on_error(error):
        errors.append(error)
        watch.touch()

    broker.refuse(RequestCode.HEART_BEAT, ResponseCode.NO_PERMISSION, times=2)
    broker.put("T", 0, b"x")
    handled = []

    def handle(messages):
        handled.extend(messages)
        watch.touch()

    reader = consumer(namesrv, on_error=on_error)
    reader.subscribe("T", "*", handle)
    with pytest.raises(LocalProtocolError, match="not started"):
        await reader.wait_closed()
    async with reader:
        with pytest.raises(NoPermission):
            await reader.wait_closed()
        await watch.until(lambda: errors)
        await watch.until(lambda: handled)
        waiting = asyncio.create_task(reader.wait_closed())
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting
    assert [type(error) for error in errors] == [NoPermission]


async def test_an_error_hook_that_fails_does_no_harm(namesrv, broker, watch):
    """The failure is logged, and the hook is called again for the next error."""
    called = []

    def on_error(error):
        called.append(error)
        watch.touch()
        raise SystemExit(1)

    broker.refuse(RequestCode.HEART_BEAT, ResponseCode.NO_PERMISSION)
    broker.put("T", 0, b"x")
    handled = []

    def handle(messages):
        handled.extend(messages)
        watch.touch()

    reader = consumer(namesrv, on_error=on_error)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: called and handled)


def test_waiting_callers_get_an_error_when_the_loop_closes(cluster):
    """They get it on whichever loop they wait."""
    namesrv, _ = cluster
    reader = consumer(namesrv)
    reader.subscribe("T", "*", print)
    asyncio.run(reader.start())

    async def wait():
        with pytest.raises(LoopClosed, match="await stop"):
            await reader.wait_closed()

    asyncio.run(wait())


async def test_a_consumer_stops_while_handlers_fill_the_loops_executor(namesrv, broker, watch):
    """They await `asyncio.to_thread`; the stop had waited for a thread of the same."""
    broker.put("T", 0, b"x")
    gate, entered = threading.Event(), []

    def work():
        entered.append(True)
        watch.touch()
        gate.wait(60)

    async def handle(messages):
        await asyncio.to_thread(work)

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle)
    try:
        async with asyncio.timeout(30):
            await reader.start()
            await watch.until(lambda: entered)
            await reader.stop(timeout_ms=50)
    finally:
        gate.set()
