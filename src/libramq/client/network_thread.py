"""The network thread: the event loop that the consumers of a process share; when it starts and ends, how
other threads and signal handlers wait for it, which threads it refuses (gevent's), and its state after a
fork.

No call waits for its own thread, or for one that does not exist in this process: deadlocks are refused.
All consumers of a process, even a thousand, share one thread, which starts with the first share and ends with
the last.
"""

import asyncio
import contextlib
import os
import random
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, Generic, Required, TypedDict, TypeVar, cast

from libramq.clock import Clock
from libramq.errors import InvalidState, LocalProtocolError
from libramq.logs import get_logger
from libramq.runtime.seams import Dialer, Timers
from libramq.transport.access import Access
from libramq.transport.asyncio_remotes import FORKED

log = get_logger(__name__)
T = TypeVar("T")

STOPPED: Final = "this client has been stopped"
#: Ours: how long cancelled tasks may take to end; a user's handler may never end.
CANCEL_SECONDS: Final = 1.0


def new_event_loop() -> asyncio.AbstractEventLoop:
    """Return the fastest available loop."""
    try:
        import uvloop  # Not available on Windows or PyPy.
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Latch:
    """An event that happens once. Waiters hold no lock.

    A signal handler interrupts the main thread anywhere, even inside `threading.Event.wait` or
    `Future.result`, which hold a lock for a moment: no other thread can set them until the handler returns,
    so a handler that waits for such a thread would wait for ever.
    """

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        self._waiting: deque[threading.Lock] = deque()

    def set(self) -> None:
        """Let every waiter continue."""
        self._is_set = True
        with contextlib.suppress(IndexError):  # None is left. Two threads may set it at once.
            while True:
                self._waiting.popleft().release()

    def wait(self) -> None:
        """Wait until it has happened."""
        if not self._is_set:
            mine = threading.Lock()
            mine.acquire()
            self._waiting.append(mine)
            if not self._is_set:  # If it is set from here on, `mine` is released.
                mine.acquire()


class Work(Generic[T]):
    """A coroutine that runs on a network thread while another thread waits for its result."""

    def __init__(self, thread: "NetworkThread", coroutine: Coroutine[Any, Any, T]) -> None:
        self._thread = thread
        self._coroutine = coroutine
        #: Created on the thread.
        self.task: asyncio.Task[T] | None = None
        self._ended = Latch()

    def submit(self) -> None:
        """Submit the coroutine to the thread. Raises LocalProtocolError."""
        self._thread.submit(self._coroutine, self.begin)

    def begin(self) -> None:
        """Create the task; called on the thread."""
        self._thread.at_work.add(self)
        self.task = self._thread.loop.create_task(self._coroutine)
        self.task.add_done_callback(lambda _: self.end())

    def end(self) -> None:
        """Release the waiter; called on the thread."""
        self._thread.at_work.discard(self)
        self._ended.set()

    def result(self) -> T:
        """Wait for the result; raises asyncio.CancelledError if the thread ended first."""
        self._ended.wait()
        if self.task is None or not self.task.done():  # The task ignored its cancellation.
            raise asyncio.CancelledError
        return self.task.result()

    def cancel(self) -> None:
        """Cancel the task, unless it has ended."""
        with contextlib.suppress(LocalProtocolError):
            self._thread.call_soon(lambda: self.task is not None and self.task.cancel())


