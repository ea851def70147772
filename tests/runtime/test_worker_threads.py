"""Worker threads run jobs by kind, in order if there is a single thread, and report to the loop."""

import asyncio
import gc
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from tests.transport.loops import LOOPS, run_on

from libramq.kernel.effect import Thread
from libramq.runtime.asyncio_seams import LONG_US, REST, THREADS, ProcessorWait, WorkerThreads


async def result_of(threads: WorkerThreads, thread: Thread, work: Callable[[], Any]) -> Any:
    done: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    threads.run(thread, work, done.set_result)
    return await done


@pytest.mark.parametrize("loop", LOOPS)
def test_results_and_exceptions_arrive_on_the_loop(loop: str) -> None:
    async def scenario() -> None:
        threads, here = WorkerThreads(), threading.current_thread()
        worker = await result_of(threads, Thread.FLUSH, threading.current_thread)
        assert worker is not here
        assert worker.name.startswith("libra-flush")
        for error in (OSError("no disk"), SystemExit("a handler")):

            def fail(error: BaseException = error) -> None:
                raise error

            assert await result_of(threads, Thread.FLUSH, fail) is error
        assert await result_of(threads, Thread.FLUSH, threading.current_thread) is worker
        await threads.close()
        assert not worker.is_alive()

    run_on(loop, scenario)


def test_flushes_follow_each_other_and_close_waits_for_all_of_them() -> None:
    async def scenario() -> None:
        threads, release, order = WorkerThreads(), threading.Event(), list[int]()
        reported: list[int] = []
        threads.run(Thread.FLUSH, release.wait, lambda _: reported.append(0))
        for number in (1, 2, 3):
            threads.run(
                Thread.FLUSH,
                lambda number=number: order.append(number),
                lambda _, n=number: reported.append(n),
            )
        await result_of(threads, Thread.DISK, int)  # A job of another kind does not wait for it.
        assert order == []
        release.set()
        await threads.close()
        assert order == [1, 2, 3]
        await asyncio.sleep(0)
        assert reported == [0, 1, 2, 3]

    run_on("asyncio", scenario)


def test_old_data_is_read_by_several_threads_at_once() -> None:
    async def scenario() -> None:
        threads = WorkerThreads()
        together = threading.Barrier(THREADS[Thread.READ])
        reads = [
            result_of(threads, Thread.READ, lambda: together.wait(timeout=50))
            for _ in range(THREADS[Thread.READ])
        ]
        assert sorted(await asyncio.gather(*reads)) == list(range(THREADS[Thread.READ]))
        await threads.close()

    run_on("asyncio", scenario)


class Large:
    """A result that should be released."""


def test_a_thread_that_waits_keeps_no_result() -> None:
    async def scenario() -> None:
        threads = WorkerThreads()
        result = await result_of(threads, Thread.COMPUTE, Large)
        kept = weakref.ref(result)
        del result
        await result_of(threads, Thread.COMPUTE, int)  # The thread no longer refers to the first job.
        gc.collect()
        assert kept() is None
        await threads.close()

    run_on("asyncio", scenario)


def test_a_closed_loop_does_not_end_a_thread() -> None:
    threads = WorkerThreads()
    release = threading.Event()

    async def begin() -> None:
        threads.run(Thread.FLUSH, release.wait, print)

    asyncio.run(begin())
    release.set()

    async def scenario() -> None:
        assert await result_of(threads, Thread.FLUSH, lambda: 7) == 7
        await threads.close()

    run_on("asyncio", scenario)


def test_brief_work_is_done_by_the_loop_until_it_takes_long(monkeypatch) -> None:
    now_us = 0
    monkeypatch.setattr("libramq.runtime.asyncio_seams.perf_counter_ns", lambda: now_us * 1_000)
    threads, results = WorkerThreads(), list[Any]()
    failure = OSError("a full disk")

    def work(took_us: int) -> str:
        nonlocal now_us
        now_us += took_us
        if not took_us:
            raise failure
        return threading.current_thread().name

    assert threads.run_brief(lambda: work(100), results.append)
    assert threads.run_brief(lambda: work(0), results.append)
    assert threads.run_brief(lambda: work(LONG_US), results.append)
    here = threading.current_thread().name
    assert results == [here, failure, here]
    assert not threads.run_brief(lambda: work(100), results.append)
    assert len(results) == 3
    now_us += LONG_US * REST

    def wait(_: object) -> int:
        return now_us * 99 // 100

    monkeypatch.setattr(ProcessorWait, "waited_us", wait)  # Nearly all of that time went to others' work.
    assert threads.run_brief(lambda: work(LONG_US), results.append)
    assert threads.run_brief(lambda: work(100 * LONG_US), results.append)
    assert not threads.run_brief(lambda: work(100), results.append)
    asyncio.run(threads.close())
