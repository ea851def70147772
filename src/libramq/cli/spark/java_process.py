"""The Java process of a Spark command: it ends when Ctrl-C is pressed.

PySpark alone leaves it behind when Ctrl-C comes while it starts, and waits for running jobs when it comes
later. Pipelines can continue after being killed at any moment, so the process is simply ended here.
"""

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

from libramq.spark.java import output

#: Ours: Spark removes its temporary files in less; a command should end within five seconds of Ctrl-C.
STOP_SECONDS: Final = 3.0


class JavaProcess:
    """Remembers the process that PySpark starts, and ends it on SIGINT."""

    def __init__(self) -> None:
        self.was_interrupted = False
        self._process: subprocess.Popen[Any] | None = None
        self._is_forking = False
        self._is_ready: Callable[[], bool] = lambda: False

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Handle SIGINT from now on, including while PySpark starts the process.

        Two names in PySpark's modules are replaced meanwhile: PySpark returns its process only when that is
        ready, and installs a handler that calls Java, which may be in the middle of another call.
        """
        from pyspark import java_gateway
        from pyspark.core import context

        gateway_module: Any = java_gateway
        context_module: Any = context
        popen, signals = gateway_module.Popen, context_module.signal

        self._is_ready = lambda: context_module.SparkContext._gateway is not None

        def remember(*arguments: Any, **options: Any) -> subprocess.Popen[Any]:
            # An exception in here would leave a process that nobody knows: Ctrl-C waits until it is known.
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
        """End the process, if there is one, and the command."""
        # PySpark's threads and Java only report failures of the ended process from now on.
        output.is_silent = True
        logging.disable()
        sys.stderr = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        if self._process is not None:
            self._end(self._process)
        raise KeyboardInterrupt

    def _end(self, process: subprocess.Popen[Any]) -> None:
        if not self._is_ready():  # It has nothing to clean up, and would only print errors.
            process.kill()
            return
        process.terminate()
        deadline = threading.Timer(STOP_SECONDS, process.kill)
        deadline.daemon = True
        deadline.start()


class _NoHandlers:
    """A stand-in for the module `signal`, as PySpark sees it while it starts."""

    SIGINT = signal.SIGINT

    @staticmethod
    def signal(_number: int, _handler: object) -> None:
        """Install no handler."""
