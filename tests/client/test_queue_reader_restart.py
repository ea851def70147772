"""A broker is killed while its queues are read, and returns at another address."""

import asyncio
import subprocess
import time
from contextlib import ExitStack, closing
from pathlib import Path

from libramq.client import Admin, Producer
from libramq.client.blocking_cluster import Timeouts
from libramq.client.queue_reader import QueueReader
from libramq.message import Message
from libramq.message.record import decode_records
from tests.cli.commands import end, start
from tests.interop.ports import free_broker_port, free_port

MESSAGES = 20_000


def start_broker(home: Path, namesrv: str) -> subprocess.Popen[str]:
    """Start a broker on the same directory, at another port each time."""
    conf = home / "broker.conf"
    conf.write_text(
        f"listenPort={free_broker_port()}\nstorePathRootDir={home / 'data'}\nnamesrvAddr={namesrv}\n"
    )
    process = start(["broker", "-c", str(conf), "--log-level", "warning"])
    assert process.stdout is not None
    assert "listens on" in process.stdout.readline()
    return process


async def fill(namesrv: str) -> None:
    async with Admin(namesrv=namesrv) as admin:
        await admin.create_topic("Restarts", queues=4)  # Answered when the name server knows it.
    # Long enough for a busy machine: a resent message would be stored twice.
    async with Producer(group="p", namesrv=namesrv, send_timeout_ms=60_000) as producer:
        for number in range(MESSAGES):
            producer.send_nowait(Message("Restarts", b"%d" % number))
            if not number % 200:
                await producer.wait_for_room()
        await producer.flush()


def test_no_message_is_lost_or_read_twice_over_a_restart(tmp_path: Path):
    port = free_port()
    namesrv = f"127.0.0.1:{port}"
    nameserver = start(["nameserver", "--port", str(port), "--log-level", "warning"])
    processes = [nameserver]
    stack = ExitStack()
    try:
        assert nameserver.stdout is not None
        assert "listens on" in nameserver.stdout.readline()
        processes.append(start_broker(tmp_path, namesrv))
        asyncio.run(fill(namesrv))

        def restart(seconds: float) -> None:
            if processes[-1].poll() is not None and len(processes) == 2:
                processes.append(start_broker(tmp_path, namesrv))
            else:
                time.sleep(min(seconds, 0.1))  # It listens, and registers a moment later.

        reader = stack.enter_context(
            closing(
                QueueReader(
                    [namesrv], group="TOOLS_CONSUMER", timeouts=Timeouts(retry_ms=600_000), sleep=restart
                )
            )
        )
        queues = reader.queues("Restarts")
        ends = reader.max_offsets(queues)
        assert sum(ends.values()) == MESSAGES
        bodies: list[bytes] = []
        for queue in queues:
            for stretch in reader.read(queue, 0, ends[queue]):
                bodies += [message.body for message in decode_records(stretch.body)]
                if len(bodies) > MESSAGES // 3 and len(processes) == 2:
                    processes[-1].kill()
                    processes[-1].wait(timeout=150)
                    found, failures = reader.reachable_max_offsets(queues)
                    assert found == {}
                    assert failures
        assert sorted(map(int, bodies)) == list(range(MESSAGES))
        assert len(processes) == 3
        assert reader.max_offsets(queues) == ends
    finally:
        stack.close()
        for process in processes:
            end(process)
