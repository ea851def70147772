"""On a cluster whose workers have a bare Python, everything works with the package sent along."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

import pyarrow.parquet as pq
import pytest

import libramq
from libramq.client import ConsumeFrom
from libramq.message import Message
from libramq.sync import Admin, Producer, PushConsumer

from ..cli.commands import SOURCE, one_line
from ..cli.commands import libra as run_libra
from ..interop.cluster import SEND_TIMEOUT_MS
from ..interop.libra import LibraUp
from . import cluster_driver
from .cluster import QUICK, SPARK_HOME, StandaloneCluster, archive, environment, packages

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM_SECONDS = 400
MESSAGES = 500
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.ui.enabled": "false",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    started = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture
def orders(up: LibraUp, topic: str) -> str:
    """A topic with messages, and a group that has read one."""
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number in range(MESSAGES):
            producer.send_nowait(Message(topic, b"%d" % number))
        producer.flush()
    return topic


def conf(settings: dict[str, str]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--conf", f"{name}={value}")]


def run(*words: object, cwd: Path, **more: str) -> str:
    """What a program prints, given the variables of docs/clusters.md and no others of Spark's."""
    done = subprocess.run(
        [str(word) for word in words],
        cwd=cwd,
        env={**os.environ, **environment(PYTHONPATH=SOURCE, **more)},
        capture_output=True,
        text=True,
        timeout=PROGRAM_SECONDS,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def libra_pipeline(name: str, master: str, given: Path, up: LibraUp, toml: str) -> str:
    directory = given.parent
    (directory / f"{name}.toml").write_text(toml)
    command = (sys.executable, "-m", "libramq.cli.main", "pipeline", "run", name, "--master", master)
    options = (
        "--archive",
        given,
        "--config",
        f"{name}.toml",
        "-n",
        up.namesrv,
        *conf(SMALL | {"spark.cores.max": "1"}),
    )
    return run(*command, *options, cwd=directory)


def test_the_package_is_shipped_as_py_files(
    cluster: StandaloneCluster, up: LibraUp, orders: str, tmp_path: Path
):
    """spark-submit ships it to workers that have the compiled packages but not LibraMQ."""
    python = Path(sys.executable)
    run(python, "-m", "libramq.spark.worker_code", tmp_path / "libramq.zip", cwd=tmp_path)
    settings = SMALL | {"spark.executorEnv.PYTHONPATH": str(packages(tmp_path / "installed"))}
    told = run(
        *(SPARK_HOME / "bin" / "spark-submit", "--master", cluster.url, "--py-files", "libramq.zip"),
        *conf(settings),
        *(cluster_driver.__file__, up.namesrv, orders, tmp_path),
        cwd=tmp_path,
        PATH=f"{python.parent}:{os.environ['PATH']}",
        PYSPARK_PYTHON=f"python3.{sys.version_info.minor}",
    )
    assert json.loads(told.splitlines()[-1]) == {
        "master": cluster.url,
        "code": ["libramq.zip"],
        "workers": 2,
        "batch": MESSAGES,
        "stream": MESSAGES,
    }
    with Admin(namesrv=up.namesrv) as admin:
        stats = admin.topic_stats(f"{orders}-sent")
    assert sum(ends.max_offset for ends in stats.values()) == MESSAGES


def test_pipelines_run_from_an_archive(cluster: StandaloneCluster, up: LibraUp, orders: str, tmp_path: Path):
    """`libra pipeline run --master` sends its own code; what is compiled comes as an archive."""
    given = archive(packages(tmp_path / "packages"), tmp_path / "environment.tar.gz")
    told = libra_pipeline("ingest", cluster.url, given, up, f"topics = ['{orders}']\ntable = 'orders'")
    assert f"{MESSAGES} messages of {orders} read, {MESSAGES} rows written to {tmp_path / 'orders'}" in told
    places = pq.read_table(tmp_path / "orders", columns=["queueId", "offset"])
    assert places.num_rows == len(set(map(tuple, map(dict.values, places.to_pylist())))) == MESSAGES

    consumed = threading.Event()
    consumer = PushConsumer(group=f"G_{orders}", namesrv=up.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(orders, "*", lambda messages: consumed.set())
    consumer.start()
    assert consumed.wait(150)
    consumer.stop()
    libra_pipeline("rebalance_report", cluster.url, given, up, "")
    table = pq.read_table(tmp_path / "rebalance_report" / "rebalances.parquet", columns=["group"])
    assert f"G_{orders}" in table["group"].to_pylist()
    assert f"G_{orders}" in (tmp_path / "rebalance_report" / "report.html").read_text()


def test_an_invalid_setting_is_named():
    wrong = run_libra("pipeline", "run", "lag_report", "--conf", "executor.memory=1g")
    assert one_line(wrong) == "--conf executor.memory=1g: give spark.NAME=VALUE"


def test_the_zip_file_holds_both_packages(tmp_path: Path):
    run(sys.executable, "-m", "libramq.spark.worker_code", "libramq.zip", cwd=tmp_path)
    names = ZipFile(tmp_path / "libramq.zip").namelist()
    root = Path(libramq.__file__).parent.parent
    assert {"pyspark_rocketmq/__init__.py", "libramq/spark/worker.py"} <= set(names)
    assert len(names) == sum(
        1 for name in ("libramq", "pyspark_rocketmq") for _ in (root / name).rglob("*.py")
    )
