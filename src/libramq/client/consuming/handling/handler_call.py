"""The call of a handler: its result as an ending, its failure in the log."""

import asyncio
import inspect
import sys
import threading
from collections.abc import Sequence

from libramq.errors import InvalidResult
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)


async def awaited(returned: object) -> object:
    """Return the final result of an awaitable; anything else is returned as it is."""
    while inspect.isawaitable(returned):
        returned = await returned
    return returned


def current_task() -> asyncio.Task[object] | None:
    """Return the task that the caller runs in, if any."""
    try:
        return asyncio.current_task()
    except RuntimeError:  # No loop runs on this thread.
        return None


def is_from_outside(error: BaseException) -> bool:
    """Return whether an exception came from outside: the task is cancelled, or the user pressed Ctrl-C."""
    if isinstance(error, asyncio.CancelledError):
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return isinstance(error, KeyboardInterrupt) and threading.current_thread() is threading.main_thread()


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
