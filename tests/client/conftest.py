"""Fake servers for tests of the client's shells, and a way to wait for servers and handlers."""

import asyncio
import threading

import pytest

from tests.client.fake_cluster import FakeBroker, FakeNameServer


class Watch:
    """Waits for conditions. Code that may have changed one calls `touch` from any thread."""

    def __init__(self):
        self._loop = asyncio.get_running_loop()
        self._touched = asyncio.Event()

    def touch(self):
        self._loop.call_soon_threadsafe(self._touched.set)

    async def until(self, condition, *, seconds=60):
        async with asyncio.timeout(seconds):
            while not condition():
                self._touched.clear()
                await self._touched.wait()


@pytest.fixture
async def watch():
    """Return a watch that every fake server touches at each request."""
    return Watch()


@pytest.fixture
async def until(watch):
    """Return a function that waits for a condition."""
    return watch.until


@pytest.fixture
async def start(watch):
    """Return a function that starts fake servers; they end with the test."""
    started = []

    async def start_one(server, port=0):
        server.touched = watch.touch
        await server.start(port)
        started.append(server)
        return server

    yield start_one
    for server in started:
        await server.close()


@pytest.fixture
async def broker(start):
    """Return a broker that has topic T with four queues."""
    return await start(FakeBroker("a", T=4))


@pytest.fixture
async def namesrv(start, broker):
    """Return a name server that knows the broker; its address is `.address`."""
    return await start(FakeNameServer(broker))


@pytest.fixture
def cluster():
    """Return a broker and a name server on their own thread, as a blocking program would use them."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()

    def run(work):
        return asyncio.run_coroutine_threadsafe(work, loop).result(60)

    broker = FakeBroker("a", T=4)
    namesrv = FakeNameServer(broker)
    run(broker.start())
    run(namesrv.start())
    yield namesrv, broker
    run(broker.close())
    run(namesrv.close())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()
