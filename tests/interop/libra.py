"""Our own servers as a user starts them: one `libra up`."""

import os
import sys
from pathlib import Path

from tests.interop.apache import wait_broker
from tests.interop.ports import free_broker_port, free_port
from tests.interop.process import Process

SOURCES = Path(__file__).parent.parent.parent / "src"
COMMAND = (sys.executable, "-m", "libramq.cli.main", "up")


class LibraUp:
    def __init__(self, home: Path, *options: str) -> None:
        self.namesrv = f"127.0.0.1:{free_port()}"
        self.address = f"127.0.0.1:{free_broker_port()}"
        self.process = Process(
            "libra-up",
            [
                *COMMAND,
                "--nameserver-port",
                self.namesrv.rpartition(":")[2],
                "--broker-port",
                self.address.rpartition(":")[2],
                "--data",
                str(home / "data"),
                *options,
            ],
            directory=home,
            # This tree, whatever else is installed.
            env={"PYTHONPATH": os.pathsep.join([str(SOURCES), os.environ.get("PYTHONPATH", "")])},
        )

    def wait_ready(self, brokers: int = 1) -> None:
        wait_broker(self.process, self.namesrv, brokers)

    def stop(self) -> None:
        self.process.stop()
