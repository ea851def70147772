"""The call of a handler: its failure in the log."""

import asyncio
import sys
from collections.abc import Sequence

from libramq.errors import InvalidResult
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)


def log_failure(messages: Sequence[MessageExt], topic: str) -> None:
    """Log the exception that a handler has just raised; never raises itself."""
    error = sys.exception()
    about = {"topic": topic, "messages": len(messages)}
    try:
        if isinstance(error, InvalidResult):  # Its text is enough, without a traceback.
            log.error(
                "messages of a failed handler are redelivered later",
                reason=str(error),
                messages=len(messages),
            )
            return
        if isinstance(error, asyncio.CancelledError | GeneratorExit):
            log.warning("a handler was cancelled; its messages are redelivered later", **about)
            return
        if isinstance(error, SystemExit):
            about["remedy"] = "to end the program, have its main task stop the consumer"
        log.exception(
            "a handler failed; its messages are redelivered later",
            message_id=messages[0].message_id,
            **about,
        )
    except Exception:  # The exception cannot even be formatted.
        log.error("a handler failed; its messages are redelivered later", error=type(error).__name__, **about)
