"""The blocking client: an asynchronous one on its own thread, whose methods wait for their results; how
`stop` interrupts its start or a call (signal handlers), and what happens if it is dropped while it runs.

    start ─► [ the network thread: _start ─► ... ─► _stop ] ─► it ends, and `stop` returns

Its start and stop run on that thread, so a signal handler may call `stop` in the middle of any method, even
of `start` or another `stop`. A call that could only wait for itself, or for a thread that does not exist in
this process, is refused.
"""

import asyncio
import contextlib
import threading
import warnings
from collections.abc import Callable, Coroutine
from functools import wraps
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, Generic, ParamSpec, Self, TypeVar

from libramq.client.network_thread import NetworkThread, Work
from libramq.client.options import AsyncClient, no_such_method
from libramq.errors import InvalidState, LibraError, LocalProtocolError
from libramq.transport.asyncio_remotes import FORKED

P = ParamSpec("P")
T = TypeVar("T")


C = TypeVar("C", bound=AsyncClient)


class Life:
    """A client's life, from its start to its stop."""

    def __init__(self) -> None:
        self.thread: NetworkThread | None = None
        self.start: Work[None] | None = None
        self.end: Work[None] | None = None
        self.is_stopping = False


class BlockingClient(Generic[C]):
    """An asynchronous client on its own thread."""

    #: The asynchronous client, whose methods `blocking` wraps.
    _client: C
    #: Whether the client is stopped when the program drops it; one whose handlers are still called is not.
    _stops_when_dropped: ClassVar[bool] = True

    def __init__(self, name: str) -> None:
        self._name = name
        self._life: Life | None = None
        self._begins = threading.RLock()  # Held for a moment.

    if not TYPE_CHECKING:  # A type checker would accept every name.

        def __getattr__(self, name: str) -> Any:
            raise no_such_method(self, name)

    def start(self) -> None:
        """Start the client."""
        self._refuse("start", self._thread)
        life, thread = Life(), None
        try:
            with self._begins:
                if self._life is not None:
                    raise InvalidState(f"this {self._name} runs already")
                self._life = life
            thread = NetworkThread(f"libramq-sync-{self._name}")
            thread.start()
            life.thread = thread
            life.start = Work(thread, self._start())
            life.start.submit()
            if not life.is_stopping:  # Otherwise a signal handler stopped it before it had a task to cancel.
                life.start.result()
            if life.is_stopping:
                raise asyncio.CancelledError
        except BaseException as error:
            if thread is not None:
                self._end_start(life, thread)
            self._forget(life)
            if life.is_stopping and isinstance(error, asyncio.CancelledError | LocalProtocolError):
                error = InvalidState(f"this {self._name} was stopped while it was being started")
                raise error from None
            raise

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __del__(self) -> None:
        """Warn of a running client that can no longer be stopped."""
        life = getattr(self, "_life", None)
        if life is None or life.thread is None or life.thread.is_parents or life.is_stopping:
            return
        named = f"{'an' if self._name == 'admin' else 'a'} {self._name}"
        warnings.warn(f"{named} was dropped while it ran; stop() it, or use `with`", ResourceWarning, 2, self)
        if self._stops_when_dropped:
            self._begin_end(life, life.thread)

    def stop(self) -> None:
        """Stop the client; a second call waits for the first. In a forked child this does nothing."""
        life = self._life
        if life is None or (life.thread is not None and life.thread.is_parents):
            return
        self._refuse("stop", life.thread)
        life.is_stopping = True
        if life.thread is None:
            return  # The caller is a signal handler within `start`, which will see the flag.
        self._begin_end(life, life.thread)
        try:
            life.thread.join()
        except BaseException:  # Ctrl-C: end at once.
            life.thread.stop()
            raise
        finally:
            self._forget(life)
        if life.end is not None:
            with contextlib.suppress(asyncio.CancelledError):  # An interrupted call has ended the thread.
                life.end.result()

    def _end_start(self, life: Life, thread: NetworkThread) -> None:
        """Undo a failed start, so that the client can be started again."""
        if life.start is None:
            thread.stop()
            return
        self._begin_end(life, thread)
        try:
            thread.join()
        except BaseException:  # Another signal: end at once.
            thread.stop()
            raise
        if life.end is not None:
            with contextlib.suppress(LibraError, asyncio.CancelledError):  # The error of the start counts.
                life.end.result()

    def _begin_end(self, life: Life, thread: NetworkThread) -> None:
        """Begin to end a life, unless it is ending already."""

        def begin() -> None:
            if life.end is None:
                life.end = Work(thread, self._end(life, thread))
                life.end.begin()

        with contextlib.suppress(LocalProtocolError):  # The thread has ended.
            thread.call_soon(begin)

    async def _end(self, life: Life, thread: NetworkThread) -> None:
        try:
            start = None if life.start is None else life.start.task
            if start is not None:
                start.cancel()
                await asyncio.wait([start])
                if not start.cancelled() and start.exception() is None:
                    await self._stop()
        finally:
            thread.end()

    def _forget(self, life: Life) -> None:
        if self._life is life:
            self._life = None

    async def _start(self) -> None:
        await self._client.start()

    async def _stop(self) -> None:
        await self._client.stop()

    @property
    def _thread(self) -> NetworkThread | None:
        life = self._life
        return None if life is None else life.thread

    def _call(self, what: str, function: Callable[[], T]) -> T:
        """Call a plain method; on the thread, while the client runs."""
        thread = self._thread
        if thread is None or thread.is_current:
            return function()

        async def call() -> T:
            return function()

        return self._wait(what, call())

    def _wait(self, what: str, work: Coroutine[Any, Any, T]) -> T:
        """Run a method on the thread and wait for its result. what: its name."""
        try:
            thread = self._running(what)
        except LocalProtocolError:
            work.close()
            raise
        try:
            return thread.begin(work).result()
        except asyncio.CancelledError:
            raise InvalidState(
                f"this {self._name} was stopped before {what}() ended; whether it took effect is not known"
            ) from None

    def _running(self, what: str) -> NetworkThread:
        thread = self._thread
        if thread is None:
            raise InvalidState(f"this {self._name} does not run; use `with` or start()")
        self._refuse(what, thread)
        return thread

    def _refuse(self, what: str, thread: NetworkThread | None) -> None:
        """Raise LocalProtocolError if the call would wait forever."""
        if thread is not None and thread.is_current:
            raise InvalidState(
                f"{what}() on the {self._name}'s own thread would wait for itself forever; {self._advice}"
            )
        if thread is not None and thread.is_parents:
            raise InvalidState(FORKED)

    _advice: ClassVar[str] = "call it on another thread"


def blocking(
    method: Callable[Concatenate[C, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """Wrap a method of the asynchronous client so that it waits for its result."""

    @wraps(method)
    def wait(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(method.__name__, method(self._client, *args, **kwargs))

    return wait


def calling(
    method: Callable[Concatenate[C, P], T],
) -> Callable[Concatenate[BlockingClient[C], P], T]:
    """Wrap a plain method of the asynchronous client for any thread, before and after the start."""

    @wraps(method)
    def call(self: BlockingClient[C], /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._call(method.__name__, lambda: method(self._client, *args, **kwargs))

    return call


def anytime(method: Callable[[C], Coroutine[Any, Any, T]]) -> Callable[[BlockingClient[C]], T]:
    """Wrap a method that reports the client's state, even if the client does not run."""

    @wraps(method)
    def call(self: BlockingClient[C], /) -> T:
        work = method(self._client)
        return _result_at_once(work) if self._thread is None else self._wait(method.__name__, work)

    return call


def _result_at_once(work: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine that never waits, even in a notebook, where a loop runs."""
    try:
        work.send(None)
    except StopIteration as ended:
        result: T = ended.value
        return result
    work.close()
    raise InvalidState("the client is being started or stopped; call again when it is not")
