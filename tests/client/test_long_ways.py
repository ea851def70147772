"""A member of a coordinated group that is far from its broker, or cut off from it."""

import asyncio
import contextlib

from libramq import Message, Producer, PushConsumer
from libramq.client import Admin
from libramq.errors import RequestTimeout
from libramq.testing import Broker
from tests.interop.ports import free_broker_port

#: The broker's listening address, and the address it announces, where the long way begins.
NEAR, FAR = "127.0.0.1", "127.0.0.2"
SESSION_MS = 2_000
#: More than half a second, and more than a sixth of the session.
ROUND_TRIP_S = 0.6


class LongWay:
    """The way to a broker: all bytes take half a round trip. While it is cut they wait."""

    def __init__(self, port, round_trip_s=ROUND_TRIP_S):
        self._port = port
        self._way_s = round_trip_s / 2
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._tasks, self._writers = set(), []

    async def __aenter__(self):
        self._server = await asyncio.start_server(self._connected, FAR, self._port)
        return self

    async def __aexit__(self, *_):
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for writer in self._writers:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()

    async def _connected(self, reader, writer):
        broker_reader, broker_writer = await asyncio.open_connection(NEAR, self._port)
        self._writers += writer, broker_writer
        for source, sink in ((reader, broker_writer), (broker_reader, writer)):
            self._tasks.add(asyncio.create_task(self._pass_on(source, sink)))

    async def _pass_on(self, source, sink):
        loop, on_the_way = asyncio.get_running_loop(), asyncio.Queue()

        async def arrive():
            while (sent := await on_the_way.get()) is not None:
                data, at = sent
                await asyncio.sleep(at - loop.time())
                await self.is_open.wait()
                sink.write(data)
            sink.close()

        arriving = asyncio.create_task(arrive())
        self._tasks.add(arriving)
        with contextlib.suppress(ConnectionError):
            while data := await source.read(1 << 16):
                on_the_way.put_nowait((data, loop.time() + self._way_s))
        on_the_way.put_nowait(None)


async def test_a_member_far_away_handles_messages_and_says_so_when_it_is_cut_off():
    """Polls timed out before their answers arrived and were dropped: it silently handled nothing."""
    port = free_broker_port()
    handled, errors = asyncio.Queue(), asyncio.Queue()

    async def handle(messages):
        for message in messages:
            handled.put_nowait(message.body)

    async with (
        asyncio.timeout(120),
        Broker(broker_ip=FAR, bind_address=NEAR, listen_port=port) as broker,
        LongWay(port) as way,
        Producer(namesrv=broker.namesrv) as producer,
    ):
        await producer.send(Message("T", b"1"))
        consumer = PushConsumer(
            group="g", namesrv=broker.namesrv, consume_from="earliest", session_ms=SESSION_MS,
            on_error=errors.put_nowait,
        )  # fmt: skip
        consumer.subscribe("T", "*", handle)
        async with consumer:
            assert await handled.get() == b"1"
            await asyncio.sleep(SESSION_MS / 1000 * 1.5)  # Its lease is renewed meanwhile.
            assert errors.empty()

            way.is_open.clear()
            error = await errors.get()
            assert isinstance(error, RequestTimeout)
            assert "lease" in str(error)
            way.is_open.set()

            await producer.send(Message("T", b"2"))
            assert await handled.get() == b"2"


async def test_a_member_that_is_cut_off_stops_after_its_timeout():
    """It waits for one answer that does not come, and not for the next one of the same broker."""
    port = free_broker_port()
    async with (
        asyncio.timeout(60),
        Broker(broker_ip=FAR, bind_address=NEAR, listen_port=port) as broker,
        LongWay(port, round_trip_s=0) as way,
        Admin(namesrv=broker.namesrv) as admin,
    ):
        await admin.create_topic("T", queues=1)
        assigned = asyncio.Event()
        consumer = PushConsumer(group="g", namesrv=broker.namesrv, on_assigned=lambda queues: assigned.set())
        consumer.subscribe("T", "*", print)
        await consumer.start()
        await assigned.wait()
        way.is_open.clear()
        began_s = asyncio.get_running_loop().time()
        await consumer.stop(timeout_ms=1_000)
        assert asyncio.get_running_loop().time() - began_s < 1.9
        way.is_open.set()
