"""Helpers that run the commands as a shell does."""

import os
import select
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import libramq
from tests.cli.forked import ForkedCommands

COMMAND = [sys.executable, "-m", "libramq"]
#: How long anything may take before the test fails; a busy machine needs ten seconds to start Python.
SECONDS_MAX = 150
#: Output of servers on a signal.
STOPPING = "Stopping; a second Ctrl-C ends it at once.\n"
_COMMANDS = ForkedCommands()
SOURCE = str(Path(libramq.__file__).resolve().parent.parent)


class Result(NamedTuple):
    code: int
    out: str
    err: str


def libra(
    *arguments: str,
    stdin: str = "",
    namesrv: str | None = None,
    cwd: Path | None = None,
    seconds: float = SECONDS_MAX,
) -> Result:
    given = list(arguments)
    return Result(
        *_COMMANDS.run(given, stdin=stdin, environment=environment(namesrv), cwd=cwd, seconds=seconds)
    )


def start(
    arguments: Sequence[str], *, cwd: Path | None = None, descriptors_max: int | None = None
) -> subprocess.Popen[str]:
    """Start a process whose output can be read while it runs; the caller ends it."""
    limited = [] if descriptors_max is None else ["sh", "-c", f'ulimit -n {descriptors_max}; exec "$@"', "-"]
    return subprocess.Popen(
        [*limited, *COMMAND, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=environment(None),
        cwd=cwd,
    )


def end(process: subprocess.Popen[str]) -> None:
    """Kill the process if it still runs, and close its streams."""
    if process.poll() is None:
        process.kill()
    process.communicate(timeout=SECONDS_MAX)


def wait_gone(pid: int) -> None:
    """Wait until a process that is not our child has ended."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        assert poll.poll(SECONDS_MAX * 1000), f"process {pid} still runs"
    finally:
        os.close(handle)


def without_pauses(err: str) -> str:
    """Return a server's log without the effects of tests or of a busy machine: group diagnoses and stalls."""
    lines = err.splitlines(keepends=True)
    caused = ("the process was stalled", "WARNING group group=")
    return "".join(line for line in lines if not any(each in line for each in caused))


def environment(namesrv: str | None) -> dict[str, str]:
    """Return our environment with the test's name servers; libramq is found from any directory."""
    kept = {name: value for name, value in os.environ.items() if name != "NAMESRV_ADDR"}
    kept["PYTHONPATH"] = os.pathsep.join([SOURCE, *filter(None, [kept.get("PYTHONPATH")])])
    return kept | ({"NAMESRV_ADDR": namesrv} if namesrv else {}) | {"PYTHONUNBUFFERED": "1"}


def one_line(result: Result) -> str:
    """Return the message of a failed command: one line, no traceback, exit code 2."""
    assert result.code == 2, result
    assert result.out == ""
    (line,) = result.err.splitlines()
    assert line.startswith("libra: ")
    return line.removeprefix("libra: ")
