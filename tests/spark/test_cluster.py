"""Tests on a cluster whose workers have a bare Python: the package sent along is enough."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
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
from . import cluster_driver, page
from .cluster import QUICK, SPARK_HOME, StandaloneCluster, environment, packages
from .conftest import INTERPRETED

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

PROGRAM_SECONDS = 400
MESSAGES = 500
SMALL = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.driver.extraJavaOptions": QUICK,
    "spark.ui.enabled": "false",
    "spark.sql.shuffle.partitions": "1",
    **INTERPRETED,
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneCluster]:
    started = StandaloneCluster(tmp_path_factory.mktemp("cluster"))
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="module")
def two_workers(cluster: StandaloneCluster) -> StandaloneCluster:
    cluster.add_worker()
    cluster.wait_ready()
    return cluster


@pytest.fixture
def orders(up: LibraUp, topic: str) -> str:
    """Return the name of a topic with messages."""
    with Producer(group="p", namesrv=up.namesrv, send_timeout_ms=SEND_TIMEOUT_MS) as producer:
        for number in range(MESSAGES):
            producer.send_nowait(Message(topic, b"%d" % number))
        producer.flush()
    return topic


@pytest.fixture
def run(cluster: StandaloneCluster, up: LibraUp, tmp_path: Path) -> Callable[..., str]:
    """Run a command of docs/clusters.md in a directory, for this cluster; return what it prints.

    The environment is the reader's: LibraMQ and Spark are on the PATH, Spark's settings in its defaults file.
    """
    settings = tmp_path / "conf"
    settings.mkdir()
    (settings / "spark-defaults.conf").write_text(
        "".join(f"{name} {value}\n" for name, value in SMALL.items())
    )

    def run_command(command: str) -> str:
        path = f"{Path(sys.executable).parent}:{SPARK_HOME / 'bin'}:{os.environ['PATH']}"
        settings_dir = {"SPARK_CONF_DIR": str(settings), "NAMESRV_ADDR": up.namesrv}
        done = subprocess.run(
            ["bash", "-euc", page.at(cluster.url, command)],
            cwd=tmp_path,
            env={**os.environ, **environment(PYTHONPATH=SOURCE, PATH=path, **settings_dir)},
            capture_output=True,
            text=True,
            timeout=PROGRAM_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run_command


@pytest.fixture
def environment_archive(run: Callable[..., str], tmp_path: Path) -> None:
    """Pack the archive of packages as the page does, with the packages `pip install --target` would fetch."""
    packages(tmp_path / "environment")
    run(page.line("An archive of packages", "tar czf"))


def test_pipelines_run_from_an_archive(up: LibraUp, orders: str, tmp_path: Path, run: Callable[..., str]):
    """`libra pipeline run --master` sends its own code, which this archive lacks; the rest comes with it."""
    packages(tmp_path / "environment", own=())
    run(page.line("An archive of packages", "tar czf"))
    (tmp_path / "ingest.toml").write_text(f"topics = ['{orders}']\ntable = 'orders'")
    printed = run(page.line("An archive of packages", "libra pipeline run ingest"))
    assert (
        f"{MESSAGES} messages of {orders} read, {MESSAGES} rows written to {tmp_path / 'orders'}" in printed
    )
    places = pq.read_table(tmp_path / "orders", columns=["queueId", "offset"])
    assert places.num_rows == len(set(map(tuple, map(dict.values, places.to_pylist())))) == MESSAGES


@pytest.mark.thorough
def test_a_report_runs_from_an_archive(
    environment_archive: None, up: LibraUp, orders: str, tmp_path: Path, run: Callable[..., str]
):
    """Its Python functions are sent to workers, which find the packages that these functions need."""
    consumed = threading.Event()
    consumer = PushConsumer(group=f"G_{orders}", namesrv=up.namesrv, consume_from=ConsumeFrom.FIRST_OFFSET)
    consumer.subscribe(orders, "*", lambda messages: consumed.set())
    consumer.start()
    assert consumed.wait(150)
    consumer.stop()
    (tmp_path / "ingest.toml").write_text("")
    ingest = page.line("An archive of packages", "libra pipeline run ingest")
    run(ingest.replace("run ingest", "run rebalance_report"))
    table = pq.read_table(tmp_path / "rebalance_report" / "rebalances.parquet", columns=["group"])
    assert f"G_{orders}" in table["group"].to_pylist()
    assert f"G_{orders}" in (tmp_path / "rebalance_report" / "report.html").read_text()


@pytest.mark.thorough
def test_the_package_is_shipped_as_py_files(
    environment_archive: None,
    two_workers: StandaloneCluster,
    up: LibraUp,
    orders: str,
    tmp_path: Path,
    run: Callable[..., str],
):
    """spark-submit sends it to the workers, where it takes precedence over the archive."""
    shutil.copy(cluster_driver.__file__, tmp_path / "program.py")
    submit = page.block("With spark-submit", "spark-submit").rstrip()
    submit = submit.replace("python3.11", f"python3.{sys.version_info.minor}")
    printed = run(f"{submit} {up.namesrv} {orders} {tmp_path}")
    assert json.loads(printed.splitlines()[-1]) == {
        "master": two_workers.url,
        "code": ["libramq.zip"],
        "workers": 2,
        "batch": MESSAGES,
        "stream": MESSAGES,
    }
    with Admin(namesrv=up.namesrv) as admin:
        stats = admin.topic_stats(f"{orders}-sent")
    assert sum(ends.max_offset for ends in stats.values()) == MESSAGES


@pytest.mark.thorough
def test_a_session_is_made_as_the_page_makes_it(
    environment_archive: None,
    cluster: StandaloneCluster,
    up: LibraUp,
    orders: str,
    tmp_path: Path,
    run: Callable[..., str],
):
    """The test runs the page's Python block, then reads with the session that the block creates."""
    reads = f"""
options = {{"namesrv": "{up.namesrv}", "subscribe": "{orders}", "startingOffsets": "earliest"}}
print(spark.read.format("rocketmq").options(**options).load().count())
spark.stop()
"""
    made = page.block("An archive of packages", "session(", language="python")
    (tmp_path / "program.py").write_text(page.at(cluster.url, made) + reads)
    assert run("python program.py").split()[-1] == str(MESSAGES)


def test_the_page_finds_spark():
    """The page's line that sets Spark's directory works for readers with PySpark from PyPI."""
    export = page.line("A standalone cluster", "export SPARK_HOME")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-euc", f"{export}; echo $SPARK_HOME"],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.strip() == str(SPARK_HOME)


def test_an_invalid_setting_is_named():
    wrong = run_libra("pipeline", "run", "lag_report", "--conf", "executor.memory=1g")
    assert one_line(wrong) == "--conf executor.memory=1g: give spark.NAME=VALUE"


def test_the_zip_file_holds_both_packages(tmp_path: Path):
    command = [sys.executable, "-m", "libramq.spark.worker_code", "libramq.zip"]
    subprocess.run(command, cwd=tmp_path, check=True, timeout=PROGRAM_SECONDS)
    names = ZipFile(tmp_path / "libramq.zip").namelist()
    root = Path(libramq.__file__).parent.parent
    assert {"pyspark_rocketmq/__init__.py", "libramq/spark/reading/worker.py"} <= set(names)
    assert len(names) == sum(
        1 for name in ("libramq", "pyspark_rocketmq") for _ in (root / name).rglob("*.py")
    )
