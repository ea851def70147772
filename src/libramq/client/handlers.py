"""The handlers: run the user's code on messages, away from the network thread, and report how it ended.

A plain function runs on a pool of threads, a coroutine function on the loop the consumer was started on; at
most `concurrency` at a time of either kind. Either may return an awaitable: it is awaited on the loop, while
the thread of a plain function waits for it.
Upstream: impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

import asyncio
import inspect
import sys
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from queue import SimpleQueue
from typing import Final

from libramq.client.core.handler_result import Ending, HandlerResult, Outcome, ending_of
from libramq.client.core.process_queue import Delivery
from libramq.errors import ConfigError, InvalidResult
from libramq.logs import get_logger
from libramq.message.message import MessageExt

log = get_logger(__name__)

#: Called with messages of one topic; returns what core/handler_result.py lists.
Handler = Callable[[list[MessageExt]], HandlerResult | Awaitable[HandlerResult]]
#: Called, from any thread, with a delivery and how it ended.
Report = Callable[[Delivery, Ending], None]

#: Ours: how long to wait for threads whose handlers were given up on.
JOIN_SECONDS: Final = 0.5


class Handlers:
    """Hands deliveries to the handlers of their topics."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        *,
        concurrency: int,
        loop: asyncio.AbstractEventLoop,
        report: Report,
    ) -> None:
        self._handlers = dict(handlers)
        self._report = report
        self._threads = _ThreadHandlers(self._handlers, concurrency, loop, report)
        self._tasks = _LoopHandlers(self._handlers, concurrency, loop, report)
        self._on_loop = {topic for topic, handler in handlers.items() if is_async(handler)}

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries; called on the network thread."""
        for_loop = []
        for delivery in deliveries:
            topic = delivery.messages[0].topic
            if topic in self._on_loop:
                for_loop.append(delivery)
            elif topic in self._handlers:
                self._threads.put(delivery)
            else:
                # The group's retry topic brings messages of topics that we have not subscribed to.
                log.warning("no handler for the topic of a retried message", topic=topic)
                self._report(delivery, Outcome.LATER)
        if for_loop:
            self._tasks.put(for_loop)

    def close(self) -> None:
        """End the threads that are idle; a handler that does not end keeps its (daemon) thread."""
        self._threads.close()


class _ThreadHandlers:
    """A pool of threads, started when the first delivery comes."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        count: int,
        loop: asyncio.AbstractEventLoop,
        report: Report,
    ) -> None:
        self._handlers = handlers
        self._count = count
        self._loop = loop
        self._report = report
        self._waiting: SimpleQueue[Delivery | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []

    def put(self, delivery: Delivery) -> None:
        # As many threads as ever had to wait at once, no more: idle ones only compete for the interpreter.
        if len(self._threads) < self._count and (not self._threads or self._waiting.qsize()):
            thread = threading.Thread(
                target=self._work, name=f"libramq-handler-{len(self._threads)}", daemon=True
            )
            self._threads.append(thread)
            thread.start()
        self._waiting.put(delivery)

    def close(self) -> None:
        for _ in self._threads:
            self._waiting.put(None)
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def _work(self) -> None:
        while (delivery := self._waiting.get()) is not None:
            self._report(delivery, self._run(delivery))

    def _run(self, delivery: Delivery) -> Ending:
        if not delivery.begin():
            return Outcome.SKIPPED
        messages = delivery.messages
        try:
            returned = self._handlers[messages[0].topic](list(messages))
            return ending_of(self._awaited(returned), messages)
        except Exception:
            _log_failure(messages)
            return Outcome.LATER

    def _awaited(self, returned: object) -> object:
        if not inspect.isawaitable(returned):
            return returned
        # The thread waits, so that no more than `count` run at once.
        return asyncio.run_coroutine_threadsafe(awaited(returned), self._loop).result()


class _LoopHandlers:
    """Tasks on the loop that the consumer was started on."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        count: int,
        loop: asyncio.AbstractEventLoop,
        report: Report,
    ) -> None:
        self._handlers = handlers
        self._count = count
        self._loop = loop
        self._report = report
        self._waiting: deque[Delivery] = deque()
        self._running: set[asyncio.Task[None]] = set()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        try:
            self._loop.call_soon_threadsafe(self._accept, deliveries)
        except RuntimeError:  # The loop has been closed under us.
            for delivery in deliveries:
                self._report(delivery, Outcome.SKIPPED)

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        self._waiting.extend(deliveries)
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._count:
            task = self._loop.create_task(self._run(self._waiting.popleft()))
            self._running.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._start()

    async def _run(self, delivery: Delivery) -> None:
        if not delivery.begin():
            self._report(delivery, Outcome.SKIPPED)
            return
        messages = delivery.messages
        ending: Ending = Outcome.LATER
        try:
            ending = ending_of(await awaited(self._handlers[messages[0].topic](list(messages))), messages)
        except Exception:
            _log_failure(messages)
        finally:
            self._report(delivery, ending)


def is_async(handler: Handler) -> bool:
    """Whether a handler is a coroutine function, or an object with one as its call."""
    return _is(handler, inspect.iscoroutinefunction)


def check_handler(handler: object, topic: str) -> None:
    """Raise ConfigError for what cannot be a handler."""
    if not callable(handler):
        raise ConfigError(f"the handler of topic {topic} is {handler!r}, not a function")
    if _is(handler, inspect.isgeneratorfunction) or _is(handler, inspect.isasyncgenfunction):
        raise ConfigError(
            f"the handler of topic {topic} is a generator function (it has a `yield`): a call of it would "
            "never run its body; make it a plain function or a coroutine function"
        )


def _is(handler: object, kind: Callable[[object], bool]) -> bool:
    """Whether a handler is a function of a kind, or an object with one as its call."""
    return kind(handler) or kind(getattr(handler, "__call__", None))  # noqa: B004 # Its call, not callable().


async def awaited(returned: object) -> object:
    """Return what comes of an awaitable in the end; anything else is returned as it is."""
    while inspect.isawaitable(returned):
        returned = await returned
    return returned


def _log_failure(messages: Sequence[MessageExt]) -> None:
    error = sys.exception()
    if isinstance(error, InvalidResult):  # Its text says it all.
        log.error("its messages are delivered again later", reason=str(error), messages=len(messages))
        return
    first = messages[0]
    log.exception(
        "a handler failed; its messages are delivered again later",
        topic=first.topic,
        message_id=first.message_id,
        messages=len(messages),
    )
