"""The handlers: run the user's code on messages, away from the network thread, and report each ending.

    plain function      ─► HandlerThreads ─► an awaitable it returns: on the loop, while its thread waits
    coroutine function  ─► HandlerTasks, on the loop that the consumer was started on

At most `concurrency` of either kind run at a time. Each ending is reported exactly once.
Upstream: impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Final, cast

from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, HandlerResult
from libramq.client.consuming.handling.handler_tasks import HandlerTasks
from libramq.client.consuming.handling.handler_threads import HandlerThreads
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.errors import ConfigError
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)

#: Called with messages of one topic; returns what handler_result.py lists.
Handler = Callable[[list[MessageExt]], HandlerResult | Awaitable[HandlerResult]]
#: Whether the running handler gets the messages of a queue in order: what is left holds up what is behind it.
is_in_order: Final = ContextVar("is_in_order", default=False)


class Handlers:
    """Passes deliveries to the handlers of their topics."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Delivery, Ending], None],
        loop_closed: Callable[[], None],
    ) -> None:
        """report: called from any thread with each ending. loop_closed: called when the loop is closed."""
        self._report = report
        self._topics = frozenset(handlers)
        self._on_loop = {topic for topic, handler in handlers.items() if is_async(handler)}
        self._threads = HandlerThreads(
            handlers, count=concurrency, loop=loop, report=report, loop_closed=loop_closed
        )
        self._tasks = HandlerTasks(
            handlers, count=concurrency, loop=loop, report=report, loop_closed=loop_closed
        )

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries; called on the network thread."""
        for_loop, for_threads = [], []
        for delivery in deliveries:
            topic = delivery.messages[0].topic
            if topic in self._on_loop:
                for_loop.append(delivery)
            elif topic in self._topics:
                for_threads.append(delivery)
            else:
                # The group's retry topic may hold messages of topics that this member does not subscribe to.
                self._report(delivery, HandlerOutcome.FOREIGN)
        if for_threads:
            self._threads.put(for_threads)
        if for_loop:
            self._tasks.put(for_loop)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return; called on the network thread."""
        self._threads.give_up(deliveries)
        self._tasks.give_up(deliveries)

    def kept_out(self) -> None:
        """Do nothing: the user hears of it by `on_error` and `wait_closed`."""

    def is_current(self) -> bool:
        """Return whether the caller is a handler."""
        return self._threads.is_current() or self._tasks.is_current()

    def close(self) -> None:
        """End the idle threads; a handler that does not return keeps its (daemon) thread."""
        self._threads.close()


def in_order(handler: Handler) -> Handler:
    """Return the handler as an orderly consumer calls it, with `is_in_order` set."""
    if is_async(handler):

        async def on_loop(messages: list[MessageExt]) -> HandlerResult:
            is_in_order.set(True)  # In the context of the delivery's own task.
            return await cast(Awaitable[HandlerResult], handler(messages))

        return on_loop

    def on_thread(messages: list[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        is_in_order.set(True)  # The threads are the consumer's, too.
        return handler(messages)

    return on_thread


def is_async(handler: Handler) -> bool:
    """Return whether a handler is a coroutine function, or an object with one as its call."""
    return _is(handler, inspect.iscoroutinefunction)


def check_handler(handler: object, topic: str) -> None:
    """Raise ConfigError for anything that cannot be a handler."""
    if not callable(handler):
        raise ConfigError(f"the handler of topic {topic} is {handler!r}, not a function")
    if _is(handler, inspect.isgeneratorfunction) or _is(handler, inspect.isasyncgenfunction):
        raise ConfigError(
            f"the handler of topic {topic} is a generator function (it has a `yield`): a call of it would "
            "never run its body; make it a plain function or a coroutine function"
        )


def _is(handler: object, kind: Callable[[object], bool]) -> bool:
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004 # Its call, not callable().
