"""Handlers that hang, exit, are cancelled or fill up the pool: the member continues."""

import asyncio
import logging
import sys
import threading

import pytest

from libramq.client import ConsumeFrom, PushConsumer
from libramq.clock import SystemClock
from libramq.codes import RequestCode, ResponseCode
from tests.client.fake_cluster import FakeBroker, FakeNameServer

HOUR_MS = 3_600_000

#: Enough time for a handler that returns at once, even if the machine pauses.
ENOUGH_MS = 1_000


def consumer(namesrv, **options):
    options = {"consume_from": ConsumeFrom.FIRST_OFFSET, "persist_ms": 20, "suspend_ms": 10} | options
    return PushConsumer(group="g", namesrv=namesrv.address, **options)


async def test_a_message_does_not_wait_for_a_busy_handler(namesrv, broker, watch):
    """Free threads handle it, although it arrived long after the busy handler began."""
    release = threading.Event()
    begun, done = [], []

    def handle(messages):
        begun.append(messages[0].body)
        watch.touch()
        if messages[0].body == b"slow":
            assert release.wait(60)
        done.append(messages[0].body)
        watch.touch()

    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle)
    try:
        async with reader:
            broker.put("T", 0, b"slow")
            await watch.until(lambda: begun)
            for number in range(3):
                broker.put("T", 1, b"%d" % number)
                await watch.until(lambda number=number: len(done) == number + 1)
            release.set()
    finally:
        release.set()


def plain_function(coroutine_function):
    """Return a plain function that calls a handler, as `lambda messages: handle(messages)` does."""
    return lambda messages: coroutine_function(messages)  # noqa: PLW0108


class Custom(BaseException):
    """An exception that no `except Exception` catches."""


class Unspeakable(Exception):
    """An exception whose conversion to text exits the caller."""

    def __str__(self):
        raise SystemExit


FATAL = [SystemExit, KeyboardInterrupt, GeneratorExit, asyncio.CancelledError, Custom, Unspeakable]


@pytest.mark.parametrize("error", FATAL)
async def test_a_handler_thread_survives_any_exception(namesrv, broker, watch, error):
    """All messages of the only thread are redelivered, and the next ones are handled."""
    handled = []

    def handle(messages):
        if messages[0].body == b"bad":
            raise error
        handled.append(messages[0].body)
        watch.touch()

    for body in (b"bad", b"bad", b"good"):
        broker.put("T", 0, body)
    reader = consumer(namesrv, threads=1)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: handled == [b"good"] and len(broker.sent_back) == 2)
        await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 3)


@pytest.mark.parametrize("error", [SystemExit, asyncio.CancelledError, Custom])
@pytest.mark.parametrize("plain", [False, True])
async def test_the_loop_survives_any_exception_of_a_coroutine(namesrv, broker, watch, error, plain):
    """The loop is the user's, and other tasks run there."""
    handled = []

    async def handle(messages):
        await asyncio.sleep(0)
        if messages[0].body == b"bad":
            raise error
        handled.append(messages[0].body)
        watch.touch()

    for body in (b"bad", b"bad", b"good"):
        broker.put("T", 0, body)
    reader = consumer(namesrv, threads=1)
    reader.subscribe("T", "*", plain_function(handle) if plain else handle)
    async with reader:
        await watch.until(lambda: handled == [b"good"] and len(broker.sent_back) == 2)


async def test_an_unprintable_exception_is_an_ordinary_failure(namesrv, broker, watch, caplog):
    """Even converting it to text raises."""

    class Mute(Exception):
        def __str__(self):
            raise ZeroDivisionError

        __repr__ = __str__

    def handle(messages):
        raise Mute

    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", handle)
    async with reader:
        await watch.until(lambda: broker.sent_back)
    assert "a handler failed" in caplog.text


async def test_exit_in_a_handler_is_logged_with_a_remedy(namesrv, broker, watch, caplog):
    """The program continues, and the log says how to end it."""
    broker.put("T", 0, b"x")
    reader = consumer(namesrv)
    reader.subscribe("T", "*", lambda messages: sys.exit(3))
    async with reader:
        await watch.until(lambda: broker.sent_back)
    assert "to end the program" in caplog.text


