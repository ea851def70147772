"""A child process whose lines of output can be waited for.

A thread reads standard output into `lines`; standard error goes to a file, whose tail is part of every
failure message. Nothing here sleeps: a wait ends with a line that satisfies it, with the end of the process,
or at its deadline. Processes are ended only by their ids.
"""

import contextlib
import ctypes
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self, TypeVar

STOP_TIMEOUT_S = 60.0
# How long a wait may take before it is a failure. Apache's client drops a heartbeat while another thread
# sends one, and until the next, 30 s later, the broker may refuse its pulls. If the client missed a
# notification, it looks at the members every 20 s. Apache's broker keeps the locks of members that are gone
# for 60 s. All of these were seen.
PATIENCE_S = 150.0
COMPLAINT_LINES = 25
# Linux's names for them, in linux/prctl.h.
PR_SET_TIMERSLACK, PR_GET_TIMERSLACK = 29, 30

Event = dict[str, Any]
T = TypeVar("T")


@contextlib.contextmanager
def _timers_late(late_ns: int) -> Iterator[None]:
    """Delay the timers of everything this thread starts, so that one wakeup serves several of them."""
    if sys.platform != "linux" or not late_ns:
        yield
        return
    prctl = ctypes.CDLL(None).prctl
    before_ns = prctl(PR_GET_TIMERSLACK, 0, 0, 0, 0)
    prctl(PR_SET_TIMERSLACK, late_ns, 0, 0, 0)
    try:
        yield
    finally:
        prctl(PR_SET_TIMERSLACK, before_ns, 0, 0, 0)


def descendants(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants; some may have ended meanwhile."""
    yield pid
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):  # A thread that has ended leaves its children to another.
                for child in (task / "children").read_text().split():
                    yield from descendants(int(child))


class Process:
    #: How late timers of Java programs may be. An idle broker of Apache's looks for work 1,500 times a
    #: second, and a client of Java's 100 times. Tests spare the processor that; a bench would measure it.
    java_timers_late_ns: ClassVar[int] = 0

    def __init__(
        self, name: str, command: Sequence[str], *, directory: Path, env: Mapping[str, str] | None = None
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.command = tuple(command)
        self.lines: list[str] = []
        self.error_log = directory / f"{name}.stderr"
        self._ended = False
        self._changed = threading.Condition()
        late = _timers_late(self.java_timers_late_ns if self.command[0] == "java" else 0)
        with self.error_log.open("wb") as error_log, late:
            self._child = subprocess.Popen(
                self.command,
                cwd=directory,
                env={**os.environ, **(env or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=error_log,
                # A signal from the terminal ends pytest only, and pytest ends this process.
                start_new_session=True,
            )
        self._reader = threading.Thread(target=self._read, name=f"reads {name}", daemon=True)
        self._reader.start()

    @property
    def pid(self) -> int:
        return self._child.pid

    @property
    def returncode(self) -> int | None:
        return self._child.poll()

    def _read(self) -> None:
        assert self._child.stdout is not None
        for raw in self._child.stdout:
            with self._changed:
                self._accept(raw.decode(errors="replace").rstrip("\n"))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def _accept(self, line: str) -> None:
        self.lines.append(line)

    def tell(self, line: str) -> None:
        assert self._child.stdin is not None
        self._child.stdin.write(line.encode() + b"\n")
        self._child.stdin.flush()

    def wait_until(self, condition: Callable[[], T | None], what: str, *, within_s: float) -> T:
        """Return the first value of `condition` that is neither None nor False; check it after every line."""
        with self._changed:
            value: T | None = None

            def satisfied() -> bool:
                nonlocal value
                value = condition()
                return (value is not None and value is not False) or self._ended

            self._changed.wait_for(satisfied, within_s)
            if value is None or value is False:
                how = f"ended with {self._child.poll()}" if self._ended else f"waited {within_s} s"
                raise AssertionError(f"{self.name}: {what}: {how}\n{self.complaint()}")
            return value

    def wait_line(self, text: str, *, within_s: float) -> str:
        return self.wait_until(
            lambda: next((line for line in self.lines if text in line), None),
            f"no line {text!r}",
            within_s=within_s,
        )

    def wait_end(self, *, within_s: float) -> int:
        try:
            return self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"{self.name} still runs after {within_s} s\n{self.complaint()}") from None

    def ended_within(self, seconds: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: self._ended, seconds)

    def complaint(self) -> str:
        errors = self.error_log.read_text(errors="replace").splitlines()
        return "\n".join([*self.lines[-COMPLAINT_LINES:], *errors[-COMPLAINT_LINES:]])

    def kill(self) -> None:
        """Kill the process with SIGKILL; it cannot shut down cleanly."""
        self._child.kill()
        self._close()

    def stop(self) -> None:
        """End the process with SIGTERM, or with SIGKILL if it does not end in time."""
        self._child.terminate()
        try:
            self._child.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._child.kill()
        self._close()

    def _close(self) -> None:
        self._child.wait()
        self._reader.join(STOP_TIMEOUT_S)
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.close()
        self._child.stdout.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class Events(Protocol):
    """A source of events: JSON objects, each with its kind."""

    @property
    def events(self) -> list[Event]: ...

    def wait_until(self, condition: Callable[[], T | None], what: str, *, within_s: float) -> T: ...

    def of(self, kind: str, /, **fields: object) -> list[Event]:
        return [
            event
            for event in self.events
            if event.get("event") == kind and all(event.get(name) == value for name, value in fields.items())
        ]

    def wait_event(self, kind: str, /, *, within_s: float = PATIENCE_S, **fields: object) -> Event:
        return self.wait_until(
            lambda: next(iter(self.of(kind, **fields)), None), f"no {kind} with {fields}", within_s=within_s
        )

    def wait_count(
        self, count: int, kind: str, /, *, within_s: float = PATIENCE_S, **fields: object
    ) -> list[Event]:
        """Wait for at least this many events of a kind, and return all of them."""

        def enough() -> list[Event] | None:
            found = self.of(kind, **fields)
            return found if len(found) >= count else None

        return self.wait_until(enough, f"fewer than {count} {kind} with {fields}", within_s=within_s)


class Program(Process, Events):
    """A process that prints one JSON object per line, each with its kind of event, and ends at "stop"."""

    def __init__(
        self, name: str, command: Sequence[str], *, directory: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self._events: list[Event] = []
        self._asked = 0
        super().__init__(name, command, directory=directory, env=env)

    @property
    def events(self) -> list[Event]:
        return list(self._events)

    def _accept(self, line: str) -> None:
        super()._accept(line)
        if line.startswith("{"):
            self._events.append(json.loads(line))

    def forget(self) -> None:
        """Forget the events so far."""
        self._events.clear()

    def ask(self, answer: str, question: Mapping[str, object], *, within_s: float = PATIENCE_S) -> Event:
        """Send a question with a fresh id, and return the event of kind `answer` that carries the id."""
        self._asked += 1
        identity = self._asked
        self.tell(json.dumps({**question, "id": identity}))
        return self.wait_event(answer, id=identity, within_s=within_s)

    def finish(self, *, within_s: float = STOP_TIMEOUT_S) -> None:
        """Stop the program as a user would: it unregisters from its servers and exits with 0."""
        self.tell("stop")
        self.wait_event("stopped", within_s=within_s)
        assert self.wait_end(within_s=within_s) == 0, self.complaint()
        self._close()

    def stop(self) -> None:
        if self.returncode is None:
            super().stop()
        else:
            self._close()
