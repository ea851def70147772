"""The handlers run the user's functions on threads or on the user's loop, a limited number at a time, and
report how each ended.

    plain function      ─► HandlerThreads ─► an awaitable it returns: on the loop, while its thread waits
    coroutine function  ─► HandlerTasks, on the loop that the consumer was started on

At most `threads` of either kind run at a time. Each ending is reported exactly once.
Upstream: impl/consumer/ConsumeMessageConcurrentlyService.java.
"""

import asyncio
import inspect
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from contextvars import ContextVar
from functools import partial
from typing import Any, Final, Protocol, cast

from libramq.client.awaiting import awaited, current_task, is_from_outside
from libramq.client.consuming.consumer_settings import ConsumerSettings
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, HandlerResult, ending_of
from libramq.client.consuming.handling.send_back import REDELIVERED, failure_of
from libramq.client.consuming.queues.owned_queue import Delivery
from libramq.clock import SystemClock
from libramq.errors import ConfigError, InvalidResult
from libramq.logs import BoundedLog, get_logger
from libramq.message.message import MessageExt, handed_out

log = get_logger(__name__)

#: Ours: a longer traceback is cut, as the text of an exception may contain a message's body.
TRACEBACK_CHARACTERS_MAX: Final = 16_384
#: Ours: how much of such an exception's text is kept.
TEXT_CHARACTERS_MAX: Final = 1_024


class LongError(Exception):
    """Logged in place of an exception that is too long, with its frames and the beginning of its text."""


class FailureLog:
    """Logs exceptions of handlers and their consequences: some lines in ten seconds, then a count.

    settings: the consumer's, if they are known.
    """

    def __init__(self, settings: ConsumerSettings | None = None) -> None:
        self._settings = settings
        self._lines = BoundedLog(_write_failure, SystemClock().monotonic_ms)

    def __call__(self, messages: Sequence[MessageExt], topic: str) -> None:
        """Log the exception that a handler has just raised; never raises itself."""
        follows, about = failure_of(messages, self._settings) if self._settings else (REDELIVERED, {})
        self._lines(
            "a handler failed",
            follows=follows,
            exception=sys.exception(),
            topic=topic,
            message_id=messages[0].message_id,
            messages=len(messages),
            **about,
        )


def _write_failure(event: str, *, follows: str, exception: BaseException, **about: object) -> None:
    try:
        if isinstance(exception, InvalidResult):  # Its text is enough, without a traceback.
            log.error(f"{event}; {follows}", reason=str(exception)[:TEXT_CHARACTERS_MAX], **about)
            return
        if isinstance(exception, asyncio.CancelledError | GeneratorExit):
            log.warning(f"a handler was cancelled; {follows}", **about)
            return
        if isinstance(exception, SystemExit):
            about["remedy"] = "to end the program, have its main task stop the consumer"
        log.error(f"{event}; {follows}", exc_info=_cut(exception), **about)
    except Exception:  # The exception cannot even be formatted.
        log.error(f"{event}; {follows}", error=type(exception).__name__, **about)


def _cut(exception: BaseException) -> BaseException:
    """Return the exception to log: this one, or a short replacement if it is too long."""
    size = sum(map(len, traceback.format_exception(exception)))
    if size <= TRACEBACK_CHARACTERS_MAX:
        return exception
    begins = f"{type(exception).__name__}: {str(exception)[:TEXT_CHARACTERS_MAX]}"
    left = LongError(f"{begins}… (cut: {size:,} characters, with its causes)")
    return left.with_traceback(exception.__traceback__)


#: Ours: how long to wait after a cancelled handler. A loop that is ending, and cancels all tasks, has ended
#: by then.
CANCELLED_PAUSE_S: Final = 0.1


class HandlerRun(Protocol):
    """The part of a running consumer that its handlers use."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """Return the loop that it was started on."""

    def report(self, delivery: Delivery, ending: Ending) -> None:
        """Take the ending of a delivery; called from any thread."""

    def loop_closed(self) -> None:
        """Note that the loop was closed; called from any thread."""


class Receiver:
    """Passes messages to user code. The first three methods are called on the network thread."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Take messages."""
        raise NotImplementedError

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return."""

    def kept_out(self) -> None:
        """Handle a problem that keeps the consumer out of its group (`ConsumerRun.problem`)."""

    def is_current(self) -> bool:
        """Return whether the caller is a handler."""
        return False

    def close(self) -> None:
        """Close: no more messages will come."""

    def forked(self) -> None:
        """Start nothing more: in a forked child, the messages are the parent's."""


