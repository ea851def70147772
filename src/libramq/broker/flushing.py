"""The flushing: carries out the flushes that `Durability` wants, on a thread, one after the other."""

import asyncio
from collections.abc import Callable

from libramq.broker.durability import POLL_MS, Durability
from libramq.clock import Clock
from libramq.filesystem import FileSystem
from libramq.logs import get_logger
from libramq.store.flush import run_flush
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
        plan = self.durability.plan()
        if plan is None:
            return
        try:
            await asyncio.to_thread(run_flush, self._filesystem, plan)
        except OSError as error:
            self.durability.failed(error)
            return
        try:
            self.durability.done(plan)
        finally:
            self._flushed()
