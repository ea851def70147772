"""Spark runs in the terminal: sessions, their end on Ctrl-C along with the Java process, and progress on
standard error.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

from libramq.cli.options import LogLevel
from libramq.errors import ConfigError
from libramq.spark.java import output

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from libramq.spark.pipeline.plan import OnProgress, Progress


#: Ours: Spark removes its temporary files faster; a command should end within five seconds of Ctrl-C.
STOP_SECONDS: Final = 3.0


class JavaProcess:
    """Remembers the process that PySpark starts, and ends it on SIGINT.

    On Ctrl-C, PySpark itself leaves the process behind while it starts, and later waits for running jobs.
    Pipelines can continue after being killed at any moment, so the process is simply ended here.
    """

    def __init__(self) -> None:
        self.was_interrupted = False
        self._process: subprocess.Popen[Any] | None = None
        self._is_forking = False
        self._is_ready: Callable[[], bool] = lambda: False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Handle SIGINT from now on, including while PySpark starts the process.

        Two names in PySpark's modules are replaced meanwhile, because PySpark returns its process only when
        that is ready, and installs a handler that calls Java, which may be in the middle of another call.
        """
        from pyspark import java_gateway
        from pyspark.core import context

        gateway_module: Any = java_gateway
        context_module: Any = context
        popen, signals = gateway_module.Popen, context_module.signal

        self._is_ready = lambda: context_module.SparkContext._gateway is not None

        def remember(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
            # An exception here would orphan the process, so Ctrl-C waits until it is known.
            self._is_forking = True
            try:
                process: subprocess.Popen[Any] = popen(*arguments, **options)
                self._process = process
            finally:
                self._is_forking = False
            if self.was_interrupted:
                self._end_all()
            return process

        gateway_module.Popen, context_module.signal = remember, _NoHandlers
        signal.signal(signal.SIGINT, self._interrupt)
        try:
            yield
        finally:
            gateway_module.Popen, context_module.signal = popen, signals

    def ignore(self) -> None:
        """Restore Python's own handling of SIGINT."""
        signal.signal(signal.SIGINT, signal.default_int_handler)

    def wait(self) -> None:
        """Wait for the process to end after an interrupt."""
        if self._process is not None:
            self._process.wait()

    def _interrupt(self, _number: int, _frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        self.was_interrupted = True
        if not self._is_forking:
            self._end_all()

    def _end_all(self) -> None:
        """End the process, if any, and the command."""
        # From now on, PySpark's threads and Java would only report failures of the ended process.
        output.is_silent = True
        logging.disable()
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        if self._process is not None:
            self._end(self._process)
        raise KeyboardInterrupt

    def _end(self, process: subprocess.Popen[Any]) -> None:
        if not self._is_ready():  # There is nothing to clean up, and it would only print errors.
            process.kill()
            return
        process.terminate()
        deadline = threading.Timer(STOP_SECONDS, process.kill)
        deadline.daemon = True
        deadline.start()


class _NoHandlers:
    """A stand-in for the module `signal` while PySpark starts."""

    SIGINT = signal.SIGINT

    @staticmethod
    def signal(_number: int, _handler: object) -> None:
        """Install no handler."""


@contextmanager
def spark_session(
    name: str,
    *,
    master: str,
    log_level: LogLevel,
    settings: Mapping[str, str] | None = None,
    archive: str | None = None,
) -> Iterator["SparkSession"]:
    """Yield a session that ends with the command, soon after Ctrl-C.

    Failures are reported in one line at the end, so Spark's own log is off by default.
    """
    from libramq.spark import session

    java = JavaProcess()
    quiet = {}
    if log_level == LogLevel.ERROR:
        quiet = {"spark.log.level": "OFF"}
        logging.getLogger("py4j").setLevel(logging.CRITICAL)
    try:
        with java.starting():
            spark = session(name, master=master, settings={**quiet, **(settings or {})}, archive=archive)
        try:
            yield spark
        finally:
            if not java.was_interrupted:
                spark.stop()
    finally:
        if java.was_interrupted:
            java.wait()
            raise KeyboardInterrupt from None
        java.ignore()


def spark_settings(pairs: Sequence[str]) -> dict[str, str]:
    """Return Spark settings from texts NAME=VALUE."""
    found = {}
    for text in pairs:
        name, is_there, value = text.partition("=")
        if not is_there or not name.startswith("spark."):
            raise ConfigError(f"--conf {text}: give spark.NAME=VALUE")
        found[name] = value
    return found


class ProgressDisplay:
    """Shows progress on standard error: a bar on a terminal, else a line per step.

    after_stop: the hint to print after Ctrl-C.
    """

    _last: "Progress | None" = None

    def __init__(self, name: str, *, after_stop: str = "") -> None:
        from libramq.cli import output

        self._name, self._after_stop = name, after_stop
        self._is_terminal = sys.stderr.isatty()
        self._bars = output.progress_bars(disable=not self._is_terminal)
        self._bar = self._bars.add_task(f"{name}: Spark starts", total=None)
        self._stderr = sys.stderr  # Nothing else is printed there after Ctrl-C.

    def __enter__(self) -> "OnProgress":
        self._bars.start()
        if not self._is_terminal:
            print(f"{self._name}: Spark starts", file=sys.stderr, flush=True)
        return self._show

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._bars.stop()
        if kind is KeyboardInterrupt:
            last = self._last
            where = f"after {last.text}: {last.done} done" if last is not None else "before it had begun"
            then = f"; {self._after_stop}" if self._after_stop else ""
            print(f"{self._name}: stopped {where}{then}", file=self._stderr, flush=True)

    def _show(self, progress: "Progress") -> None:
        self._last = progress
        if self._is_terminal:
            self._bars.update(
                self._bar,
                completed=progress.done,
                total=progress.total,
                description=f"{self._name}: {progress.text}",
            )
            return
        of = "" if progress.total is None else f" of {progress.total}"
        print(f"{self._name}: {progress.text}: {progress.done}{of}", file=sys.stderr, flush=True)
