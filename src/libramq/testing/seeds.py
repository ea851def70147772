"""Seeds: many simulations, in this process or distributed over several, reported in order.

A simulation is single-threaded and independent, so N processes do N times the work. A seed's result does not
depend on the process: the reports are the same whatever the number of jobs.
"""

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from libramq.testing.simulation import Report, Simulation

#: Ours: how many seeds a process may be ahead of the awaited report. It bounds the memory while one slow seed
#: delays the others, and is large enough to keep all processes busy.
SEEDS_AHEAD: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeed:
    """Runs one seed: a value, so that it can be sent to another process.

    steps, lines_kept: as in `Simulation`.
    """

    steps: int | None = None
    lines_kept: int | None = 0

    def __call__(self, seed: int) -> Report:
        """Return the report of a seed."""
        return Simulation(seed, steps=self.steps, lines_kept=self.lines_kept).run()


def run_seeds(
    seeds: Iterable[int], run: Callable[[int], Report], *, jobs: int = 1
) -> Generator[Report, None, None]:
    """Yield one report per seed, in order.

    With more than one job, `run` is pickled and called in as many processes. Closing the iterator early drops
    the seeds that have not begun and waits for those that have.
    """
    if jobs == 1:
        yield from map(run, seeds)
        return
    # Spawned, not forked: the caller may have threads (a progress bar is one), which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_belong_to_the_parent)
    pending: deque[Future[Report]] = deque()
    try:
        for seed in seeds:
            pending.append(pool.submit(run, seed))
            if len(pending) >= jobs * SEEDS_AHEAD:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)


def _belong_to_the_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to every process: the parent stops the pool. End with the parent,
    which may have been killed: the pool's queue does not end with it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end_with_the_parent() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=end_with_the_parent, daemon=True).start()
