"""Measured turns: `bench/attacks` puts this directory on PYTHONPATH of the servers that it attacks.

On shared cores a turn that computes for 2 ms may last 30, because another process had the core. So turns are
measured by the processor time of the loop's thread, too: the longest one of a millisecond or more, in
microseconds, is in the file that LIBRA_TURNS names. Whoever removes the file begins anew.
"""

import os
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.performer import Performer


class Moment(int):
    """A moment as `LoopTimers.elapsed_us` returns it, with the processor time of its thread."""

    cpu_us: int


def elapsed_us(_: LoopTimers) -> Moment:
    """Return the moment, in microseconds."""
    moment = Moment(perf_counter_ns() // 1_000)
    moment.cpu_us = thread_time_ns() // 1_000
    return moment


def measure(path: Path) -> None:
    """Have all performers of this process measure processor time, too."""
    follow = Performer.follow
    longest_us = 0

    def followed(self: Performer, began_us: Any = None) -> None:
        nonlocal longest_us
        follow(self, began_us)
        if began_us is None:
            return
        turn_us = thread_time_ns() // 1_000 - began_us.cpu_us
        if turn_us > 1_000 and (turn_us > longest_us or not path.exists()):
            longest_us = turn_us
            path.write_text(str(turn_us))

    LoopTimers.elapsed_us = elapsed_us  # type: ignore[method-assign]
    Performer.follow = followed  # type: ignore[method-assign]


if "LIBRA_TURNS" in os.environ:
    measure(Path(os.environ["LIBRA_TURNS"]))
