"""A Spark standalone cluster of processes: a master and two workers, whose Python has no packages at all."""

import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from pathlib import Path

import pyspark

from libramq.spark.java import java_home

from ..interop.process import Process

SPARK_HOME = Path(pyspark.__file__).parent
#: What workers need besides LibraMQ's own code, as docs/clusters.md says.
NEEDED = ("msgspec", "numpy", "numpy.libs", "pyarrow", "structlog", "typing_extensions.py")
START_SECONDS = 180
#: The quick start of tests, for Java machines that live for seconds.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"


class StandaloneCluster:
    """A running cluster. `url` is its master's; `stop` ends it."""

    def __init__(self, home: Path) -> None:
        self._home = home
        # Without pip, so that Debian's Python makes it too.
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", home / "bare"], check=True)
        self._processes = [self._daemon("Master", "master.Master")]
        started = self._processes[0].wait_line("Starting Spark master at ", within_s=START_SECONDS)
        self.url = started.rpartition(" ")[2]
        for number in (1, 2):
            options = ("--cores", "1", "--memory", "1g", "--work-dir", str(home / f"work{number}"))
            self._processes.append(self._daemon(f"Worker{number}", "worker.Worker", *options, self.url))

    def wait_ready(self) -> None:
        for worker in self._processes[1:]:
            worker.wait_line("Successfully registered with master", within_s=START_SECONDS)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.stop()

    def _daemon(self, name: str, main: str, *options: str) -> Process:
        main = f"org.apache.spark.deploy.{main}"
        ports = ("--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        # Spark tells on standard error that it is ready.
        words = [SPARK_HOME / "bin" / "spark-class", main, *ports, *options]
        return Process(
            name,
            ["bash", "-c", 'exec "$@" 2>&1', "bash", *map(str, words)],
            directory=self._home,
            env=environment(
                PATH=f"{self._home / 'bare' / 'bin'}:{os.environ['PATH']}",
                PYTHONPATH="",
                SPARK_DAEMON_MEMORY="256m",
                SPARK_DAEMON_JAVA_OPTS=QUICK,
            ),
        )


def environment(**more: str) -> dict[str, str]:
    """Return variables that say where Spark and Java are, and that this machine is 127.0.0.1."""
    java = java_home()
    found = {"SPARK_HOME": str(SPARK_HOME), "SPARK_LOCAL_IP": "127.0.0.1"}
    return found | ({} if java is None else {"JAVA_HOME": str(java)}) | more


def packages(directory: Path) -> Path:
    """A directory with what workers need. Links: 240 MB of copies would test nothing more."""
    spec = find_spec("numpy")
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent.parent
    directory.mkdir()
    for name in NEEDED:
        if (installed / name).exists():
            (directory / name).symlink_to(installed / name)
    return directory


def archive(directory: Path, path: Path) -> Path:
    """The directory's content as an archive."""
    with tarfile.open(path, "w:gz") as file:
        for entry in directory.iterdir():
            file.add(entry, entry.name)
    return path
