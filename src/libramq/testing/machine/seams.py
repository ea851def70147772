"""The simulated seams: timers and threads of one process, in virtual time; the network's is
`testing.machine.network`.
"""

import random
from collections.abc import Callable
from functools import partial
from math import ceil
from typing import Any, Final

from libramq.errors import LibraError
from libramq.kernel.effect import Thread
from libramq.testing.machine.process import Process
from libramq.testing.machine.virtual_time import Event

#: The longest time that each kind of thread takes for its work.
WORK_MS_MAX: Final = {Thread.FLUSH: 8, Thread.DISK: 20, Thread.READ: 20, Thread.COMPUTE: 2, Thread.ASSIGN: 20}
#: The probability that brief work runs without a thread and takes no time.
BRIEF_CHANCE: Final = 0.5
#: The most steps of long work in one turn; usually it is one or a few.
STEPS_MAX: Final = 64


class SimulatedTimers:
    """The timers of a process, on its machine's clock."""

    def __init__(self, process: Process) -> None:
        self._process = process

    def after(self, delay_ms: float, action: Callable[[], None]) -> Event:
        """Call a function later."""
        return self._process.after(delay_ms if type(delay_ms) is int else ceil(delay_ms), action)

    def soon(self, action: Callable[[], None]) -> None:
        """Call a function at this moment, after the events already scheduled for it."""
        self._process.after(0, action)

    def elapsed_us(self) -> int:
        """Return the microseconds since a fixed moment; a turn takes no time."""
        return int(self._process.time.now_ms) * 1_000


def drawn_turns(randomness: random.Random) -> Callable[..., Callable[[], bool]]:
    """Return a function that begins a turn of long work, which ends after a random number of steps."""

    def begin(_: int | None = None) -> Callable[[], bool]:
        left = iter(range(int(STEPS_MAX ** randomness.random()) - 1))
        return lambda: next(left, None) is None

    return begin


class SimulatedThreads:
    """Threads whose work runs all at once after a delay. failed: called with the error of failed work."""

    def __init__(
        self, process: Process, randomness: random.Random, failed: Callable[[OSError | LibraError], None]
    ) -> None:
        self._process = process
        self._random = randomness
        self._failed = failed

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        """Run work later; `done` gets its result or its exception."""

        self._process.after(self._random.randint(0, WORK_MS_MAX[thread]), partial(self._happen, work, done))

    def run_brief(self, work: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        """Run work at once or decline, at random: a real disk is sometimes fast."""
        if self._random.random() >= BRIEF_CHANCE:
            return False
        self._happen(work, done)
        return True

    def _happen(self, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        try:
            result = work()
        except (OSError, LibraError) as error:
            done(error)
            self._failed(error)
        else:
            done(result)
