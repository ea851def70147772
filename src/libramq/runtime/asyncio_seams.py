"""The real seams: the event loop's timers, and threads by kind of work."""

import asyncio
import contextlib
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from libramq.kernel.effect import Thread
from libramq.runtime.brief_work import BriefWork
from libramq.runtime.processor_wait import ProcessorWait
from libramq.runtime.seams import Timer

#: Ours: one thread if writes must follow each other or no request waits; old data is read in parallel.
THREADS: Final = {Thread.FLUSH: 1, Thread.DISK: 1, Thread.READ: 4, Thread.COMPUTE: 1, Thread.ASSIGN: 1}


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
    """The threads of each kind of work, started on first use."""

    def __init__(self) -> None:
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._crews: dict[Thread, _Crew] = {}
        self._brief = BriefWork()
        self._wait: ProcessorWait | None = None  # Of the loop's thread.

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work; `done` gets its result or its exception, on the event loop."""
        loop = asyncio.get_running_loop()
        crew = self._crews.get(thread)
        if crew is None:
            crew = self._crews[thread] = _Crew(f"libra-{thread.value}", THREADS[thread])
        try:
            crew.submit(_Job(work, done, loop))
        except RuntimeError as error:  # The system allows no threads; the waiting request must be answered.
            loop.call_soon(done, error)

    def run_brief(self, work: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        """Run work on the event loop, while such work takes little time; return whether it was."""
        began_us = perf_counter_ns() // 1_000
        if not self._brief.may_begin(began_us):
            return False
        before_us = self._waited_us() if self._brief.is_doubtful else None
        result: Any
        try:
            result = work()
        except Exception as error:
            result = error
        ended_us = perf_counter_ns() // 1_000
        self._brief.ended(began_us, ended_us, self._waited_us() - before_us if before_us is not None else 0)
        done(result)
        return True

    def _waited_us(self) -> int:
        if self._wait is None:
            self._wait = ProcessorWait()
        return self._wait.waited_us()

    async def close(self) -> None:
        """Wait for the work under way, which must not overlap with another writer."""
        if self._wait is not None:
            self._wait.close()
        crews, self._crews = list(self._crews.values()), {}
        for crew in crews:
            await asyncio.to_thread(crew.close)


class _Job(NamedTuple):
    work: Callable[[], Any]
    done: Callable[[Any], None]
    loop: asyncio.AbstractEventLoop


class _Crew:
    """Up to so many threads that share a queue of jobs, first in, first out.

    A job of concurrent.futures costs 20 µs more, and every send under SYNC_FLUSH waits for one. The threads
    are daemons, so that an interpreter that ends without `close` does not wait for them: what they do may be
    interrupted at any moment, as by a kill.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def submit(self, job: _Job) -> None:
        """Have a job run; raises RuntimeError if there is no thread for it, and none can be started."""
        if len(self._threads) < self._threads_max:
            self._start_another()
        self._jobs.put(job)

    def close(self) -> None:
        """Wait until all jobs are done and the threads have ended."""
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def _start_another(self) -> None:
        name = f"{self._name}_{len(self._threads)}"
        thread = threading.Thread(target=self._work, name=name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            if not self._threads:
                raise
        else:
            self._threads.append(thread)

    def _work(self) -> None:
        while (job := self._jobs.get()) is not None:
            try:
                result = job.work()
            except BaseException as error:
                result = error
            with contextlib.suppress(RuntimeError):  # The loop is closed: nobody waits for it any more.
                job.loop.call_soon_threadsafe(job.done, result)
            del job, result  # While this thread waits, it keeps nothing alive.