class NetworkThread:
    """Runs coroutines for other threads.

    Signal handlers may call its methods at any point: none holds a lock (`Latch`).
    """

    def __init__(self, name: str) -> None:
        _refuse_green_threads()
        self.loop: asyncio.AbstractEventLoop = new_event_loop()
        #: Whether it was started before a fork, in the parent process.
        self.is_parents = False
        self.at_work: set[Work[Any]] = set()
        self._submitted: deque[Callable[[], object]] = deque()
        self._has_started = False
        self._is_open = True
        self._is_stopping = False
        self._ended = Latch()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        _threads.add(self)

    def start(self) -> None:
        """Start. If that fails, or a signal handler raises meanwhile, the thread ends as soon as it can."""
        try:
            self._thread.start()
        except BaseException:
            self.stop()
            raise
        self._has_started = True

    @property
    def is_current(self) -> bool:
        """Return whether the caller runs on this thread, and must not wait for it."""
        return threading.get_ident() == self._thread.ident

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; the future has its result. Raises LocalProtocolError."""
        future: Future[T] = Future()

        def begin() -> None:
            task = self.loop.create_task(work)
            task.add_done_callback(lambda _: _settle(future, task))
            future.add_done_callback(lambda _: self._cancel(task))

        self.submit(work, begin)
        return future

    def begin(self, work: Coroutine[Any, Any, T]) -> Work[T]:
        """Run a coroutine on the thread, for another thread to wait for. Raises LocalProtocolError."""
        begun = Work(self, work)
        begun.submit()
        return begun

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the thread. Raises LocalProtocolError."""
        if self.is_parents:
            raise InvalidState(FORKED)
        self._submitted.append(function)
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            self.loop.call_soon_threadsafe(self._call_submitted)
        if not self._is_open:
            with contextlib.suppress(ValueError):  # The thread took the function while it ended.
                self._submitted.remove(function)
                raise InvalidState(STOPPED)

    def stop(self) -> None:
        """End the thread; called from another one. Does nothing in a forked child."""
        if self.is_parents:
            return
        with contextlib.suppress(LocalProtocolError):  # The thread has ended.
            self.call_soon(self._stop_loop)
        if self._has_started:  # Otherwise it ends at once, if it starts at all.
            self.join()

    def end(self) -> None:
        """End the thread after its current work; called on it."""
        self.loop.call_soon(self._stop_loop)

    def join(self) -> None:
        """Wait until the thread has ended."""
        self._ended.wait()
        self._thread.join()

    def submit(self, work: Coroutine[Any, Any, Any], begin: Callable[[], None]) -> None:
        """Call `begin` on the thread; close the coroutine if that fails. Raises LocalProtocolError."""
        try:
            self.call_soon(begin)
        except LocalProtocolError:
            work.close()
            raise

    def _call_submitted(self) -> None:
        # All: a signal handler's call may be queued behind one that it interrupted before it could wake us.
        # Once closed, none: the rest is called at the end, or refused.
        while self._submitted and self._is_open:
            self._submitted.popleft()()

    def _stop_loop(self) -> None:
        if not self._is_stopping:
            self._is_stopping = True
            self.loop.stop()

    def _cancel(self, task: asyncio.Task[Any]) -> None:
        # In a later turn: a coroutine that is cancelled before its start would not clean up.
        if not task.done():
            with contextlib.suppress(RuntimeError):  # The loop is closed.
                self.loop.call_soon_threadsafe(task.cancel)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self._is_open = False  # Later calls are refused; earlier ones are completed.
            with contextlib.suppress(IndexError):
                while True:
                    self.loop.call_soon(self._submitted.popleft())
            self.loop.run_until_complete(_cancel_all())
            self.loop.run_until_complete(self.loop.shutdown_asyncgens())
            self.loop.run_until_complete(asyncio.sleep(0))  # The last closes take effect in the next turn.
        finally:
            self._is_open = False
            for work in list(self.at_work):
                work.end()
            try:
                self.loop.close()
            finally:  # close() raises ResourceWarning where warnings are errors.
                self._ended.set()


def _settle(future: Future[T], task: asyncio.Task[T]) -> None:
    """Resolve a future with a task's result."""
    if task.cancelled():
        future.cancel()
    if not future.set_running_or_notify_cancel():
        return
    error = task.exception()
    if error is None:
        future.set_result(task.result())
    else:
        future.set_exception(error)


def _refuse_green_threads() -> None:
    """Raise LocalProtocolError where a library has replaced threads: an event loop would block them all."""
    gevent, eventlet = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    for name, is_patched in (
        ("gevent", gevent is not None and gevent.is_module_patched("threading")),
        ("eventlet", eventlet is not None and eventlet.is_monkey_patched("thread")),
    ):
        if is_patched:
            raise InvalidState(
                f"{name} has replaced this process's threads by greenlets, and a client's event loop would "
                "block them all: have it leave threads alone (thread=False), or use the client in a process "
                "without it"
            )


