"""The broker children: the further brokers of `libra up --brokers N`, each a process: when one that ends is
started again, when one is killed, and when `libra up` gives up.

A broker is one event loop, so more cores need more processes. They always end with this one (`broker_process`
says how). One that ends by itself is started again by `supervise`, or stays away if wanted. If it does
not stay, `supervise` returns that as a failure, and `libra up` ends as a whole, so that its own supervisor
notices.
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

#: Ours: how long a broker may take to write its state at the end.
STOP_SECONDS: Final = 20
#: Ours: what ends all brokers ends this process, too, and then none is started again.
RESTART_SECONDS: Final = 0.5
#: Ours: a broker that ends so often within this time will not serve.
ENDS_MAX: Final = 5
ENDS_SECONDS: Final = 60
#: The line that a child prints when it serves.
READY: Final = "ready"


class BrokerEnded(LibraError):
    """A broker's process did not start, or ended unexpectedly."""


class BrokerChildren:
    """All further brokers, started and stopped at once. keep_going: one that ends stays away."""

    def __init__(
        self, configs: Sequence[BrokerConfig], log_level: LogLevel, *, keep_going: bool = False
    ) -> None:
        self._configs = configs
        self._log_level = log_level
        self._keep_going = keep_going
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

    def lines(self) -> list[str]:
        """Return which process each broker is, for those who want to kill one."""
        if not self._processes:
            return []
        named = ", ".join(f"{name} {child.pid}" for name, child in self._processes.items())
        what = "stays away (--keep-going)" if self._keep_going else "is started again"
        return [f"Processes: {named}; one that ends {what}"]

    async def supervise(self) -> BrokerEnded:
        """Start those again that end; return the failure of one that does not stay."""
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
                _report(f"{name} has ended ({how}), and stays away; the others continue")
                await asyncio.Event().wait()
            ends.append(time.monotonic())
            if len(ends) == ENDS_MAX and ends[-1] - ends[0] < ENDS_SECONDS:
                return BrokerEnded(
                    f"{name} ended {ENDS_MAX} times within {ENDS_SECONDS} s, the last time with {how}, "
                    "so the others are stopped too"
                )
            _report(f"{name} has ended ({how}), and is started again")
            try:
                await self._start(config)
            except BrokerEnded as error:
                return BrokerEnded(f"{error}; it could not be started again, so the others are stopped too")
            _report(f"{name} serves again, as process {self._processes[name].pid}")

    async def _start(self, config: BrokerConfig) -> None:
        child = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "libramq.cli.servers.broker_process",
            self._log_level.value,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            start_new_session=True,  # A terminal's Ctrl-C would end one that is only being started.
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


def _report(line: str) -> None:
    print(f"libra: {line}", file=sys.stderr, flush=True)
