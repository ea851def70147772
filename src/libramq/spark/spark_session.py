"""A Spark session on this machine that is set up for Python sources.

What PySpark leaves to luck is settled here before the Java machine starts: which Python the workers
run, which Java, and that workers import the compiled PySpark of this environment and not the one in
a zip file (half a second less for every new worker). Each setting can be overridden by the caller.
"""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from libramq.spark.directory import spark_directory
from libramq.spark.java import java_home

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Spark's 200 are for clusters; each is a task a batch. Fixed for the life of a stateful checkpoint.
        "spark.sql.shuffle.partitions": "2",
        # A web server nobody asked for, on a port somebody may have.
        "spark.ui.enabled": "false",
        # Bars that overwrite what the program prints.
        "spark.ui.showConsoleProgress": "false",
        # Else casts to text and dates follow the machine's zone, and another machine's give other tables.
        "spark.sql.session.timeZone": "UTC",
        # 40 ms less for every Python task than TCP over the loopback.
        "spark.python.unix.domain.socket.enabled": "true",
        # Off, a source that can take filters fails every query; ours can where option("pushdown", "true") is.
        "spark.sql.python.filterPushdown.enabled": "true",
        # State on the disk rather than in the JVM's memory; transformWithState takes nothing else.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # A batch uploads what it changed, and not the whole state.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
)
"""For every master. Measured, like those below, for short tasks and small batches."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Nobody else is to reach this driver, and a laptop's name often leads nowhere.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Renames a local file instead of forking a process to do so: 20 ms less for each of the two logs of a
        # batch. Wrong on a shared store.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
)
"""For `local[…]` masters only: one driver on one machine."""


def bootstrap(directory: Path | None = None) -> None:
    """Prepare this process for its first Spark session. What the environment already says is kept."""
    import pyspark

    directory = directory or spark_directory()
    # Else workers run whatever `python3` the PATH holds.
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    if "SPARK_HOME" not in os.environ:
        package = Path(pyspark.__file__).parent
        home = directory / "spark"
        home.mkdir(parents=True, exist_ok=True)
        for name in ("jars", "bin"):  # Deliberately without python/lib, where the zip lies.
            _link(home / name, package / name)
        os.environ["SPARK_HOME"] = str(home)
    java = java_home()
    if java is not None:
        os.environ["JAVA_HOME"] = str(java)


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    draft = link.with_name(f"{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)


def session(
    app_name: str = "libramq",
    *,
    master: str = "local[2]",
    settings: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> "SparkSession":
    """The session of this process, made on first use, with `format("rocketmq")` registered.

    settings: go before SETTINGS and LOCAL_SETTINGS. directory: for the links and the Java of `bootstrap`.
    Nothing of this is needed: on any session the source is found, or made known by `register`.
    """
    from pyspark.sql import SparkSession

    bootstrap(directory)
    local: Mapping[str, str] = {}
    if master.startswith("local"):
        local = LOCAL_SETTINGS
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Else a warning about the host's name.
    builder = SparkSession.builder.appName(app_name).master(master)
    for name, value in {**SETTINGS, **local, **(settings or {})}.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    return spark


def register(spark: "SparkSession") -> None:
    """Make `format("rocketmq")` known to a session, whether or not Spark finds it by itself."""
    from libramq.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
