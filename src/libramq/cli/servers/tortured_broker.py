"""The tortured broker: a broker in a process of its own that can be killed at any moment.

It is started as the further brokers of `libra up --brokers N` are (`broker_process`).
"""

import asyncio
import contextlib
import sys
import time
from pathlib import Path
from typing import Any, Final

import msgspec

from libramq.broker.config import VIP_DISTANCE, BrokerConfig
from libramq.cli.servers.broker_children import READY, STOP_SECONDS, BrokerEnded
from libramq.cli.servers.ports import free_port
from libramq.errors import StoreError
from libramq.filesystem import LocalFileSystem
from libramq.store.recovery.check import check_store

HOST: Final = "127.0.0.1"
#: Ours: small, so that files end and begin often.
LOG_FILE_BYTES: Final = 16 * 1024 * 1024
QUEUE_FILE_BYTES: Final = 20 * 3_000
#: Ours: half messages stay open through a round, however long its link is cut.
TRANSACTION_CHECKS_MAX: Final = 1_000
#: Ours: how long a start may take; the recovery of a whole file of the log takes some seconds.
START_SECONDS_MAX: Final = 120


class TorturedBroker:
    """One broker's process. log: the file that gets what it logs."""

    def __init__(self, config: BrokerConfig, log: Path) -> None:
        self.config = config
        self._log = log
        self._process: asyncio.subprocess.Process | None = None

    @property
    def address(self) -> str:
        """Return where the process listens; it may be registered with the address of a link."""
        return f"{self.config.bind_address}:{self.config.listen_port}"

    @property
    def is_running(self) -> bool:
        """Return whether the process was started, and neither killed nor stopped."""
        return self._process is not None

    async def spawn(self) -> None:
        """Start the process, and do not wait until it serves."""
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "libramq.cli.servers.broker_process",
                "info",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
            )
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(self.config) + b"\n")

    async def start(self) -> float:
        """Start the process, and wait until it serves; return the seconds. Raises BrokerEnded."""
        began = time.monotonic()
        await self.spawn()
        assert self._process is not None
        assert self._process.stdout is not None
        try:
            async with asyncio.timeout(START_SECONDS_MAX):
                line = (await self._process.stdout.readline()).decode(errors="replace").strip()
        except TimeoutError:
            line = f"it does not serve after {START_SECONDS_MAX} s"
        if line != READY:
            await self.kill()
            raise BrokerEnded(f"the broker does not start: {line or 'it ended'}; see {self._log}")
        return time.monotonic() - began

    async def kill(self) -> None:
        """Kill the process, as `kill -9` does."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            await self._process.wait()
            self._process = None

    async def stop(self) -> None:
        """Have the process end by itself; raises BrokerEnded if it fails to."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            async with asyncio.timeout(STOP_SECONDS):
                code = await self._process.wait()
        except TimeoutError:
            await self.kill()
            raise BrokerEnded(f"the broker does not stop within {STOP_SECONDS} s; see {self._log}") from None
        self._process = None
        if code:
            raise BrokerEnded(f"the broker's stop failed with exit code {code}; see {self._log}")


def tortured_config(store: Path, **options: Any) -> BrokerConfig:
    """Return the configuration of a broker that confirms what is on its disk."""
    usual: dict[str, Any] = {
        "store_path": str(store),
        "broker_name": "tortured",
        "bind_address": HOST,
        "flush_disk_type": "SYNC_FLUSH",
        "commit_log_file_bytes": LOG_FILE_BYTES,
        "consume_queue_file_bytes": QUEUE_FILE_BYTES,
        "transaction_timeout_ms": 1_000,
        "transaction_check_interval_ms": 500,
        "transaction_check_max": TRANSACTION_CHECKS_MAX,
    }
    if "listen_port" not in options:
        usual["listen_port"] = free_port(HOST, below=VIP_DISTANCE)
    return BrokerConfig(**usual, **options)


def check_files(store: Path) -> tuple[int, list[str]]:
    """Return the end of a stopped broker's log, and the damage to its files."""
    try:
        report = check_store(store, LocalFileSystem())
    except StoreError as error:
        return 0, [str(error)]
    damage = f"the files are damaged; see libra store check {store}"
    return report.log_end, [damage] if report.is_damaged else []
