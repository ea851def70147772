"""The broker process: a further broker of `libra up --brokers N`, a child that ends with its parent.

    parent ──stdin──►   the configuration, one line of JSON; closing the pipe ends the child
    parent ◄─stdout──   one line: "ready", or the reason for a failure

Standard input is always closed, even if the parent is killed: the operating system closes the pipe.
"""

import asyncio
import os
import signal
import sys

import msgspec

from libramq import logs
from libramq.broker.config import BrokerConfig
from libramq.cli import running
from libramq.cli.failure import EXIT_FAILED, failure_line
from libramq.cli.servers.broker_children import READY, STOP_SECONDS
from libramq.cli.servers.commands import broker_server, kafka_servers
from libramq.cli.servers.memory import calm_garbage_collector, keep_freed_memory
from libramq.transport.admission import raise_limit


async def serve(config: BrokerConfig) -> None:
    """Run the broker until the parent has ended or SIGTERM arrives. The parent handles Ctrl-C."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    loop.add_signal_handler(signal.SIGTERM, stopped.set)
    stdin = sys.stdin.fileno()

    def read() -> None:
        if not os.read(stdin, 1024):
            loop.remove_reader(stdin)
            stopped.set()

    raise_limit()
    broker = broker_server(config)
    await broker.start()
    kafka = kafka_servers(broker, config)
    try:
        for server in kafka:
            await server.start()
        calm_garbage_collector()
        keep_freed_memory()
        loop.add_reader(stdin, read)
        print(READY, flush=True)
        await stopped.wait()
    finally:
        async with asyncio.timeout(STOP_SECONDS):
            for server in kafka:
                await server.stop()
            await broker.stop()


def main() -> None:
    """Read the configuration and serve; print a failure as one line."""
    logs.log_to_stderr(sys.argv[1])
    line = sys.stdin.buffer.readline()
    if not line:
        return  # The parent is gone already.
    try:
        running.run(serve(msgspec.json.decode(line, type=BrokerConfig)))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except Exception as error:
        line = failure_line(error)
        if line is None:
            raise
        print(line, flush=True)
        sys.exit(EXIT_FAILED)


if __name__ == "__main__":
    main()
