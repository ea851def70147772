"""The logging of commands, which run in the process of the tests."""

import logging

import pytest

from libramq.cli.logs import set_up
from libramq.cli.options import LogLevel


@pytest.mark.parametrize("turn", [1, 2])
def test_logging_set_up_by_a_command_ends_with_its_test(turn: int) -> None:
    """Later tests used to see nothing at the root logger, and a closed file was written to."""
    logger = logging.getLogger("libramq")
    assert (logger.propagate, logger.handlers) == (True, []), turn
    set_up(LogLevel.INFO)
    assert (logger.propagate, len(logger.handlers), logger.level) == (False, 1, logging.INFO)
