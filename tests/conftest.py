"""What every test shares: the option that adds the tests against Apache's own programs."""

import faulthandler
import logging
import os
import signal
import sys
from collections.abc import Iterator
from typing import TextIO

import pytest
from hypothesis import settings

# How long one example takes says more about the machine's other work than about the code. The examples are
# the same in every run; LIBRA_EXPLORE=1 looks for new ones.
settings.register_profile("ours", deadline=None, derandomize="LIBRA_EXPLORE" not in os.environ)
settings.load_profile("ours")


#: How long after its time limit a test that the limit's signal does not end has ended the run.
STUCK_S = 60
_stderr = pytest.StashKey[TextIO]()


def pytest_configure(config: pytest.Config) -> None:
    config.stash[_stderr] = os.fdopen(os.dup(sys.__stderr__.fileno()), "w")
    # A shell starts what it runs in the background with SIGINT ignored, and children inherit that: the
    # programs that tests interrupt would never hear of it.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--interop", action="store_true", help="also run the tests that start Apache RocketMQ (Java, Maven)"
    )
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
    wanted = config.getoption("--interop")
    for item in items:
        if item.get_closest_marker("interop") is None:  # The keywords also hold the directory of that name.
            continue
        # Java programs start slowly and look around every 20 or 30 s; each wait inside has its own deadline.
        mark = pytest.mark.timeout(900) if wanted else pytest.mark.skip(reason="pytest --interop runs it")
        item.add_marker(mark)


@pytest.fixture(autouse=True)
def _logging_as_it_was() -> Iterator[None]:
    """Commands that run in this process set up logging, for a standard error that ends with their test."""
    logger = logging.getLogger("libramq")
    handlers, level, propagate = logger.handlers[:], logger.level, logger.propagate
    yield
    logger.handlers[:], logger.propagate = handlers, propagate
    logger.setLevel(level)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """End a run that stands still: pytest-timeout's signal is not heard where C code waits for ever."""
    marker = item.get_closest_marker("timeout")
    limit_s = float(marker.args[0] if marker and marker.args else item.config.getini("timeout"))
    faulthandler.dump_traceback_later(limit_s + STUCK_S, exit=True, file=item.config.stash[_stderr])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()
