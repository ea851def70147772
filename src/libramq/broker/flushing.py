"""The flushing: carries out, on two threads, the flush plans of `Durability`: the log's and the queues'."""

import asyncio
from collections.abc import Callable

from libramq.broker.durability import POLL_MS, Durability
from libramq.broker.threads import on_thread
from libramq.clock import Clock
from libramq.errors import SyncFailed
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.store.flush import FlushPlan, run_flush
from libramq.store.message_store import MessageStore

log = get_logger(__name__)


class Flushing:
    """Runs flush plans. `flushed` is called after each."""

    def __init__(
        self, store: MessageStore, filesystem: FileSystem, clock: Clock, flushed: Callable[[], None]
    ) -> None:
        self._filesystem = filesystem
        self._flushed = flushed
        self._wanted = asyncio.Event()
        self.durability = Durability(store, clock, self._wanted.set)

    async def run(self) -> None:
        """Flush again and again, until cancelled."""
        async with asyncio.TaskGroup() as lanes:
            lanes.create_task(self._run(self.durability.plan, self._wanted))
            lanes.create_task(self._run(self.durability.plan_queues, asyncio.Event()))

    async def _run(self, plan_due: Callable[[], FlushPlan | None], wanted: asyncio.Event) -> None:
        unfinished: FlushPlan | None = None
        is_postponed = False
        while True:
            try:
                async with asyncio.timeout(POLL_MS / 1000):
                    await wanted.wait()
            except TimeoutError:
                pass
            wanted.clear()
            try:
                unfinished = unfinished or plan_due()
                if unfinished is not None:
                    await self._flush(unfinished)
                unfinished, is_postponed = None, False
            except OSError as error:  # For want of descriptors perhaps: the same plan is run again.
                if not is_postponed:
                    log.error("files cannot be opened to be flushed; tried again", reason=str(error))
                is_postponed = True
                await asyncio.sleep(POLL_MS / 1000)
            except Exception:  # Without flushes no message is ever safe again: whatever it is, go on.
                unfinished = None
                log.exception("flush failed; tried again")

    async def _flush(self, plan: FlushPlan) -> None:
        try:
            await on_thread(run_flush, self._filesystem, plan)
        except SyncFailed as error:
            self.durability.failed(error)
            return
        try:
            self.durability.done(plan)
        finally:
            self._flushed()
