"""A Spark standalone cluster of processes: a master and workers whose Python has no packages at all.

They are started with the commands of docs/clusters.md. Spark's environment variables set what the page leaves
open: free ports, and how much of this machine a worker may use.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

import pyspark

from libramq.spark.java import java_home

from ..cli.commands import SOURCE
from ..interop.ports import free_port
from ..interop.process import Process
from . import page

SPARK_HOME = Path(pyspark.__file__).parent
#: The packages workers need besides LibraMQ's own code, as listed in docs/clusters.md.
NEEDED = ("msgspec", "numpy", "numpy.libs", "pyarrow", "structlog", "typing_extensions.py")
#: The packages that `pip install ./libramq` adds.
OWN = ("libramq", "pyspark_rocketmq")
START_SECONDS = 180
#: The quick start for tests, whose Java machines live for seconds.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class StandaloneCluster:
    """A running cluster of one worker and any added later. `url` is its master's; `stop` ends it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.url = f"spark://127.0.0.1:{free_port()}"
        # Without pip, so that Debian's Python can create it as well.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "bare"], check=True)
        self._master = self._daemon("Master", "master.Master")
        self._master.wait_line("Starting Spark master at ", within_s=START_SECONDS)
        self._workers: list[Process] = []
        self.add_worker()

    def add_worker(self) -> None:
        self._workers.append(self._daemon(f"Worker{len(self._workers)}", "worker.Worker"))

    def wait_ready(self) -> None:
        for worker in self._workers:
            worker.wait_line("Successfully registered with master", within_s=START_SECONDS)

    def stop(self) -> None:
        for process in (*reversed(self._workers), self._master):
            process.stop()

    def _daemon(self, name: str, main: str) -> Process:
        # Spark reports on standard error that it is ready.
        command = f"exec {page.at(self.url, page.line('A standalone cluster', main))} 2>&1"
        return Process(
            name,
            ["bash", "-c", command],
            directory=self._home,
            env=environment(
                PATH=f"{self._home / 'bare' / 'bin'}:{os.environ['PATH']}",
                PYTHONPATH="",
                SPARK_DAEMON_MEMORY="256m",
                SPARK_DAEMON_JAVA_OPTS=QUICK,
                SPARK_MASTER_WEBUI_PORT="0",
                SPARK_WORKER_WEBUI_PORT="0",
                SPARK_WORKER_CORES="1",
                SPARK_WORKER_MEMORY="1g",
                SPARK_WORKER_DIR=str(self._home / f"work-{name}"),
            ),
        )


def environment(**more: str) -> dict[str, str]:
    """Return variables that locate Spark and Java, and give this machine the address 127.0.0.1."""
    java = java_home()
    found = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    return found | ({} if java is None else {"JAVA_HOME": str(java)}) | more


def packages(directory: Path, own: Sequence[str] = OWN) -> Path:
    """Make a directory with the workers' packages, as links because copying 240 MB would test nothing more.

    `own` selects which of LibraMQ's packages it contains.
    """
    spec = find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent.parent
    directory.mkdir()
    for name in NEEDED:
        if (installed / name).exists():
            (directory / name).symlink_to(installed / name)
    for name in own:
        (directory / name).symlink_to(Path(SOURCE) / name)
    return directory
