"""The broker children: the further brokers of `libra up --brokers N`, each a process, with their supervision.

A broker is one event loop, so using more cores takes more processes. They always end with this one (see
`broker_process`). `supervise` restarts a broker that ends by itself, unless told to keep going without it. If
a broker keeps ending, `supervise` returns a failure, and `libra up` ends as a whole, so that its own
supervisor notices.
"""

import asyncio
import contextlib
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Final

import msgspec

from libramq.broker.config import BrokerConfig
from libramq.cli.options import LogLevel
from libramq.errors import LibraError

#: Ours: how long a broker may take to write its state when it stops.
STOP_SECONDS: Final = 20
#: Ours: the delay before a restart; a signal that ends all brokers also ends this process in that time.
RESTART_SECONDS: Final = 0.5
#: Ours: a broker that ends this often within ENDS_SECONDS is not restarted any more.
ENDS_MAX: Final = 5
ENDS_SECONDS: Final = 60
#: The line that a child prints when it is ready.
READY: Final = "ready"


class BrokerEnded(LibraError):
    """A broker's process did not start, or ended unexpectedly."""


class BrokerChildren:
    """All further brokers, started and stopped together. keep_going: a broker that ends is not restarted."""

    def __init__(
        self, configs: Sequence[BrokerConfig], log_level: LogLevel, *, keep_going: bool = False
    ) -> None:
        self._configs = configs
        self._log_level = log_level
        self._keep_going = keep_going
        self._processes: dict[str, asyncio.subprocess.Process] = {}

    async def start(self) -> None:
        """Start all brokers and wait until they are ready. Raises BrokerEnded, after stopping all of them."""
        try:
            async with asyncio.TaskGroup() as group:
                for config in self._configs:
                    group.create_task(self._start(config))
        except BaseException:
            with contextlib.suppress(BrokerEnded):
                await self.stop()
            raise

    async def stop(self) -> None:
        """Ask all brokers to end, wait, then kill the rest; raises BrokerEnded for an unclean end."""
        running = {name: child for name, child in self._processes.items() if child.returncode is None}
        self._processes = {}
        ends = await asyncio.gather(*map(_stop, running.values()))
        failed = [f"{name} {end}" for name, end in zip(running, ends, strict=True) if end is not None]
        if failed:
            raise BrokerEnded(f"{', '.join(failed)}: the next start recovers what it had not written")

    def lines(self) -> list[str]:
        """Return a line with the process id of each broker."""
        if not self._processes:
            return []
        named = ", ".join(f"{name} {child.pid}" for name, child in self._processes.items())
        what = "is not restarted (--keep-going)" if self._keep_going else "is restarted"
        return [f"Processes: {named}; one that ends {what}"]

    async def supervise(self) -> BrokerEnded:
        """Restart brokers that end; return the failure of one that keeps ending."""
        if not self._configs:
            await asyncio.Event().wait()
        watching = {asyncio.create_task(self._watch(config)) for config in self._configs}
        try:
            done, _ = await asyncio.wait(watching, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in watching:
                task.cancel()
        return next(iter(done)).result()

    async def _watch(self, config: BrokerConfig) -> BrokerEnded:
        name, ends = config.broker_name, deque[float](maxlen=ENDS_MAX)
        while True:
            how = _status(await self._processes[name].wait())
            await asyncio.sleep(RESTART_SECONDS)
            if self._keep_going:
                _report(f"{name} has ended ({how}), and is not restarted; the others continue")
                await asyncio.Event().wait()
            ends.append(time.monotonic())
            if len(ends) == ENDS_MAX and ends[-1] - ends[0] < ENDS_SECONDS:
                return BrokerEnded(
                    f"{name} ended {ENDS_MAX} times within {ENDS_SECONDS} s, the last time with {how}, "
                    "so the others are stopped too"
                )
            _report(f"{name} has ended ({how}), and is restarted")
            try:
                await self._start(config)
            except BrokerEnded as error:
                return BrokerEnded(f"{error}; it could not be restarted, so the others are stopped too")
            _report(f"{name} serves again, as process {self._processes[name].pid}")

    async def _start(self, config: BrokerConfig) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "libramq.cli.servers.broker_process",
            self._log_level.value,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # Otherwise a terminal's Ctrl-C would end a starting broker.
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
    """Stop a broker; return a description of an unclean end."""
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
    return f"did not stop cleanly ({_status(code)})" if code else None


def _status(code: int) -> str:
    return f"signal {-code}" if code < 0 else f"exit code {code}"


def _report(line: str) -> None:
    print(f"libra: {line}", file=sys.stderr, flush=True)
