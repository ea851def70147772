"""The logger: structured events over the standard library's logging, the format of a line, and the limit of
lines a second that others can cause.

A program that uses LibraMQ configures `logging.getLogger("libramq")`, or calls `log_to_stderr`; by default
warnings and errors go to standard error, as for any library. A record has the text of its event as `event`,
and its values as the mapping `values`.
"""

import json as json_text
import logging
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from libramq.clock import MonotonicMs
from libramq.errors import ConfigError, did_you_mean

#: Ours: events that anybody can cause by connecting are logged this often, and counted beyond that.
LINES_MAX: Final = 10
LINES_MS: Final = 10_000
LEVELS: Final = ("debug", "info", "warning", "error")
LINE: Final = "%(asctime)s %(levelname)-7s %(message)s"


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
    passed_on: dict[str, Any] = {"exc_info": event.pop("exc_info")} if "exc_info" in event else {}
    text = str(event.pop("event"))
    passed_on["extra"] = {"event": text, "values": event}
    return (" ".join([text, *(f"{key}={_value(value)}" for key, value in event.items())]),), passed_on


def _value(value: object) -> str:
    """Return a value as one word: others may send line ends to forge events, or control sequences."""
    text = str(value)
    return text if text and " " not in text and text.isprintable() else repr(text)


def log_to_stderr(level: str = "info", *, json: bool = False) -> None:
    """Write LibraMQ's events of a level and above to standard error, one a line, and to no other handler.

    level: debug, info, warning or error. json: a line is a JSON object. A second call replaces the first.
    """
    if not isinstance(level, str) or level.lower() not in LEVELS:
        hint = did_you_mean(str(level), LEVELS)
        raise ConfigError(f"there is no level {level!r}{hint}: there are {', '.join(LEVELS)}")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(JsonLines() if json else logging.Formatter(LINE))
    logger = logging.getLogger("libramq")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel(level.upper())


class JsonLines(logging.Formatter):
    """Formats a record as a line of JSON: time (UTC), level, logger, event, the event's values, traceback."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line."""
        row: dict[str, object] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "event": getattr(record, "event", None) or record.getMessage(),
        }
        for key, value in getattr(record, "values", {}).items():
            row[f"{key}_" if key in row else key] = value
        if record.exc_info:
            row["traceback"] = self.formatException(record.exc_info)
        return json_text.dumps(row, default=str)


class BoundedLines:
    """Logs what others can cause: some lines per event in ten seconds, then the number of suppressed ones.

    write: a logger's method. Its events are literals, so they are few.
    """

    def __init__(self, write: Callable[..., Any]) -> None:
        self._write = write
        self._lines: dict[str, tuple[MonotonicMs, int]] = {}

    def at(self, now_ms: MonotonicMs, event: str, **values: object) -> None:
        """Log an event, unless it was logged too often recently."""
        since_ms, count = self._lines.get(event, (now_ms, 0))
        if now_ms - since_ms >= LINES_MS:
            if count > LINES_MAX:
                values["left_out"] = count - LINES_MAX
            since_ms, count = now_ms, 0
        self._lines[event] = since_ms, count + 1
        if count < LINES_MAX:
            self._write(event, **values)


class BoundedLog(BoundedLines):
    """Bounded lines that take the time from a clock."""

    def __init__(self, write: Callable[..., Any], monotonic_ms: Callable[[], MonotonicMs]) -> None:
        super().__init__(write)
        self._monotonic_ms = monotonic_ms

    def __call__(self, event: str, **values: object) -> None:
        """Log an event, unless it was logged too often recently."""
        self.at(self._monotonic_ms(), event, **values)
