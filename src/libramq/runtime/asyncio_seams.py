"""The real seams: the event loop's timers, the threads for each kind of work, and when brief work (a flush of
a fast disk) runs on the loop itself.
"""

import asyncio
import contextlib
import os
import sys
import threading
from collections.abc import Callable
from queue import SimpleQueue
from time import perf_counter_ns
from typing import Any, Final, NamedTuple

from libramq.kernel.effect import Thread
from libramq.runtime.seams import Timer

#: Ours: up to this mean the loop does brief work itself; beyond it, others gain more from a free loop.
USUAL_US_MAX: Final = 400
#: Ours: a single time that ends this at once: five turns, or a slice of the queues' flush.
LONG_US: Final = 10_000
#: Ours: after that a thread does brief work, for this many times as long as the loop was blocked.
REST: Final = 100
#: Ours: the weight of a new time in the mean; one of 4 ms among many of 0.1 ms changes nothing.
_WEIGHT: Final = 1 / 64


class BriefWork:
    """Decides who does the next brief work, by the time it has taken. Times are in microseconds.

        it took little ─► the loop does it again
        it took long   ─► a thread does it, for a hundred times as long as the loop was blocked

    A flush of a fast disk takes 0.1 ms. Waking a thread for it and then the loop again, both of which need
    the interpreter, took as long, and the answer waits for all of it. But a disk may stall at any time, and
    then the loop stands still with all of its clients. So slow flushes block it for some hundredths of the
    time at most, and usual ones for less than a connection's turn.

    Time in which the loop was ready but others ran instead does not count: on a busy machine a thread would
    have waited as well, and the loop after it.
    """

    def __init__(self) -> None:
        self._mean_us = USUAL_US_MAX / 2
        self._rests_until_us = 0

    def may_begin(self, now_us: int) -> bool:
        """Return whether the loop may do the next brief work."""
        return now_us >= self._rests_until_us

    @property
    def is_doubtful(self) -> bool:
        """Return whether it is worth measuring how long the next one waits for a processor."""
        return self._mean_us >= USUAL_US_MAX / 2

    def ended(self, began_us: int, ended_us: int, waited_us: int = 0) -> None:
        """Record work done by the loop. waited_us: the part of it spent waiting for a processor."""
        took_us = max(
            0, ended_us - began_us - max(0, waited_us)
        )  # The kernel's count may be unreadable once.
        self._mean_us += (took_us - self._mean_us) * _WEIGHT
        if took_us >= LONG_US or self._mean_us > USUAL_US_MAX:
            self._rests_until_us = ended_us + REST * max(took_us, USUAL_US_MAX)
            self._mean_us = USUAL_US_MAX  # A disk must prove to be fast: the next slow flush ends it.


_PATH: Final = "/proc/thread-self/schedstat"


class ProcessorWait:
    """Reads how long its creating thread has waited for a processor; 0 if the system does not count it.

    Work that is slow because the machine is busy is no faster on another thread. Linux counts in
    /proc/thread-self/schedstat: nanoseconds that the thread ran, nanoseconds that it waited, how often it
    ran.
    """

    def __init__(self) -> None:
        self._file: int | None = None
        with contextlib.suppress(OSError):
            self._file = os.open(_PATH, os.O_RDONLY | os.O_CLOEXEC)

    def waited_us(self) -> int:
        """Return the microseconds that the thread has waited so far; reading takes three."""
        if self._file is None:
            return 0
        try:
            return int(os.pread(self._file, 64, 0).split()[1]) // 1_000
        except (OSError, ValueError, IndexError):
            return 0

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


#: Ours: one thread where writes must be sequential or no request waits; old data is read in parallel.
THREADS: Final = {Thread.FLUSH: 1, Thread.DISK: 1, Thread.READ: 4, Thread.COMPUTE: 1, Thread.ASSIGN: 1}


class LoopTimers:
    """The timers of the running event loop."""

    def after(self, delay_ms: float, action: Callable[[], None]) -> Timer:
        """Call a function later, or without delay after what is ready now."""
        loop = asyncio.get_running_loop()
        return loop.call_later(delay_ms / 1000, action) if delay_ms else loop.call_soon(action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call a function after what is ready now: both kinds of event loop first read from all sockets."""
        asyncio.get_running_loop().call_soon(action)

    def elapsed_us(self) -> int:
        """Return the microseconds since a fixed moment."""
        return perf_counter_ns() // 1_000


#: Ours: how long a computing thread may keep the interpreter from the loop, which needs it back after every
#: system call: with the default 5 ms of sys.setswitchinterval, a turn of ten writes took 50 ms.
SWITCH_S: Final = 0.0005


class WorkerThreads:
    """The threads of each kind of work, started on first use."""

    def __init__(self) -> None:
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._crews: dict[Thread, _Crew] = {}
        self._brief = BriefWork()
        self._wait: ProcessorWait | None = None  # The loop thread's.

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work; `done` gets its result or its exception, on the event loop."""
        loop = asyncio.get_running_loop()
        crew = self._crews.get(thread)
        if crew is None:
            crew = self._crews[thread] = _Crew(f"libra-{thread.value}", THREADS[thread])
        try:
            crew.submit(_Job(work, done, loop))
        except RuntimeError as error:  # The system allows no threads; the request still needs an answer.
            loop.call_soon(done, error)

    def run_brief(self, work: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        """Run work on the event loop as long as such work is fast; return whether it was run."""
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
        """Wait for the current work, which must not overlap with another writer."""
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
    """A limited number of threads that share a queue of jobs, first in, first out.

    A job of concurrent.futures costs 20 µs more, and every send under SYNC_FLUSH waits for one. The threads
    are daemons, so that an interpreter that ends without `close` does not wait for them: their work may be
    interrupted at any moment, as by a kill.
    """

    def __init__(self, name: str, threads_max: int) -> None:
        self._name = name
        self._threads_max = threads_max
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()

    def submit(self, job: _Job) -> None:
        """Queue a job; raises RuntimeError if there is no thread and none can be started."""
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
            with contextlib.suppress(RuntimeError):  # The loop is closed, so the result is not needed.
                job.loop.call_soon_threadsafe(job.done, result)
            del job, result  # Keeps nothing alive while waiting.
