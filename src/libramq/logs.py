"""The logger: structured events over the standard library's logging.

A program that uses LibraMQ configures `logging.getLogger("libramq")`; by default warnings and errors go to
standard error, as for any library.
"""

import logging
from collections.abc import Callable
from typing import Any, Final

import structlog

from libramq.clock import MonotonicMs

#: Ours: what anybody can cause by connecting is logged so often, and counted beyond that.
LINES_MAX: Final = 10
LINES_MS: Final = 10_000


def get_logger(name: str) -> structlog.stdlib.BoundLogger:
    """Return a logger; calls name an event and its values: `log.warning("broker lost", address=address)`."""
    logger: structlog.stdlib.BoundLogger = structlog.wrap_logger(
        logging.getLogger(name),
        processors=[structlog.stdlib.filter_by_level, _render],
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=True,
    )
    return logger


def _render(
    _logger: Any, _method: str, event: structlog.typing.EventDict
) -> tuple[tuple[str], dict[str, Any]]:
    """Render the event and its values as one line; the standard library prints tracebacks."""
    passed_on = {"exc_info": event.pop("exc_info")} if "exc_info" in event else {}
    parts = [str(event.pop("event")), *(f"{key}={_value(value)}" for key, value in event.items())]
    return (" ".join(parts),), passed_on


def _value(value: object) -> str:
    """Return a value as one word: others send line ends that forge events, and control sequences."""
    text = str(value)
    return text if text and " " not in text and text.isprintable() else repr(text)


class BoundedLog:
    """Logs what others can cause: of each event some lines in ten seconds, then how many were left out.

    write: a logger's method. Its events are literals, so they are few.
    """

    def __init__(self, write: Callable[..., Any], monotonic_ms: Callable[[], MonotonicMs]) -> None:
        self._write = write
        self._monotonic_ms = monotonic_ms
        self._lines: dict[str, tuple[MonotonicMs, int]] = {}

    def __call__(self, event: str, **values: object) -> None:
        """Log an event, unless it was logged too often lately."""
        now_ms = self._monotonic_ms()
        since_ms, count = self._lines.get(event, (now_ms, 0))
        if now_ms - since_ms >= LINES_MS:
            if count > LINES_MAX:
                values["left_out"] = count - LINES_MAX
            since_ms, count = now_ms, 0
        self._lines[event] = since_ms, count + 1
        if count < LINES_MAX:
            self._write(event, **values)
