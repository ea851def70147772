"""A separate `libra up` for the tests of the commands."""

import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from tests.cli.commands import SECONDS_MAX, STOPPING, end, start, without_pauses
from tests.interop.ports import free_broker_port, free_port

HOST = "127.0.0.1"


class Up(NamedTuple):
    namesrv: str
    nameserver_port: int
    broker_port: int
    data: str
    said: list[str]


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    data = tmp_path_factory.mktemp("up") / "data"
    broker = free_broker_port()
    nameserver = free_port()
    process = start(
        [
            *("up", "--nameserver-port", str(nameserver), "--broker-port", str(broker)),
            *("--data", str(data), "--set", "recallMessageEnable=true"),
        ]
    )
    try:
        assert process.stdout is not None
        said = [process.stdout.readline().rstrip() for _ in range(3)]
        yield Up(f"{HOST}:{nameserver}", nameserver, broker, str(data), said)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS_MAX)
        assert (process.returncode, out, without_pauses(err)) == (0, STOPPING, "")
    finally:
        end(process)