class HandlerTasks:
    """Runs coroutine functions as tasks of the loop, at most `count`; further deliveries wait.

    Other threads call only `put` and `give_up`.
    """

    def __init__(
        self,
        handlers: Mapping[str, Callable[[list[MessageExt]], Any]],
        run: HandlerRun,
        *,
        count: int,
        log_failure: FailureLog,
    ) -> None:
        self._handlers = dict(handlers)
        self._log_failure = log_failure
        self._count = count
        self._run, self._loop = run, run.loop
        self._waiting: deque[Delivery] = deque()
        self._running: dict[Delivery, asyncio.Task[None]] = {}
        # Cancelled but not finished; referenced so that they are not collected.
        self._abandoned: set[asyncio.Task[None]] = set()

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries."""
        self._call(self._accept, deliveries)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Cancel handlers, and free their places at once."""
        self._call(self._cancel, deliveries)

    def forked(self) -> None:
        """Start nothing more."""
        self._count = 0

    def is_current(self) -> bool:
        """Return whether the caller is one of the tasks."""
        task = current_task()
        return task is not None and (task in self._running.values() or task in self._abandoned)

    def _call(self, function: Callable[[Sequence[Delivery]], None], deliveries: Sequence[Delivery]) -> None:
        try:
            self._loop.call_soon_threadsafe(function, deliveries)
        except RuntimeError:  # The loop is closed. No report is needed: this ends the consumer.
            self._run.loop_closed()

    def _accept(self, deliveries: Sequence[Delivery]) -> None:
        self._waiting.extend(deliveries)
        self._start()

    def _cancel(self, deliveries: Sequence[Delivery]) -> None:
        for delivery in deliveries:
            task = self._running.pop(delivery, None)
            if task is not None:
                self._abandoned.add(task)
                task.cancel()
        self._start()

    def _start(self) -> None:
        while self._waiting and len(self._running) < self._count:
            delivery = self._waiting.popleft()
            if not delivery.begin():  # Its queue is no longer read: no task is needed.
                self._run.report(delivery, HandlerOutcome.SKIPPED)
                continue
            task = self._loop.create_task(self._handle(delivery))
            self._running[delivery] = task
            task.add_done_callback(partial(self._ended, delivery))

    def _ended(self, delivery: Delivery, task: asyncio.Task[None]) -> None:
        if task in self._abandoned:
            self._abandoned.discard(task)
        else:
            del self._running[delivery]
            if task.cancelled():  # From outside, perhaps by an ending loop, where nothing may begin.
                self._loop.call_later(CANCELLED_PAUSE_S, self._start)
                return
        if not task.cancelled():
            task.exception()  # Ctrl-C only, which the loop has raised already.
        self._start()

    async def _handle(self, delivery: Delivery) -> None:
        messages = delivery.messages
        topic = messages[0].topic
        ending: Ending = HandlerOutcome.LATER
        try:
            handed = handed_out(messages)
            ending = ending_of(await awaited(self._handlers[topic]([*handed])), messages, handed)
        except BaseException as error:
            delivery.raised(error)
            self._log_failure(messages, topic)
            if is_from_outside(error):
                raise
        finally:
            self._run.report(delivery, ending)


#: Ours: how long to wait for threads with abandoned handlers.
JOIN_SECONDS: Final = 0.5


