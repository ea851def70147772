"""Durability: flushes the store on a thread and answers, in groups, those who wait for the disk.

Upstream: CommitLog.GroupCommitService, FlushRealTimeService.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Final

from libramq.clock import Clock
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.store.config import FlushDiskType
from libramq.store.flush import run_flush
from libramq.store.message_store import MessageStore

log = get_logger(__name__)

#: How often a plan is asked for under ASYNC_FLUSH; the plan knows what is due.
POLL_MS: Final = 100
#: MessageStoreConfig.syncFlushTimeout.
SYNC_FLUSH_TIMEOUT_MS: Final = 5_000


class Durability:
    """Runs flush plans, one at a time."""

    def __init__(
        self, store: MessageStore, filesystem: FileSystem, clock: Clock, flushed: Callable[[], None]
    ) -> None:
        self._store = store
        self._filesystem = filesystem
        self._clock = clock
        self._flushed = flushed
        self._is_sync = store.config.flush_disk_type is FlushDiskType.SYNC_FLUSH
        self._is_broken = False
        self._wanted = asyncio.Event()
        self._waiting: deque[tuple[int, int, Callable[[bool], None]]] = deque()

    def when_durable(self, physical_offset: int, answer: Callable[[bool], None]) -> None:
        """Call `answer` with True when the log is on disk up to an offset, with False when that fails."""
        if physical_offset <= self._store.flushed_offset:
            answer(True)
            return
        deadline_ms = self._clock.monotonic_ms() + SYNC_FLUSH_TIMEOUT_MS
        self._waiting.append((physical_offset, deadline_ms, answer))
        self._wanted.set()

    def appended(self) -> None:
        """Messages were stored; under SYNC_FLUSH they should be on disk soon."""
        if self._is_sync:
            self._wanted.set()

    def give_up(self) -> None:
        """Answer those whose time is up; all of them when the disk is broken."""
        now_ms = self._clock.monotonic_ms()
        while self._waiting and (self._is_broken or self._waiting[0][1] <= now_ms):
            self._waiting.popleft()[2](False)

    async def run(self) -> None:
        """Flush again and again, until cancelled."""
        while True:
            try:
                async with asyncio.timeout(POLL_MS / 1000):
                    await self._wanted.wait()
            except TimeoutError:
                pass
            self._wanted.clear()
            try:
                await self._flush()
            except Exception:  # Without flushes no message is ever safe again: whatever it is, go on.
                log.exception("flush failed; tried again")

    async def _flush(self) -> None:
        plan = self._store.plan_flush(self._clock.monotonic_ms())
        if plan is None:
            self.give_up()
            return
        try:
            await asyncio.to_thread(run_flush, self._filesystem, plan)
        except OSError as error:
            log.error("the disk refuses to flush; the store takes no more messages", reason=str(error))
            self._store.fail_flush(error)
            self._is_broken = True
            self.give_up()
            return
        try:
            self._store.complete_flush(plan)
        finally:
            self._answer()
            self._flushed()

    def _answer(self) -> None:
        flushed = self._store.flushed_offset
        while self._waiting and self._waiting[0][0] <= flushed:
            self._waiting.popleft()[2](True)
