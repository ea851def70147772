"""Measured turns: `bench/attacks` puts this directory on the PYTHONPATH of the servers that it attacks.

On shared cores a turn that computes for 2 ms may last 30 ms because another process had the core. This module
therefore also measures turns by the loop thread's processor time. It writes the longest turn of at least a
millisecond, in microseconds, to the file named by LIBRA_TURNS. Removing the file starts a new measurement.
"""

import os
from pathlib import Path
from time import perf_counter_ns, thread_time_ns
from typing import Any

from libramq.runtime.asyncio_seams import LoopTimers
from libramq.runtime.performer import Performer


class Moment(int):
    """A return value of `LoopTimers.elapsed_us` that also carries the thread's processor time."""

    cpu_us: int


def elapsed_us(_: LoopTimers) -> Moment:
    """Return the moment, in microseconds."""
    moment = Moment(perf_counter_ns() // 1_000)
    moment.cpu_us = thread_time_ns() // 1_000
    return moment


def measure(path: Path) -> None:
    """Make all performers of this process measure processor time as well."""
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