class HandlerThreads:
    """Runs plain functions on a pool of threads.

        put ─► waiting ─► a thread: begin ─► the function ─► [its awaitable, on the loop] ─► report

    A thread is started when a delivery would have to wait and fewer than `count` threads take deliveries. A
    thread whose handler was abandoned does not count; when that handler returns after all, the thread ends,
    unless its place is still free.
    """

    def __init__(
        self,
        handlers: Mapping[str, Callable[[list[MessageExt]], Any]],
        run: HandlerRun,
        *,
        count: int,
        log_failure: FailureLog,
    ) -> None:
        self._handlers = dict(handlers)
        self._log_failure = log_failure
        self._count = count
        self._run, self._loop = run, run.loop
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        # All guarded by the lock, which is on the hot path: every delivery takes it twice.
        self._waiting: deque[Delivery] = deque()
        self._threads: dict[int, threading.Thread] = {}  # By thread id.
        self._taking = 0  # Threads that take deliveries: idle, or with a handler that is not abandoned.
        self._idle = 0
        self._running: dict[Delivery, Future[object] | None] = {}  # With the awaitable, if any.
        self._abandoned: set[Delivery] = set()
        self._number = 0
        self._tasks: set[asyncio.Task[Any]] = set()  # Awaitables on the loop, for which threads wait.
        self._is_closed = False

    def put(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries."""
        with self._lock:
            self._waiting.extend(deliveries)
            self._grow()
            self._change.notify(len(deliveries))

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of threads that run these, and cancel the awaitables they wait for."""
        with self._lock:
            for delivery in deliveries:
                if delivery in self._running and delivery not in self._abandoned:
                    self._abandoned.add(delivery)
                    self._taking -= 1
            awaitables = [self._running.get(delivery) for delivery in deliveries]
            self._grow()
        for awaitable in awaitables:
            if awaitable is not None:
                awaitable.cancel()

    def is_current(self) -> bool:
        """Return whether the caller is one of the threads, or an awaitable that one waits for."""
        return threading.get_ident() in self._threads or current_task() in self._tasks

    def close(self) -> None:
        """End the idle threads, and the others when their handlers return."""
        with self._lock:
            self._is_closed = True
            self._waiting.clear()
            self._change.notify_all()
            threads = list(self._threads.values())
            if self._loop.is_closed():
                for awaitable in self._running.values():
                    if awaitable is not None:
                        awaitable.cancel()
        deadline = time.monotonic() + JOIN_SECONDS
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))

    def forked(self) -> None:
        """Start nothing more; if a handler forked, its thread ends with it, and no other thread runs."""
        self._lock = threading.Lock()  # Another thread may have held it, or waited for the change.
        self._change = threading.Condition(self._lock)
        self._is_closed = True
        self._waiting.clear()

    def _grow(self) -> None:
        # No more threads than ever had to run at once: idle ones only compete for the interpreter lock.
        while len(self._waiting) > self._idle and self._taking < self._count and not self._is_closed:
            self._taking += 1
            self._idle += 1  # It takes a delivery as soon as it runs.
            thread = threading.Thread(target=self._work, name=f"libramq-handler-{self._number}", daemon=True)
            self._number += 1
            try:
                thread.start()
            except RuntimeError as error:  # The system allows no more, or the interpreter is shutting down.
                self._taking -= 1
                self._idle -= 1
                log.error("a handler's thread could not be started", reason=str(error), threads=self._taking)
                return

    def _work(self) -> None:
        ident = threading.get_ident()
        with self._lock:
            self._threads[ident] = threading.current_thread()
            self._idle -= 1
        delivery = self._next()
        while delivery is not None:
            ending: Ending = HandlerOutcome.LATER
            try:
                ending = self._handle(delivery)
            finally:  # Last: a delivery that has not begun may be put again at once, for another thread.
                goes_on = self._ended(delivery)
                self._run.report(delivery, ending)
            delivery = self._next() if goes_on else None
        with self._lock:
            del self._threads[ident]

    def _ended(self, delivery: Delivery) -> bool:
        """Return whether the thread continues after this delivery."""
        with self._lock:
            del self._running[delivery]
            if delivery in self._abandoned:
                self._abandoned.discard(delivery)
                if self._taking >= self._count:
                    return False
                self._taking += 1
            return True

    def _next(self) -> Delivery | None:
        """Return the next delivery; None if the thread should end."""
        with self._lock:
            while not self._waiting:
                if self._is_closed:
                    return None
                self._idle += 1
                self._change.wait()
                self._idle -= 1
            delivery = self._waiting.popleft()
            self._running[delivery] = None
            return delivery

    def _handle(self, delivery: Delivery) -> Ending:
        if not delivery.begin():
            return HandlerOutcome.SKIPPED
        messages = delivery.messages
        topic = messages[0].topic
        try:
            handed = handed_out(messages)
            returned = self._handlers[topic]([*handed])
            if inspect.isawaitable(returned):
                returned = self._await(delivery, returned)
            return ending_of(returned, messages, handed)
        except BaseException as error:  # Even SystemExit: it ends the handler, not the thread.
            delivery.raised(error)
            self._log_failure(messages, topic)
            if self._loop.is_closed():
                self._run.loop_closed()
                return HandlerOutcome.SKIPPED
            return HandlerOutcome.LATER

    def _await(self, delivery: Delivery, awaitable: Awaitable[object]) -> object:
        # The thread waits, so that no more than `count` run at once.
        coroutine = self._await_on_loop(awaitable)
        try:
            future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        except RuntimeError:  # The loop is closed.
            coroutine.close()
            if inspect.iscoroutine(awaitable):
                awaitable.close()
            raise
        with self._lock:
            self._running[delivery] = future
            if delivery in self._abandoned:
                future.cancel()
        result = future.result()
        if isinstance(result, _Raised):
            raise result.error
        return result

    async def _await_on_loop(self, awaitable: Awaitable[object]) -> object:
        task = asyncio.current_task()
        assert task is not None, "run_coroutine_threadsafe makes a task"
        self._tasks.add(task)
        try:
            return await awaited(awaitable)
        except BaseException as error:  # SystemExit would end the user's loop.
            if is_from_outside(error):
                raise
            return _Raised(error)
        finally:
            self._tasks.discard(task)


