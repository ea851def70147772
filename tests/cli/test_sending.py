"""Lines of standard input: a thread reads them, and there may be no end to them."""

import asyncio
import contextlib
import os
import threading

from libramq.broker.config import BrokerConfig
from libramq.broker.shell import BrokerServer
from libramq.cli import sending
from libramq.clock import SystemClock
from libramq.filesystem import LocalFileSystem
from libramq.nameserver import NameServer
from tests.interop.ports import free_broker_port


@contextlib.contextmanager
def endless(data):
    """Yield a file that never ends; afterwards wait for the threads that read it."""
    reading, writing = os.pipe()

    def write():
        with contextlib.suppress(BrokenPipeError):
            while True:
                os.write(writing, data)

    writer = threading.Thread(target=write, daemon=True)
    writer.start()
    try:
        yield reading
    finally:
        for thread in threading.enumerate():
            if thread.name == "libra-stdin":
                thread.join(60)  # An exception in the thread fails the test.
        os.close(reading)
        writer.join(60)
        os.close(writing)


def test_stopping_the_reader_leaves_no_thread_and_no_traceback():
    """Ctrl-C stops it, usually while the reader waits for room in its queue."""

    async def read_some(file):
        lines = sending._lines(file)
        assert await anext(lines) == b"x"
        await asyncio.sleep(0)

    with endless(b"x\n" * sending.READ_BYTES) as file:
        asyncio.run(read_some(file))


def test_a_message_stored_less_safely_than_configured_is_reported(tmp_path, capsys):
    """`libra send` used to print only the position, regardless of the status returned by the broker."""

    async def send():
        port = free_broker_port()
        async with NameServer("127.0.0.1", 0) as names:
            config = BrokerConfig(
                store_path=str(tmp_path),
                listen_port=port,
                ha_listen_port=port + 1,
                broker_role="SYNC_MASTER",
                in_sync_replicas=2,
                namesrv_addr=names.address,
            )
            broker = BrokerServer(config, clock=SystemClock(), filesystem=LocalFileSystem())
            await broker.start()
            try:
                await sending.send_one(names.address, sending.Sending(topic="T"), "one", as_json=False)
            finally:
                await broker.stop()

    asyncio.run(send())
    printed = capsys.readouterr()
    assert printed.out.startswith("sent ")
    assert printed.err == (
        "libra: 1 stored at the master, but too few slaves are in sync (SLAVE_NOT_AVAILABLE)\n"
    )


def test_an_endless_line_is_refused_at_the_maximum_message_size():
    """`libra send < /dev/zero` used to fill the memory."""

    async def read_all(file):
        return [len(line) async for line in sending._lines(file)]

    with endless(bytes(1 << 16)) as file:
        (size,) = asyncio.run(read_all(file))
    assert sending.LINE_BYTES_MAX < size <= sending.LINE_BYTES_MAX + sending.READ_BYTES
