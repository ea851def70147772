"""Spark runs in the terminal: a quiet session, and progress on standard error."""

import logging
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from libramq.cli.options import LogLevel
from libramq.cli.spark.java_process import JavaProcess
from libramq.errors import ConfigError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from libramq.spark.pipeline.plan import OnProgress, Progress


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

    after_stop: what the user can do after Ctrl-C.
    """

    _last: "Progress | None" = None

    def __init__(self, name: str, *, after_stop: str = "") -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

        from libramq.cli import output

        self._name, self._after_stop = name, after_stop
        self._is_terminal = sys.stderr.isatty()
        self._bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=output.console(stderr=True),
            disable=not self._is_terminal,
        )
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