class _Raised:
    """An exception that an awaitable raised, on its way from the loop to the thread."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


#: Called with messages of one topic; handler_result.py lists the results.
Handler = Callable[[list[MessageExt]], HandlerResult | Awaitable[HandlerResult]]
#: Whether the running handler gets the messages of a queue in order: an unfinished one blocks later ones.
is_in_order: Final = ContextVar("is_in_order", default=False)


class Handlers(Receiver):
    """Passes deliveries to the handlers of their topics."""

    def __init__(
        self,
        handlers: Mapping[str, Handler],
        run: HandlerRun,
        settings: ConsumerSettings,
    ) -> None:
        self._run = run
        count, log_failure = settings.threads, FailureLog(settings)
        self._topics = frozenset(handlers)
        self._on_loop = {topic for topic, handler in handlers.items() if is_async(handler)}
        self._threads = HandlerThreads(handlers, run, count=count, log_failure=log_failure)
        self._tasks = HandlerTasks(handlers, run, count=count, log_failure=log_failure)

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
                self._run.report(delivery, HandlerOutcome.FOREIGN)
        if for_threads:
            self._threads.put(for_threads)
        if for_loop:
            self._tasks.put(for_loop)

    def give_up(self, deliveries: Sequence[Delivery]) -> None:
        """Free the places of handlers that do not return; called on the network thread."""
        self._threads.give_up(deliveries)
        self._tasks.give_up(deliveries)

    def is_current(self) -> bool:
        """Return whether the caller is a handler."""
        return self._threads.is_current() or self._tasks.is_current()

    def close(self) -> None:
        """End the idle threads; a handler that does not return keeps its (daemon) thread."""
        self._threads.close()

    def forked(self) -> None:
        """Start no other handler: in a forked child, only the handler that forked runs on."""
        self._threads.forked()
        self._tasks.forked()


def in_order(handler: Handler) -> Handler:
    """Return the handler as an orderly consumer calls it, with `is_in_order` set."""
    return prepared(handler, lambda _: is_in_order.set(True))


def prepared(handler: Handler, prepare: Callable[[list[MessageExt]], object]) -> Handler:
    """Return a handler that first calls another function with the messages, in its task or thread."""
    if is_async(handler):

        async def on_loop(messages: list[MessageExt]) -> HandlerResult:
            prepare(messages)
            return await cast(Awaitable[HandlerResult], handler(messages))

        return on_loop

    def on_thread(messages: list[MessageExt]) -> HandlerResult | Awaitable[HandlerResult]:
        prepare(messages)
        return handler(messages)

    return on_thread


def is_async(handler: Handler) -> bool:
    """Return whether a handler is a coroutine function, or an object whose `__call__` is one."""
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
