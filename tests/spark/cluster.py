"""A Spark standalone cluster of processes: a master and workers, whose Python has no packages at all.

They are started by the lines of docs/clusters.md. Spark's environment variables set what a page need not:
free ports, and how much of this machine a worker may take.
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
#: What workers need besides LibraMQ's own code, as docs/clusters.md says.
NEEDED = ("msgspec", "numpy", "numpy.libs", "pyarrow", "structlog", "typing_extensions.py")
#: What `pip install ./libramq` adds.
OWN = ("libramq", "pyspark_rocketmq")
START_SECONDS = 180
#: The quick start of tests, for Java machines that live for seconds.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class StandaloneCluster:
    """A running cluster of one worker, and of those that are added. `url` is its master's; `stop` ends it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.url = f"spark://127.0.0.1:{free_port()}"
        # Without pip, so that Debian's Python makes it too.
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
        # Spark says on standard error that it is ready.
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
    """Return variables that say where Spark and Java are, and that this machine is 127.0.0.1."""
    java = java_home()
    found = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    return found | ({} if java is None else {"JAVA_HOME": str(java)}) | more


def packages(directory: Path, own: Sequence[str] = OWN) -> Path:
    """Make a directory with what workers need. It has links, because 240 MB of copies would test nothing
    more. own: which of LibraMQ's packages it has.
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