@pytest.mark.parametrize("kind", ["plain", "coroutine", "awaitable"])
async def test_a_message_whose_handler_hangs_is_delivered_again_alone(namesrv, broker, watch, kind):
    """It is redelivered after consume_timeout_ms. Later messages are handled despite a single thread."""
    release, done = threading.Event(), []
    cancelled = []

    def hang(messages):
        if messages[0].body == b"stuck":
            release.wait(60)
        done.append(messages[0].body)
        watch.touch()

    async def hang_async(messages):
        if messages[0].body == b"stuck":
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(messages[0].body)
                watch.touch()
                raise
        done.append(messages[0].body)
        watch.touch()

    handler = {"plain": hang, "coroutine": hang_async, "awaitable": plain_function(hang_async)}
    reader = consumer(namesrv, threads=1, consume_timeout_ms=ENOUGH_MS)
    reader.subscribe("T", "*", handler[kind])
    try:
        async with reader:
            broker.put("T", 0, b"stuck")
            for number in range(3):
                broker.put("T", 0, b"%d" % number)
            await watch.until(lambda: len(done) == 3)
            await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 4)
            assert [each["offset"] for each in broker.sent_back] == ["0"]
            if kind == "plain":
                release.set()
                await watch.until(lambda: len(done) == 4)
            else:
                await watch.until(lambda: cancelled)
            broker.put("T", 0, b"after")
            await watch.until(lambda: done[-1] == b"after")
            await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 5)
            assert len(broker.sent_back) == 1  # Its late end counts for nothing.
    finally:
        release.set()


async def test_in_order_a_hanging_message_is_redelivered_before_later_ones(namesrv, broker, watch):
    """Otherwise its queue would wait for ever."""
    release, begun = threading.Event(), []

    def handle(messages):
        begun.append(messages[0].body)
        watch.touch()
        if begun.count(b"stuck") == 1 and messages[0].body == b"stuck":
            release.wait(60)

    broker.put("T", 0, b"stuck")
    broker.put("T", 0, b"next")
    reader = consumer(namesrv, orderly=True, consume_timeout_ms=ENOUGH_MS)
    reader.subscribe("T", "*", handle)
    try:
        async with reader:
            await watch.until(lambda: broker.offsets.get(("g", "T", 0)) == 2)
    finally:
        release.set()
    assert begun == [b"stuck", b"stuck", b"next"]
    assert broker.sent_back == []


async def test_the_number_of_abandoned_handlers_is_limited(namesrv, broker, watch, caplog):
    """Threads cannot be ended. There are at most twice as many as were configured."""
    release, begun = threading.Event(), []

    def handle(messages):
        begun.append(threading.current_thread())
        watch.touch()
        release.wait(60)

    for _ in range(10):
        broker.put("T", 0, b"x")
    reader = consumer(namesrv, threads=2, consume_timeout_ms=100)
    reader.subscribe("T", "*", handle)
    try:
        async with reader:
            await watch.until(lambda: "limit of abandoned handlers" in caplog.text)
            assert len(begun) == 4
            assert len(broker.sent_back) == 2
            heartbeats = broker.count(RequestCode.HEART_BEAT)
            assert heartbeats
            release.set()
            await watch.until(lambda: len(begun) == 10)
    finally:
        release.set()


class AheadClock(SystemClock):
    """The machine's clock plus an offset set by the test."""

    ahead_ms = 0

    def monotonic_ms(self):
        return super().monotonic_ms() + self.ahead_ms


class RefusingBroker(FakeBroker):
    """A broker that refuses the pulls of one queue, once at least, until the test says otherwise."""

    refused = 0
    is_refusing = True

    def pull_message(self, peer, request):
        if request.ext["queueId"] == "1" and request.ext["topic"] == "T" and self.is_refusing:
            self.refused += 1
            self.answer(peer, request, ResponseCode.SYSTEM_ERROR, remark="a disk is away")
        else:
            super().pull_message(peer, request)


async def test_what_fails_when_it_is_due_costs_other_queues_nothing(start, watch):
    """A filter of the program's log raises for a hanging handler, which lost a pull due at the same time."""
    broker = await start(RefusingBroker("a", T=2))
    namesrv = await start(FakeNameServer(broker))
    clock, release, handled, raised = AheadClock(), threading.Event(), [], []

    def handle(messages):
        handled.append(messages[0].body)
        watch.touch()
        if messages[0].body == b"hangs":
            release.wait(60)

    def refuse(record):
        if "does not return" in record.getMessage() and not raised:
            raised.append(record)
            raise RuntimeError("the log is full")
        return True

    deadlines = logging.getLogger("libramq.client.consuming.handling.handler_deadlines")
    deadlines.addFilter(refuse)
    reader = consumer(namesrv, consume_timeout_ms=30_000, clock=clock)
    reader.subscribe("T", "*", handle)
    try:
        async with reader:
            broker.put("T", 0, b"hangs")
            await watch.until(lambda: handled and broker.refused)
            broker.is_refusing = False
            clock.ahead_ms = 40_000  # The next pull is due, then the check of handlers.
            broker.put("T", 1, b"other")
            await watch.until(lambda: b"other" in handled and raised)
            clock.ahead_ms += 5_000
            await watch.until(lambda: broker.sent_back)
            release.set()
    finally:
        release.set()
        deadlines.removeFilter(refuse)
