"""Signal handlers of blocking programs, which call clients in the middle of their own calls."""

import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from libramq.codes import RequestCode

PROGRAM = Path(__file__).with_name("programs") / "signals.py"


class Running:
    """A program that runs beside the test's servers, which notice its requests."""

    def __init__(self, server, *arguments):
        self._server = server
        self._changed = threading.Condition()
        server.touched = self._touch
        command = [sys.executable, "-W", "error", str(PROGRAM), *arguments]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def _touch(self):
        with self._changed:
            self._changed.notify_all()

    def terminate_at(self, code):
        """Send SIGTERM when the server has received a request, which it does not answer."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._server.count(code), 60)
        self._process.send_signal(signal.SIGTERM)

    def said(self):
        """Return the program's output up to its end."""
        try:
            text, _ = self._process.communicate(timeout=60)
        finally:
            self._process.kill()
        assert self._process.returncode == 0, text
        return text.splitlines()


@pytest.mark.parametrize(
    ("client", "last"),
    [
        ("push", RequestCode.UNREGISTER_CLIENT),
        ("fetching", RequestCode.UNREGISTER_CLIENT),
        ("producer", RequestCode.SEND_BATCH_MESSAGE),
    ],
)
def test_a_second_sigterm_whose_handler_stops_the_client_as_well_lets_the_first_go_on(cluster, client, last):
    """The first stop waits for an answer; a second one on top of it had waited for the first."""
    namesrv, broker = cluster
    broker.silence(last)
    program = Running(broker, "stopping", namesrv.address, client)
    program.terminate_at(last)
    assert program.said() == ["ended"]


@pytest.mark.parametrize("client", ["push", "fetching"])
def test_a_sigterm_while_a_client_starts_stops_it(cluster, client):
    namesrv, _ = cluster
    namesrv.silence(RequestCode.GET_ROUTEINFO_BY_TOPIC, 100)
    program = Running(namesrv, "starting", namesrv.address, client)
    program.terminate_at(RequestCode.GET_ROUTEINFO_BY_TOPIC)
    assert program.said() == ["this consumer was stopped while it was being started", "ended"]


@pytest.mark.parametrize("name", ["calling", "ending", "receiving"])
def test_a_handler_may_call_clients_whatever_it_interrupts(cluster, name):
    """It runs while no client lock is held; some of a hundred interruptions used to wait for ever."""
    namesrv, broker = cluster
    assert Running(broker, name, namesrv.address).said() == ["ended"]


@pytest.mark.parametrize("name", ["queueing", "beginning", "beginning_again", "starting_again"])
def test_a_handler_may_raise_or_stop_the_client_wherever_it_comes(cluster, name):
    """Later messages leave, no thread remains, and only LibraMQ's errors are raised."""
    namesrv, broker = cluster
    assert Running(broker, name, namesrv.address).said() == ["ended"]
