"""Spark Connect: a server finds the format by itself, and a client reads, writes and streams.

4.3.0 is this environment's version, 4.2.0 the one with which Spark's Kafka source is tested.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from bench.spark_kafka import kafka

from libramq.sync import Admin
from tests.interop.libra import SOURCES, LibraUp, running
from tests.interop.ports import free_port
from tests.interop.process import Process, Program

pytestmark = [pytest.mark.interop, pytest.mark.timeout(1200)]

PROGRAM = Path(__file__).with_name("connect_spark.py")
#: On a machine with much else to do.
ANSWER_S = 300.0
QUEUES = 4
PYTHONS = {"4.3.0": Path(sys.executable), kafka.PYSPARK: kafka.PYTHON}


class Connect:
    """A Connect server and a client, as two processes; the client has no LibraMQ."""

    def __init__(self, python: Path, home: Path, version: str) -> None:
        found = "import os, pyspark; print(os.path.dirname(pyspark.__file__))"
        spark = Path(subprocess.check_output([python, "-c", found], text=True).strip())
        java = subprocess.check_output([sys.executable, "-m", "libramq.spark.java"], text=True).strip()
        port = free_port()
        settings = {
            "spark.connect.grpc.binding.address": "127.0.0.1",
            "spark.connect.grpc.binding.port": port,
            "spark.driver.host": "127.0.0.1",
            "spark.sql.shuffle.partitions": 2,
            "spark.sql.streaming.stopActiveRunOnRestart": "true",
            "spark.ui.enabled": "false",
        }
        options = [part for name, text in settings.items() for part in ("--conf", f"{name}={text}")]
        # Its log, which says when it listens, is on standard error.
        server = [
            "sh",
            "-c",
            'exec "$@" 2>&1',
            "sh",
            str(spark / "bin" / "spark-submit"),
            "--master",
            "local[2]",
        ]
        environment = {
            "SPARK_HOME": str(spark),
            "JAVA_HOME": java,
            "PYSPARK_PYTHON": str(python),
            "PATH": f"{python.parent}:{os.environ['PATH']}",
            "SPARK_LOCAL_IP": "127.0.0.1",
        }
        self.server = Process(
            f"connect-server-{version}",
            [*server, *options, "--class", "org.apache.spark.sql.connect.service.SparkConnectServer"],
            directory=home,
            env={**environment, "PYTHONPATH": str(SOURCES)},
        )
        self.server.wait_line("Spark Connect server started at", within_s=ANSWER_S)
        self.client = Program(
            f"connect-client-{version}",
            [str(python), str(PROGRAM), f"sc://127.0.0.1:{port}"],
            directory=home,
            env={**environment, "PYTHONPATH": ""},
        )
        self.version = self.client.wait_event("ready", within_s=ANSWER_S)["spark"]

    def ask(self, what: str, **question: Any) -> dict[str, Any]:
        """Make a request of the client and return its answer."""
        return self.client.ask("done", {"ask": what, **question}, within_s=ANSWER_S)

    def stop(self) -> None:
        self.client.stop()
        self.server.stop()


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibraUp]:
    with running(tmp_path_factory.mktemp("up")) as started:
        yield started


@pytest.mark.parametrize("version", PYTHONS)
def test_a_client_reads_writes_and_streams(version: str, up: LibraUp, tmp_path: Path):
    """The stream is started again from its checkpoint, and reads nothing twice."""
    if version == kafka.PYSPARK and not kafka.has_environment():
        pytest.skip("0.5 GB; fetch it with python -c 'from bench.spark_kafka import kafka; kafka.set_up()'")
    topic, copies = f"Connect-{version.replace('.', '-')}", f"Copies-{version.replace('.', '-')}"
    with Admin(namesrv=up.namesrv) as admin:
        for name in (topic, copies):
            admin.create_topic(name, queues=QUEUES)
    connect = Connect(PYTHONS[version], tmp_path, version)
    try:
        assert connect.version == version
        of = {"namesrv": up.namesrv, "topic": topic}
        connect.ask("write", **of, start=0, end=500)
        expected = [[number, f"key-{number}"] for number in range(500)]
        assert connect.ask("read", **of)["rows"] == expected
        table = str(tmp_path / "table")
        into_files = {"path": table, "checkpointLocation": str(tmp_path / "files.checkpoint")}
        into_topic = {"topic": copies, "checkpointLocation": str(tmp_path / "topic.checkpoint")}
        for end, last in ((500, 3), (700, 5)):
            if end > 500:
                connect.ask("write", **of, start=500, end=end)
            for format_, sink in (("parquet", into_files), ("rocketmq", into_topic)):
                done = connect.ask("stream", **of, format=format_, sink=sink, most=150)
                assert done["last"] >= last
            assert connect.ask("table", **of, path=table)["values"] == list(range(end))
        copied = connect.ask("read", namesrv=up.namesrv, topic=copies)["rows"]
        assert copied == [[number, f"key-{number}"] for number in range(700)]
    finally:
        connect.stop()
