"""The logger: structured events over the standard library's logging.

A program that uses LibraMQ configures `logging.getLogger("libramq")`; by default warnings and errors go to
standard error, as for any library.
"""

import logging
from typing import Any

import structlog


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
