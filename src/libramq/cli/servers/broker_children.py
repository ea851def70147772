"""The broker children: the further brokers of `libra up --brokers N`, each a process of its own.

A broker is one event loop, so more cores need more processes. They always end with this one (`broker_process`
says how). If a broker fails, `failure` reports it and `libra up` ends as a whole, so that a supervisor
notices and restarts it.
"""

import asyncio
import contextlib
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.cli.options import LogLevel
from libramq.errors import LibraError

#: Ours: how long a broker may take to write its state at the end.
STOP_SECONDS: Final = 20
#: The line that a child prints when it serves.
READY: Final = "ready"


class BrokerEnded(LibraError):
    """A broker's process did not start, or ended unexpectedly."""


class BrokerChildren:
    """All further brokers, started and stopped at once."""

    def __init__(self, configs: Sequence[BrokerConfig], log_level: LogLevel) -> None:
        self._configs = configs
        self._log_level = log_level
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        """Start all and wait until they serve; raises BrokerEnded, and then none is left."""
        try:
            async with asyncio.TaskGroup() as group:
                for config in self._configs:
                    group.create_task(self._start(config))
        except BaseException:
            with contextlib.suppress(BrokerEnded):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Request all to end, wait, then kill them; raises BrokerEnded for one that did not end well."""
        running = {name: child for name, child in self._processes.items() if child.returncode is None}
        self._processes = {}
        ends = await asyncio.gather(*map(_stop, running.values()))
        failed = [f"{name} {end}" for name, end in zip(running, ends, strict=True) if end is not None]
        if failed:
            raise BrokerEnded(f"{', '.join(failed)}: the next start recovers what it had not written")

    async def failure(self) -> BrokerEnded:
        """Wait until one ends unexpectedly."""
        waiting = {asyncio.create_task(child.wait()): name for name, child in self._processes.items()}
        try:
            if not waiting:
                await asyncio.Event().wait()
            done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()
        first = next(iter(done))
        return BrokerEnded(
            f"{waiting[first]} ended unexpectedly ({_status(first.result())}), so the others are stopped too"
        )

    async def _start(self, config: BrokerConfig) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "libramq.cli.servers.broker_process",
            self._log_level.value,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        self._processes[config.broker_name] = child
        assert child.stdin is not None
        assert child.stdout is not None
        child.stdin.write(msgspec.json.encode(config) + b"\n")
        line = (await child.stdout.readline()).decode(errors="replace").strip()
        if line != READY:
            raise BrokerEnded(
                f"{config.broker_name}: {line}"
                if line
                else f"{config.broker_name} did not start ({_status(await child.wait())})"
            )


async def _stop(child: asyncio.subprocess.Process) -> str | None:
    """Stop a broker; return how else it ended."""
    assert child.stdin is not None
    child.stdin.close()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            code = await child.wait()
    except TimeoutError:
        with contextlib.suppress(ProcessLookupError):
            child.kill()
        await child.wait()
        return f"did not stop within {STOP_SECONDS} s and was killed"
    return f"did not stop well ({_status(code)})" if code else None


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"
