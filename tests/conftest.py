"""Shared by all tests: fixtures, and the option that adds the tests against Apache's own programs."""

import faulthandler
import gc
import logging
import os
import shlex
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from hypothesis import settings

from tests import secrets
from tests.fakes import OPENED
from tests.times import Times

# An example's duration depends more on the machine's other work than on the code. A quick run has the same
# examples every time; LIBRA_EXPLORE=1 (scripts/search sets it) tries more and new ones.
settings.register_profile("quick", deadline=None, derandomize=True, max_examples=40)
settings.register_profile("thorough", deadline=None, max_examples=1_000)
settings.load_profile("thorough" if "LIBRA_EXPLORE" in os.environ else "quick")


#: The descriptors of this process, on systems that list them.
DESCRIPTORS = Path("/dev/fd")
#: How many descriptors a module may leave open: library caches, a first look at the time zone, a log file.
LEFT_MAX = 32
#: How long ending threads and connections may take.
CLOSING_S = 10.0
#: Tests whose servers and sessions live as long as the run.
SHARING = ("interop", "spark")
#: The extra time after which a test that ignores the time limit's signal has ended the run.
STUCK_S = 60
_stderr = pytest.StashKey[TextIO]()
_sharing = pytest.StashKey[set[Path]]()


# Modules and tests live as long as the run: scanning them for garbage took a third of the collection, and
# long afterwards at each full round of the collector.
gc.disable()


def pytest_collection_finish() -> None:
    gc.freeze()
    gc.enable()


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Times())
    config.stash[_stderr] = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
    # A shell starts background jobs with SIGINT ignored, and children inherit that: the programs that tests
    # interrupt would never receive it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interop", action="store_true", help="also run the tests that start Apache RocketMQ (Java, Maven)"
    )
    parser.addoption("--thorough", action="store_true", help="also run the long searches (marked thorough)")
    parser.addoption("--seed", type=int, default=0, help="where the long searches begin")
    parser.addoption(
        "--spark",
        choices=("all", "only", "none"),
        default="all",
        help="which tests to run: those that start Spark (it hangs under pytest-xdist), the others, or all",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--spark") != "all":
        starts_spark = config.getoption("--spark") == "only"
        left_out = [item for item in items if (item.get_closest_marker("spark") is not None) != starts_spark]
        items[:] = [item for item in items if (item.get_closest_marker("spark") is not None) == starts_spark]
        config.hook.pytest_deselected(items=left_out)
    if not config.getoption("--thorough"):
        searches = [item for item in items if item.get_closest_marker("thorough") is not None]
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
        config.hook.pytest_deselected(items=searches)
    config.stash[_sharing] = {item.path for item in items if any(map(item.get_closest_marker, SHARING))}
    wanted = config.getoption("--interop")
    for item in items:
        if item.get_closest_marker("interop") is None:  # Keywords also contain the directory's name.
            continue
        # Java programs start slowly and poll every 20 or 30 s; each wait inside has its own deadline.
        mark = pytest.mark.timeout(900) if wanted else pytest.mark.skip(reason="pytest --interop runs it")
        item.add_marker(mark)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the command that runs each failed test again; scripts/search repeats it."""
    options = terminalreporter.config.option
    explore = "LIBRA_EXPLORE=1 " if "LIBRA_EXPLORE" in os.environ else ""
    examples = getattr(options, "hypothesis_seed", None)
    chosen = {
        "--thorough": options.thorough,
        f"--seed {options.seed}": options.seed,
        f"--hypothesis-seed {examples}": examples,
    }
    others = "".join(f" {option}" for option, is_chosen in chosen.items() if is_chosen)
    reports = [*terminalreporter.getreports("failed"), *terminalreporter.getreports("error")]
    if failed := dict.fromkeys(report.nodeid for report in reports):
        terminalreporter.section("to run again")
        for nodeid in failed:
            interop = " --interop" if nodeid.startswith("tests/interop/") else ""
            terminalreporter.write_line(f"{explore}scripts/test{interop}{others} {shlex.quote(nodeid)}")


@pytest.fixture(scope="session")
def search_seed(request: pytest.FixtureRequest) -> int:
    """Return the seed at which a long search begins: the day's in a thorough run."""
    return int(request.config.getoption("--seed"))


@pytest.fixture(autouse=True, scope="session")
def _disk_that_is_never_awaited() -> Iterator[None]:
    """Flush nothing to the disk in this process: no test cuts the machine's power.

    Tests of flushing count the calls of their file system, or lose the unflushed data of a simulated disk.
    """
    with pytest.MonkeyPatch.context() as patched:
        for name in ("fsync", "fdatasync"):
            if hasattr(os, name):
                patched.setattr(os, name, os.fstat)  # It also refuses anything but a file.
        yield


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """If a test has passwords, check the command lines of the servers it has started."""
    yield
    if secrets.is_of_families(item.path):
        secrets.check_titles(item)


@pytest.fixture(autouse=True, scope="module")
def _no_secret_in_log_files(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Check the log files of servers in other processes, which their module's fixtures have ended by then."""
    began_ns = time.time_ns()
    yield
    if secrets.is_of_families(request.path):
        found = list(secrets.files_with_secrets(tmp_path_factory.getbasetemp(), began_ns))
        assert not found, found


@pytest.fixture(autouse=True)
def _no_secret_in_the_log(request: pytest.FixtureRequest) -> Iterator[None]:
    if secrets.is_of_families(request.path):
        yield from secrets.watched(logging.getLogger("libramq"))
    else:
        yield


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that run in this process configure logging to a standard error that ends with their test."""
    logger = logging.getLogger("libramq")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.fixture(autouse=True)
def _files_of_killed_brokers() -> Iterator[None]:
    """Close the files that a test's stores and brokers left open: after a kill nothing else does."""
    count = len(OPENED)  # Those with a wider scope were created earlier.
    yield
    for files in OPENED[count:]:
        files.close_all()
    del OPENED[count:]


@pytest.fixture(autouse=True, scope="module")
def _descriptors_are_closed(request: pytest.FixtureRequest) -> Iterator[None]:
    """Fail a module whose tests leave descriptors open: all modules of a run share a thousand."""
    if request.path in request.config.stash[_sharing] or not DESCRIPTORS.exists():
        yield
        return
    before = len(os.listdir(DESCRIPTORS))
    yield
    end_s = time.monotonic() + CLOSING_S
    while (left := len(os.listdir(DESCRIPTORS)) - before) > LEFT_MAX and time.monotonic() < end_s:
        gc.collect()  # Connections that refer to each other.
        time.sleep(0.05)  # Ending threads.
    assert left <= LEFT_MAX, f"{left} descriptors are left open by the tests of {request.path.name}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a stalled run: pytest-timeout's signal has no effect while C code waits forever."""
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit_s + STUCK_S, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
