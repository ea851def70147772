"""The handler threads: they run plain functions.

    put ─► waiting ─► a thread: begin ─► the function ─► [its awaitable, on the loop] ─► report

A thread is started when a delivery would have to wait and fewer than `count` threads take deliveries. A
thread whose handler was abandoned does not count; when that handler returns after all, the thread ends,
unless its place is still free.
"""

import asyncio
import inspect
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

from libramq.client.awaiting import awaited, current_task, is_from_outside
from libramq.client.consuming.handling.handler_call import log_failure
from libramq.client.consuming.handling.handler_result import Ending, HandlerOutcome, ending_of
from libramq.client.consuming.ownership.owned_queue import Delivery
from libramq.logs import get_logger
from libramq.message.message import MessageExt, handed_out

log = get_logger(__name__)

#: Ours: how long to wait for threads with abandoned handlers.
JOIN_SECONDS: Final = 0.5


class HandlerThreads:
    """A pool of threads, started as deliveries need them."""

    def __init__(
        self,
        handlers: Mapping[str, Callable[[list[MessageExt]], Any]],
        *,
        count: int,
        loop: asyncio.AbstractEventLoop,
        report: Callable[[Delivery, Ending], None],
        loop_closed: Callable[[], None],
    ) -> None:
        self._handlers = dict(handlers)
        self._count = count
        self._loop = loop
        self._report = report
        self._loop_closed = loop_closed
        self._lock = threading.Lock()
        self._change = threading.Condition(self._lock)
        # All under the lock, which every delivery takes twice: it is on the hot path.
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
        """Free the places of threads that run these; awaitables they wait for are cancelled."""
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

    def _grow(self) -> None:
        # As many threads as ever had to run at once, no more: idle ones only compete for the interpreter
        # lock.
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
                ending = self._run(delivery)
            finally:  # Last: a delivery that has not begun may be put again at once, for another thread.
                goes_on = self._ended(delivery)
                self._report(delivery, ending)
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

    def _run(self, delivery: Delivery) -> Ending:
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
        except BaseException as error:  # SystemExit too: it ends the handler, not the thread.
            delivery.raised(error)
            log_failure(messages, topic)
            if self._loop.is_closed():
                self._loop_closed()
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
