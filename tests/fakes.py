"""Fakes for tests of several packages: a manual clock, and a peer that records what it receives."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from libramq.clock import MonotonicMs, WallMs
from libramq.errors import LibraError
from libramq.filesystem import LocalFileSystem
from libramq.kernel.connection import ANONYMOUS, NUMBERS
from libramq.kernel.effect import Thread
from libramq.kernel.work import InThread
from libramq.remoting.command import Command
from libramq.remoting.connection import FrameReader


class ManualClock:
    """A clock that moves only when a test advances it."""

    def __init__(self, wall_ms: int = 1_700_000_000_000, monotonic_ms: int = 1_000) -> None:
        self._wall_ms = wall_ms
        self._monotonic_ms = monotonic_ms

    def wall_ms(self) -> WallMs:
        return self._wall_ms

    def monotonic_ms(self) -> MonotonicMs:
        return self._monotonic_ms

    def advance(self, milliseconds: int) -> None:
        self._wall_ms += milliseconds
        self._monotonic_ms += milliseconds

    def set_wall(self, by_ms: int) -> None:
        """Set the wall clock; no time passes."""
        self._wall_ms += by_ms


class OwnFiles(LocalFileSystem):
    """The machine's files; the end of the test closes files left open, as by a killed broker."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        OPENED.append(self)

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        file = super().open(path, write=write, create=create)
        self._open.add(file)
        return file

    def lock(self, path: Path) -> int | None:
        file = super().lock(path)
        if file is not None:
            self._open.add(file)
        return file

    def close(self, file: int) -> None:
        self._open.discard(file)
        super().close(file)

    def close_all(self) -> None:
        """Close all files, as a kernel does at the end of a process."""
        for file in list(self._open):
            self.close(file)


#: The files of the running tests; the innermost scope's are the last.
OPENED: list[OwnFiles] = []


class FakePeer:
    """The other end of a connection; `replies` are the commands written to it."""

    def __init__(self, address: str = "127.0.0.1:50000") -> None:
        self.address = address
        self.number = next(NUMBERS)
        self.principal = ANONYMOUS
        self.is_authenticated = False
        self.certificate_names: tuple[str, ...] = ()
        self.is_open = True
        self.close_reason: str | None = None
        self.replies: list[Command] = []
        self.unsent_bytes = self.leaving_bytes = 0
        self.is_reading = True
        self._reader = FrameReader()

    def write(self, data: bytes) -> None:
        self.replies.extend(self._reader.receive(data))

    def close(self, reason: str) -> None:
        self.is_open = False
        self.close_reason = reason

    def abort(self, reason: str) -> None:
        self.close(reason)

    def pause_reading(self) -> None:
        self.is_reading = False

    def resume_reading(self) -> None:
        self.is_reading = True


class ManualTimer:
    """A timer fired by the test."""

    def __init__(self, due: list["ManualTimer"], action: Callable[[], None]) -> None:
        self._due = due
        self.action = action

    def cancel(self) -> None:
        if self in self._due:
            self._due.remove(self)


class ManualTimers:
    """Timers that fire only when the test fires them; turns take as long as `now_us` says.

    Immediate actions run at once, since one thing happens at a time; with `keeps_soon`, `come` runs them.
    """

    def __init__(self) -> None:
        self.due: list[ManualTimer] = []
        self.soon_due: list[Callable[[], None]] = []
        self.keeps_soon = False
        self.now_us = 0

    def after(self, delay_ms: float, action: Callable[[], None]) -> ManualTimer:
        timer = ManualTimer(self.due, action)
        self.due.append(timer)
        return timer

    def soon(self, action: Callable[[], None]) -> None:
        if self.keeps_soon:
            self.soon_due.append(action)
        else:
            action()

    def come(self) -> None:
        """Run the immediate actions."""
        actions, self.soon_due = self.soon_due, []
        for action in actions:
            action()

    def elapsed_us(self) -> int:
        return self.now_us

    def ring(self) -> None:
        """Fire the timer that was set first."""
        self.due.pop(0).action()


def turns_of(steps: int) -> Callable[..., Callable[[], bool]]:
    """Return a `Workload.begin_turn` whose turns have time for this many steps of long work."""

    def begin(_: int | None = None) -> Callable[[], bool]:
        left = iter(range(steps - 1))
        return lambda: next(left, None) is None

    return begin


class ManualThreads:
    """Threads whose work is done only when the test runs it; brief work runs at once if `does_brief_work`."""

    def __init__(self) -> None:
        self.does_brief_work = False
        self.work: list[tuple[Thread, Callable[[], Any], Callable[[Any], None]]] = []

    def run(self, thread: Thread, work: Callable[[], Any], done: Callable[[Any], None]) -> None:
        self.work.append((thread, work, done))

    def run_brief(self, work: Callable[[], Any], done: Callable[[Any], None]) -> bool:
        if self.does_brief_work:
            self.finish((Thread.FLUSH, work, done))
        return self.does_brief_work

    def run_all(self, thread: Thread | None = None) -> None:
        """Do all work of a kind, including any that follows from it."""
        while waiting := [each for each in self.work if thread in (None, each[0])]:
            for each in waiting:
                self.work.remove(each)
                self.finish(each)

    def finish(self, each: tuple[Thread, Callable[[], Any], Callable[[Any], None]]) -> None:
        try:
            result = each[1]()
        except (OSError, LibraError) as error:
            result = error
        each[2](result)


def raise_it(what: str, error: Exception) -> None:
    """Fail the test: an engine met an error it could not handle."""
    raise AssertionError(what) from error


def done(work: Any) -> Any:
    """Finish long work, including the work that threads do for it, and return its result."""
    result: object = None
    while True:
        try:
            wanted = work.throw(result) if isinstance(result, Exception) else work.send(result)
        except StopIteration as ended:
            return ended.value
        try:
            result = wanted.work() if isinstance(wanted, InThread) else None
        except Exception as failed:
            result = failed
