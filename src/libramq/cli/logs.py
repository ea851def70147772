"""Logging of the commands: one line per event, with date and time, to standard error; output can be piped."""

import logging
import sys

from libramq.cli.options import LogLevel


def set_up(level: LogLevel) -> None:
    """Show LibraMQ's events of this level and above."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(message)s"))
    logger = logging.getLogger("libramq")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.value.upper())
