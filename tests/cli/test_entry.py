"""The command's entry point: signals at the worst moment, and streams that are closed, full or too narrow."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.commands import COMMAND, SECONDS_MAX, environment

INTERRUPT = "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\n"


def shell(script, directory, *, modules=None, **variables):
    """Run a shell command line in which "$@" is `libra`; `modules` shadow all others."""
    path = directory / "modules"
    path.mkdir()
    for name, text in (modules or {}).items():
        (path / f"{name}.py").write_text(text)
    environ = environment(None) | variables
    environ["PYTHONPATH"] = f"{path}{os.pathsep}{environ['PYTHONPATH']}"
    return subprocess.run(
        ["bash", "-c", script, "-", *COMMAND],
        capture_output=True,
        text=True,
        env=environ,
        timeout=SECONDS_MAX,
        check=False,
    )


def test_an_interrupt_while_modules_are_loaded_leaves_no_traceback(tmp_path):
    """Here the signal arrives while typer, the command line library, is being imported."""
    done = shell('exec "$@" --help', tmp_path, modules={"typer": INTERRUPT})
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_interrupt_while_the_interpreter_ends_leaves_no_traceback(tmp_path):
    """By then the output has been printed."""
    at_exit = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGINT)\n"
    done = shell('exec "$@" --version', tmp_path, modules={"sitecustomize": at_exit})
    assert done.stdout.startswith("libra ")
    assert (done.returncode, done.stderr) == (-signal.SIGINT, "")


def test_a_second_interrupt_ends_servers_that_are_stopping_without_a_traceback():
    """It interrupted a callback of the loop, which logged that as a fatal error and went on."""
    program = (
        "import asyncio, os, signal\n"
        "from libramq.cli.running import StopSignal, run\n"
        "async def serve():\n"
        "    stop = StopSignal()\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    await stop.wait()\n"
        "    asyncio.get_running_loop().call_soon(os.kill, os.getpid(), signal.SIGINT)\n"
        "    await asyncio.sleep(60)\n"
        "run(serve())\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        env=environment(None),
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")


def test_an_ignored_interrupt_stays_ignored(tmp_path):
    """A shell ignores SIGINT this way for background jobs."""
    modules = {"sitecustomize": "import signal\nsignal.signal(signal.SIGINT, signal.SIG_IGN)\n"}
    typer = (
        f"import importlib.util, sys\n{INTERRUPT}sys.path.pop(0)\ndel sys.modules['typer']\nimport typer\n"
    )
    done = shell('exec "$@" --version', tmp_path, modules=modules | {"typer": typer})
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    "command",
    ["groups -n 127.0.0.1:1 >&-", "send -t T -n 127.0.0.1:1 <&-", "send -t T -n 127.0.0.1:1 <&- >&- 2>&-"],
)
def test_closed_streams_cause_no_traceback(tmp_path, command):
    """Daemons and some schedulers start their children with closed streams."""
    done = shell(f'"$@" {command}', tmp_path)
    assert "Traceback" not in done.stdout + done.stderr
    assert done.returncode in (0, 2)


def test_a_full_device_is_named(tmp_path):
    """The error used to suggest checking a path."""
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full here")
    done = shell('"$@" --version > /dev/full', tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("libra: no space left on the device")


def test_characters_outside_the_encoding_are_escaped(tmp_path):
    """Otherwise a non-ASCII body would end `libra tail` under LC_ALL=C."""
    code = (
        "import sys; from libramq.cli import entry, main; main.run = lambda _: print('caf\\xe9 \\U0001f600');"
        "entry.main()"
    )
    path = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(None) | path,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("caf\\xe9 \\U0001f600\n", "")