async def _cancel_all() -> None:
    await asyncio.sleep(0)  # So that submitted coroutines become tasks.
    loop = asyncio.get_running_loop()
    deadline = loop.time() + CANCEL_SECONDS
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        if loop.time() >= deadline:
            log.warning("tasks ignore their cancellation and are abandoned", tasks=len(tasks))
            return
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=deadline - loop.time())


async def run_on_thread(function: Callable[..., T], *arguments: Any) -> T:
    """Call a function that may block, on its own daemon thread."""
    loop = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = loop.create_future()

    def finish(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # The caller no longer waits.
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(cast(T, result))

    def call() -> None:
        result: T | None = None
        error: BaseException | None = None
        try:
            result = function(*arguments)
        except StopIteration as raised:  # Futures refuse it: the caller would wait for ever.
            error = RuntimeError("the function raised StopIteration")
            error.__cause__ = raised
        except BaseException as raised:
            error = raised
        with contextlib.suppress(RuntimeError):  # The loop is closed.
            loop.call_soon_threadsafe(finish, result, error)

    threading.Thread(target=call, name="libramq-hook", daemon=True).start()
    return await outcome


_threads: weakref.WeakSet[NetworkThread] = weakref.WeakSet()


#: The name of the thread that all consumers of the process share.
THREAD_NAME: Final = "libramq-network"


class SharedThread:
    """The shared thread of this process, and the number of its shares."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.thread: NetworkThread | None = None
        self.shares = 0


_shared = SharedThread()


def _forked() -> None:
    """Start afresh in the child, where the threads do not exist and the lock may be held for ever."""
    global _shared  # noqa: PLW0603
    for thread in _threads:
        thread.is_parents = True
    _shared = SharedThread()


if hasattr(os, "register_at_fork"):  # Not on platforms without fork.
    os.register_at_fork(after_in_child=_forked)


class NetworkShare:
    """One client's share of the thread: its coroutines end with it, independently of other shares."""

    def __init__(self) -> None:
        self._shared = shared = _shared
        with shared.lock:
            if shared.thread is None:
                thread = NetworkThread(THREAD_NAME)
                thread.start()
                shared.thread = thread
            shared.shares += 1
            self._thread = shared.thread
        self._is_open = True
        self._running: set[Future[Any]] = set()

    @property
    def is_parents(self) -> bool:
        """Return whether it was made before a fork, in the parent process."""
        return self._thread.is_parents

    def run(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Run a coroutine on the thread; the future has its result. Raises LocalProtocolError."""
        if not self._is_open:
            work.close()
            raise InvalidState(STOPPED)
        future = self._thread.run(work)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        if not self._is_open:  # A stop just now may not have seen this future.
            future.cancel()
            raise InvalidState(STOPPED)
        return future

    def call_soon(self, function: Callable[[], object]) -> None:
        """Call a function on the thread. Raises LocalProtocolError."""
        if not self._is_open:
            raise InvalidState(STOPPED)
        self._thread.call_soon(lambda: self._is_open and function())

    def stop(self) -> None:
        """Cancel running coroutines, and give the share back; called from another thread."""
        if self.is_parents or not self._close():
            return
        for future in tuple(self._running):
            future.cancel()
        if self._give_back():
            self._thread.stop()
        else:
            with contextlib.suppress(LocalProtocolError):  # The other shares have ended: so has the thread.
                self._thread.run(_cancellations()).result()

    def end(self) -> None:
        """Give the share back after the current work; called on the thread."""
        if self._close() and self._give_back():
            self._thread.end()

    def _close(self) -> bool:
        with self._shared.lock:
            was_open, self._is_open = self._is_open, False
        return was_open

    def _give_back(self) -> bool:
        """Give the share back; return whether it was the last one, so that the thread must end."""
        with self._shared.lock:
            self._shared.shares -= 1
            if self._shared.shares:
                return False
            self._shared.thread = None
            return True


async def _cancellations() -> None:
    """Let tasks cancelled in this turn end, with the tasks that they await."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


class NetworkSeams(TypedDict, total=False):
    """The seams of the networks of producers and consumers."""

    name_server_addresses: Required[Sequence[str]]
    dialer: Required[Dialer]
    timers: Required[Timers]
    clock: Required[Clock]
    randomness: Required[random.Random]
    access: Access
