"""The logging of commands, which run in the process of the tests."""

import logging

import pytest

from libramq.cli.logs import set_up
from libramq.cli.options import LogLevel
from libramq.logs import get_logger


@pytest.mark.parametrize("name", ["x\nFORGED", "x\x1b[2J", "x\u202eFORGED", "x\x85y", "x\ty"])
def test_an_event_is_one_line_without_effects_whatever_its_values(
    name: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "libramq"):
        get_logger("libramq.of.a.test").info("value set", key=name, by="127.0.0.1:1")
    (line,) = caplog.messages
    assert line == f"value set key={name!r} by=127.0.0.1:1"
    assert line.isprintable()


@pytest.mark.parametrize("turn", [1, 2])
def test_logging_set_up_by_a_command_ends_with_its_test(turn: int) -> None:
    """Later tests used to see nothing at the root logger, and a closed file was written to."""
    logger = logging.getLogger("libramq")
    assert (logger.propagate, logger.handlers) == (True, []), turn
    set_up(LogLevel.INFO)
    assert (logger.propagate, len(logger.handlers), logger.level) == (False, 1, logging.INFO)
