"""The demonstration's processes: started together, monitored through their reports, stopped by their parent.

A report is one line of JSON on standard output. Name server and broker are one `libra up` process on free
ports.
"""

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from libramq.admin.admin import Admin
from libramq.cli.servers.ports import Ports
from libramq.errors import LibraError

STOP_SECONDS: Final = 15
LOG_LINES_SHOWN: Final = 15
LINE_BYTES_MAX: Final = 1 << 20

LineHandler = Callable[["Child", dict[str, Any]], None]


class ChildFailed(LibraError):
    """A process of the demonstration ended unexpectedly."""

    def __init__(self, child: "Child", status: int) -> None:
        lines = child.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        super().__init__(
            "\n  ".join([f"{child.name} ended with status {status}; its log is {child.log}:", *lines])
        )


class Child:
    """One process: a module of this package (or any other), its reports, its log."""

    def __init__(self, name: str, log: Path, handle_line: LineHandler) -> None:
        self.name = name
        self.log = log
        self._handle_line = handle_line
        self._process: asyncio.subprocess.Process | None = None
        self.listening: asyncio.Task[int] | None = None

    async def start(self, module: str, arguments: Sequence[str], *, own_session: bool = False) -> None:
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                module,
                *arguments,
                stdin=asyncio.subprocess.PIPE if not own_session else asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE if not own_session else log,
                stderr=log,
                limit=LINE_BYTES_MAX,
                start_new_session=own_session,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        self.listening = asyncio.create_task(self._listen(self._process), name=self.name)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def _listen(self, process: asyncio.subprocess.Process) -> int:
        if process.stdout is not None:
            async for line in process.stdout:
                found = read_report(line)
                if found is not None:
                    self._handle_line(self, found)
        return await process.wait()

    async def write_line(self, line: str) -> None:
        """Write a line to the process's standard input."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(line.encode() + b"\n")
        await self._process.stdin.drain()

    async def ended(self) -> int:
        """Wait for the process to end; return its status."""
        assert self.listening is not None
        return await asyncio.shield(self.listening)

    def check(self) -> None:
        """Raise ChildFailed if the process has ended with an error."""
        if self.listening is not None and self.listening.done():
            status = self.listening.result()
            if status != 0:
                raise ChildFailed(self, status)

    def kill(self) -> None:
        """Kill the process without warning, as in a crash."""
        self._signal(signal.SIGKILL)

    def terminate(self) -> None:
        """Ask the process to stop."""
        self._signal(signal.SIGTERM)

    async def stop(self) -> None:
        """Ask the process to stop, wait, then kill it."""
        if self.listening is None:
            return
        self.terminate()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                await asyncio.shield(self.listening)
        except TimeoutError:
            self.kill()
            await self.listening

    def _signal(self, number: signal.Signals) -> None:
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)


def report(kind: str, **fields: Any) -> None:
    """Write one report to standard output and flush it."""
    sys.stdout.buffer.write(msgspec.json.encode({"kind": kind, **fields}) + b"\n")
    sys.stdout.buffer.flush()


def read_report(line: bytes) -> dict[str, Any] | None:
    """Parse a line; None if it is not a report but, for example, a library's output."""
    try:
        found = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return None
    return found if isinstance(found, dict) and "kind" in found else None


HOST: Final = "127.0.0.1"
READY_SECONDS: Final = 20
ASK_AGAIN_SECONDS: Final = 0.05


class Servers:
    """Name server and broker."""

    def __init__(self, child: Child, data: Path, ports: Ports) -> None:
        self.child = child
        self.namesrv = f"{HOST}:{ports.nameserver}"
        self._ports = ports
        self._data = data

    async def start(self, topics: Mapping[str, int]) -> None:
        """Start both, and create topics with these numbers of queues."""
        nameserver, broker, _ = self._ports
        arguments = ["up", "--nameserver-port", str(nameserver), "--broker-port", str(broker)]
        # In a new session: the servers may outlive this process (--keep) and must not get its Ctrl-C.
        await self.child.start("libramq", [*arguments, "--data", str(self._data)], own_session=True)
        async with asyncio.timeout(READY_SECONDS), Admin(namesrv=self.namesrv) as admin:
            await self._await_broker(admin)
            for topic, queues in topics.items():
                await admin.create_topic(topic, queues=queues)

    async def _await_broker(self, admin: Admin) -> None:
        while True:
            if not self.child.is_running:
                raise ChildFailed(self.child, await self.child.ended())
            with contextlib.suppress(LibraError):
                if (await admin.cluster_info()).broker_addr_table:
                    return
            await asyncio.sleep(ASK_AGAIN_SECONDS)

    async def stored_count(self, topic: str) -> int:
        """Return the broker's own count of a topic's stored messages."""
        async with Admin(namesrv=self.namesrv) as admin:
            stats = await admin.topic_stats(topic)
        return sum(ends.max_offset - ends.min_offset for ends in stats.values())
