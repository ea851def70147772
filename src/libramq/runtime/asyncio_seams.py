"""The real seams: the event loop's timers, and threads by kind of work."""

import asyncio
import sys
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter_ns
from typing import Any, Final

from libramq.kernel.effect import Thread
from libramq.runtime.seams import Timer

#: Ours: one thread if writes must follow each other or no request waits; old data is read in parallel.
THREADS: Final = {Thread.FLUSH: 1, Thread.DISK: 1, Thread.READ: 4, Thread.COMPUTE: 1}


class LoopTimers:
    """The timers of the running event loop."""

    def after(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        """Call a function later; with no delay, after what is ready now."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1000, action) if delay_ms else loop.call_soon(action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call a function after what is ready now: both kinds of event loop read from all sockets first."""
        asyncio.get_running_loop().call_soon(action)

    def elapsed_us(self) -> int:
        """Return the microseconds since a fixed moment."""
        return perf_counter_ns() // 1_000


#: Ours: how long a computing thread keeps the interpreter from the loop, which needs it back after every
#: system call: with the 5 ms of sys.setswitchinterval's default, a turn of ten writes took 50 ms.
SWITCH_S: Final = 0.0005


class WorkerThreads:
    """A thread pool for each kind of work, created on first use."""

    def __init__(self) -> None:
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._pools: dict[Thread, ThreadPoolExecutor] = {}

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work; `done` gets its result or its exception, on the event loop."""
        loop = asyncio.get_running_loop()
        pool = self._pools.get(thread)
        if pool is None:
            name = f"libra-{thread.value}"
            pool = self._pools[thread] = ThreadPoolExecutor(THREADS[thread], thread_name_prefix=name)

        def finished(future: Future[Any]) -> None:
            error = future.exception()
            result = error if error is not None else future.result()
            loop.call_soon_threadsafe(done, result)

        try:
            future = pool.submit(work)
        except (
            RuntimeError
        ) as error:  # The system allows no more threads; the waiting request must be answered.
            loop.call_soon(done, error)
        else:
            future.add_done_callback(finished)

    async def close(self) -> None:
        """Wait for the work under way, which must not overlap with another writer."""
        pools, self._pools = list(self._pools.values()), {}
        for pool in pools:
            await asyncio.to_thread(pool.shutdown)
