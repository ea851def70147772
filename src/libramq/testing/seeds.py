"""Seeds: many simulations, in this process or shared out over several, reported in the order of the seeds.

A simulation is one thread of Python and none knows of another, so N processes do N times the work. What comes
of a seed does not depend on who ran it: the reports are the same whatever the number of jobs.
"""

import multiprocessing
import signal
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from typing import Final

from libramq.testing.simulation import Report, Simulation

#: Ours: how many seeds a process may be ahead of the report that is waited for. Bounds what is kept in memory
#: while one slow seed holds the others up; large enough that nobody idles meanwhile.
SEEDS_AHEAD: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeed:
    """How each seed is run: a value, so that it can be sent to another process.

    steps, lines_kept: as of `Simulation`.
    """

    steps: int | None = None
    lines_kept: int | None = 0

    def __call__(self, seed: int) -> Report:
        """Return what came of a seed."""
        return Simulation(seed, steps=self.steps, lines_kept=self.lines_kept).run()


def run_seeds(
    seeds: Iterable[int], run: Callable[[int], Report], *, jobs: int = 1
) -> Generator[Report, None, None]:
    """Yield one report a seed, in the order of the seeds.

    With more than one job, `run` is pickled and called in as many processes. Closing the iterator early drops
    the seeds that have not begun and waits for those that have.
    """
    if jobs == 1:
        yield from map(run, seeds)
        return
    # Spawned, not forked: the caller may have threads (a progress bar is one), which do not survive a fork.
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(jobs, mp_context=context, initializer=_leave_interrupts_to_the_parent)
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


def _leave_interrupts_to_the_parent() -> None:
    """Ignore Ctrl-C, which a terminal sends to every process: the parent ends the pool."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
