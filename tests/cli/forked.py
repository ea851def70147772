"""Commands as separate processes, forked from one that has loaded their modules.

Starting Python with LibraMQ's modules takes some 300 ms of processor time, a fork a few, as long as neither
the garbage collector nor the interpreter's shutdown touches everything loaded. The process reads orders as
lines of JSON and answers each with the exit code.
"""

import atexit
import contextlib
import gc
import importlib
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import NoReturn

#: The modules that most commands load.
MODULES = (
    "libramq.broker.shell",
    "libramq.cli.main",
    "libramq.cli.servers.broker_process",
    "libramq.client",
    "libramq.sync",
    "uvloop",
)
#: Commands that load the other modules: those of commands, and those that print help and errors.
WARMING = (["admin", "topicList", "--help"], ["send", "-t"], ["tail", "-t"], ["bench", "produce", "-t"])


class ForkedCommands:
    """Runs commands in turn; recreated after a command that did not end in time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[str] | None = None
        atexit.register(self.close)

    def run(
        self,
        arguments: list[str],
        *,
        stdin: str,
        environment: dict[str, str],
        cwd: Path | None,
        seconds: float,
    ) -> tuple[int, str, str]:
        """Run a command and return its exit code and its output; raises subprocess.TimeoutExpired."""
        with self._lock, tempfile.TemporaryDirectory() as directory:
            streams = [str(Path(directory) / name) for name in ("stdin", "stdout", "stderr")]
            Path(streams[0]).write_text(stdin)
            where = str(cwd or Path.cwd())
            code = self._order([arguments, environment, where, streams], seconds)
            out, err = (Path(stream).read_text() for stream in streams[1:])
            return code, out, err

    def close(self) -> None:
        """End the process and the command that it runs."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.communicate()
            self._process = None

    def _order(self, order: list[object], seconds: float) -> int:
        process = self._process = self._process or subprocess.Popen(
            [sys.executable, "-m", __name__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        timer = threading.Timer(seconds, os.killpg, (process.pid, signal.SIGKILL))
        timer.start()
        try:
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        finally:
            timer.cancel()
        if not answer:
            self.close()
            raise subprocess.TimeoutExpired(str(order[0]), seconds)
        return int(answer)


def _become(order: str) -> NoReturn:
    arguments, environment, directory, streams = json.loads(order)
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(directory)
    for number, (path, flags) in enumerate(
        zip(streams, (os.O_RDONLY, *[os.O_WRONLY | os.O_CREAT] * 2), strict=True)
    ):
        opened = os.open(path, flags, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 # What the former one has read ahead is the orders'.
    sys.argv = ["libra", *arguments]
    code = 1

    def leave() -> None:
        """End before the interpreter frees its modules; atexit runs after threads have ended."""
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    atexit.register(leave)
    from libramq.cli.entry import main

    try:
        main()
    except SystemExit as ended:
        code = int(ended.code or 0)
    sys.exit(code)


def _serve() -> None:
    for module in MODULES:
        importlib.import_module(module)
    from libramq.cli.main import run

    for arguments in WARMING:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            run(arguments)
    gc.collect()
    gc.freeze()
    for order in sys.stdin:
        pid = os.fork()
        if not pid:
            _become(order)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    _serve()
