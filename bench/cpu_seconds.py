"""Processor time of other processes in nanoseconds, and confidence intervals for comparisons."""

import math
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

#: Student's t, two-sided 95 %, by degrees of freedom; between entries the next smaller one applies.
T_95 = {
    1: 12.71, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 6: 2.447, 7: 2.365, 8: 2.306, 9: 2.262, 10: 2.228,
    12: 2.179, 15: 2.131, 20: 2.086, 30: 2.042, 60: 2.000, 120: 1.980,
}  # fmt: skip


def cpu_ns(pid: int) -> int:
    """Return the processor time of all threads of a process, including ended ones.

    /proc/PID/stat has the same in ticks of 10 ms. The clock of another process is ~pid << 3 | 2, as
    clock_getcpuclockid(3) returns it (CPUCLOCK_SCHED in the Linux headers).
    """
    return time.clock_gettime_ns(~pid << 3 | 2)


def wakeups(pid: int) -> int:
    """Return how often the living threads of a process went to sleep or were interrupted."""
    total = 0
    for status in Path(f"/proc/{pid}/task").glob("*/status"):
        lines = status.read_text().splitlines()
        total += sum(int(line.split()[1]) for line in lines if "ctxt_switches" in line)
    return total


class Ratio(NamedTuple):
    """An after/before ratio with its 95 % interval."""

    mean: float
    lower: float
    upper: float

    @property
    def half_width(self) -> float:
        return (self.upper - self.lower) / 2


def interval(ratios: Sequence[float]) -> Ratio:
    """Return the geometric mean of ratios, with Student's t on their logarithms."""
    logs = [math.log(each) for each in ratios]
    mean = statistics.fmean(logs)
    if len(logs) < 2:
        return Ratio(math.exp(mean), 0.0, math.inf)
    freedom = max(known for known in T_95 if known <= len(logs) - 1)
    margin = T_95[freedom] * statistics.stdev(logs) / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - margin), math.exp(mean + margin))
