"""The harness itself, tested with one-line programs; it needs nothing from Apache."""

import sys
from pathlib import Path

import pytest

from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import Process, Program

ECHO = """
import json, sys
print(json.dumps({"event": "started"}), flush=True)
for line in sys.stdin:
    if line.strip() == "stop":
        print(json.dumps({"event": "stopped"}), flush=True)
        break
    print("not json", flush=True)
    print(json.dumps({"event": "answer", **json.loads(line)}), flush=True)
"""
DEAF = """
import signal, sys, threading
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("deaf", flush=True)
print("a reason", file=sys.stderr, flush=True)
threading.Event().wait()
"""


def python(source: str) -> list[str]:
    return [sys.executable, "-c", source]


def test_a_program_answers_requests_and_ends(tmp_path: Path) -> None:
    with Program("echo", python(ECHO), directory=tmp_path) as echo:
        echo.wait_event("started", within_s=10)
        assert echo.ask("answer", {"colour": "blue"}, within_s=10)["colour"] == "blue"
        assert echo.ask("answer", {"colour": "red"}, within_s=10)["colour"] == "red"
        echo.finish(within_s=10)
    assert echo.returncode == 0


def test_waiting_for_output_fails_when_the_process_ends(tmp_path: Path) -> None:
    source = "import sys; print('out'); sys.exit('broken: no such topic')"
    with Process("broken", python(source), directory=tmp_path) as broken:
        with pytest.raises(AssertionError, match=r"(?s)no line 'ready'.*out.*broken: no such topic"):
            broken.wait_line("ready", within_s=60)
        assert broken.wait_end(within_s=10) == 1


def test_waiting_has_a_deadline_and_a_process_can_be_killed(tmp_path: Path) -> None:
    deaf = Process("deaf", python(DEAF), directory=tmp_path)
    deaf.wait_line("deaf", within_s=10)
    with pytest.raises(AssertionError, match=r"waited 0\.05 s"):
        deaf.wait_line("never", within_s=0.05)
    deaf.kill()
    assert deaf.returncode == -9


def test_ports_are_handed_out_once() -> None:
    brokers = [free_broker_port() for _ in range(20)]
    taken = {port + distance for port in brokers for distance in (-2, 0, 1)}
    assert len(taken) == 60
    assert taken.isdisjoint(free_port() for _ in range(20))
