"""Processor and waiting time by test file, as a plugin of pytest.

Each run writes `.cache/test-times/NAME.json`: for every file its processor seconds (this process, its
threads, and all processes below it), its seconds by the clock, and its number of tests; and of every failed
test its error's first line. `scripts/test-times` prints them.
"""

import ctypes
import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent
DIRECTORY = ROOT / ".cache" / "test-times"
#: The property of a test's last report that carries its two times, including through pytest-xdist.
PROPERTY = "libramq_times"
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")
#: Linux's name for it, in linux/prctl.h.
PR_SET_CHILD_SUBREAPER = 36
#: Limits an error's length: the rest is in the run's output.
ERROR_CHARACTERS_MAX = 300

_started = pytest.StashKey[tuple[float, float]]()


def _descendants(pid: int) -> Iterator[int]:
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        try:
            children = task.read_text().split()
        except OSError:  # The process or its thread has just ended.
            continue
        for child in map(int, children):
            yield child
            yield from _descendants(child)


def _ticks(pid: int) -> int:
    """Return a process's processor time in clock ticks, with that of the children it has waited for."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0
    return sum(map(int, fields[11:15]))  # utime, stime, cutime, cstime: fields 14 to 17 of proc(5).


def adopt_orphans() -> None:
    """Become the parent of processes below this one whose own parent ends first, so that their time counts.

    A test that kills a Spark driver leaves a Java process for ten seconds and more without a parent that
    waits for it: it stays below this process, with its times, until the run ends.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def processor_s() -> float:
    """Return the processor seconds of this process and all below it, including those that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    running = sum(map(_ticks, _descendants(os.getpid()))) / TICKS_A_SECOND
    return time.process_time() + ended.ru_utime + ended.ru_stime + running


def reference_s() -> float:
    """Return the processor seconds of a fixed piece of work, as a measure of this machine's speed."""
    began = time.process_time()
    table: dict[int, str] = {}
    for number in range(600_000):
        table[number % 1_000] = str(number)
    return time.process_time() - began


class Times:
    """Adds up the times of the reports that reach this process."""

    def __init__(self) -> None:
        adopt_orphans()
        self.files: dict[str, list[float]] = {}
        self.failures: dict[str, str] = {}

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> Iterator[None]:
        item.stash[_started] = processor_s(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: pytest.CallInfo[Any]) -> Iterator[Any]:
        report = yield
        if call.when == "teardown" and _started in item.stash:
            processor, wall = item.stash[_started]
            spent = max(0.0, processor_s() - processor), time.monotonic() - wall
            report.user_properties = [*report.user_properties, (PROPERTY, spent)]
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            error = str(crash.message if crash else report.longrepr).strip().partition("\n")[0]
            self.failures.setdefault(report.nodeid, error[:ERROR_CHARACTERS_MAX])
        for name, spent in report.user_properties:
            if name == PROPERTY and report.when == "teardown":
                file = self.files.setdefault(report.nodeid.partition("::")[0], [0.0, 0.0, 0])
                for index, value in enumerate((*spent, 1)):
                    file[index] += value

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if hasattr(session.config, "workerinput") or not self.files:
            return  # A worker's reports reach the process that started it.
        DIRECTORY.mkdir(parents=True, exist_ok=True)
        name = os.environ.get("LIBRAMQ_TEST_TIMES", "last")
        reference = min(reference_s() for _ in range(3))
        document = {"reference_s": reference, "files": self.files, "failures": self.failures}
        (DIRECTORY / f"{name}.json").write_text(json.dumps(document, indent=0))
