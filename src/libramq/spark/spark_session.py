"""A Spark session for Python sources, on this machine or a cluster: which settings are made, what the
environment overrides, and when workers are sent this package.

Settings that PySpark leaves to chance are made here before the Java machine starts: the workers' Python, the
Java, and that workers import the compiled PySpark of this environment and not the one in a zip file (half a
second less for every new worker). Each setting can be overridden by the caller.

A cluster's workers have paths of their own: there the Python is found by its name, with the driver's version,
and the package is sent (`worker_code`). docs/clusters.md has what else they need.
"""

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from libramq.errors import needs_extra
from libramq.spark.java import java_home, output, spark_directory, write_file
from libramq.spark.worker_code import package_zip

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # No progress bars, which would overwrite the program's output.
        "spark.ui.showConsoleProgress": "false",
        # Otherwise casts to text and dates use the machine's zone, and differ between machines.
        "spark.sql.session.timeZone": "UTC",
        # 40 ms less for every Python task than TCP over the loopback.
        "spark.python.unix.domain.socket.enabled": "true",
        # If off, a source with push-down fails every query; ours has it with option("pushdown", "true").
        "spark.sql.python.filterPushdown.enabled": "true",
        # State on the disk rather than in the JVM's memory; transformWithState requires it.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # A batch uploads its changes, not the whole state.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
)
"""For every master. Measured, like those below, for short tasks and small batches."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Spark's 200 are for clusters; each is a task a batch. Fixed for the life of a stateful checkpoint.
        "spark.sql.shuffle.partitions": "2",
        # No unrequested web server, on a port that may be in use.
        "spark.ui.enabled": "false",
        # No other machine should reach this driver, and a laptop's name often cannot be resolved.
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


#: Spark's own defaults at its shells' level, so that it prints nothing about either.
LOG_SETTINGS: Final = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = console
appender.console.type = Console
appender.console.name = console
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n%ex
logger.native.name = org.apache.hadoop.util.NativeCodeLoader
logger.native.level = error
"""

#: Ours: a laptop has other work.
MASTER: Final = "local[2]"
#: Set by spark-submit, which has started the Java machine already.
SUBMITTED: Final = "PYSPARK_GATEWAY_PORT"
#: The name under which an archive is unpacked in each worker's directory, as in Spark's documentation.
ENVIRONMENT: Final = "environment"


def is_local(master: str) -> bool:
    """Return whether all of Spark runs on this machine."""
    return master.startswith("local")


def bootstrap(directory: Path | None = None, *, master: str = "local") -> None:
    """Prepare this process for its first Spark session. Existing environment variables are kept."""
    with needs_extra("libramq.spark.bootstrap", "spark"):
        import pyspark

    directory = directory or spark_directory()
    if "PYSPARK_PYTHON" not in os.environ:
        # Otherwise workers run whatever `python3` is in the PATH.
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local(master) else _python_by_name()
    if "SPARK_HOME" not in os.environ:
        package = Path(pyspark.__file__).parent
        home = directory / "spark"
        home.mkdir(parents=True, exist_ok=True)
        for name in ("jars", "bin"):  # Deliberately without python/lib, which has the zip.
            _link(home / name, package / name)
        # Suppresses four lines at every start; a user's SPARK_CONF_DIR takes precedence.
        write_file(home / "conf" / "log4j2.properties", LOG_SETTINGS)
        os.environ["SPARK_HOME"] = str(home)
    java = java_home()
    if java is not None:
        os.environ["JAVA_HOME"] = str(java)


def _python_by_name() -> str:
    """Return this Python's name, found on workers and here: Spark starts the driver's helpers by it."""
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    ours = Path(sys.executable).parent
    if not (ours / name).exists():
        return sys.executable
    if shutil.which(name) != str(ours / name):
        os.environ["PATH"] = os.pathsep.join([str(ours), os.environ.get("PATH", os.defpath)])
    return name


def _link(link: Path, target: Path) -> None:
    if link.is_symlink() and link.readlink() == target:
        return
    draft = link.with_name(f"{link.name}.{os.getpid()}")
    draft.symlink_to(target)
    draft.replace(link)


def session(
    app_name: str = "libramq",
    *,
    master: str | None = None,
    settings: Mapping[str, str] | None = None,
    directory: Path | None = None,
    archive: Path | str | None = None,
) -> "SparkSession":
    """Return this process's session, created on first use, with `format("rocketmq")` registered.

    master: by default `local[2]`, or spark-submit's, whose settings are then kept too.
    settings: take precedence over SETTINGS and LOCAL_SETTINGS. directory: for the links and the Java of
    `bootstrap`. archive: for a cluster, packages that its workers lack, as `.tar.gz` or `.zip`; a file, or a
    URL. All of this is optional: any session finds the source, or gets it by `register`.
    """
    with needs_extra("libramq.spark.session", "spark"):
        from pyspark.sql import SparkSession

    if master is None and SUBMITTED not in os.environ:
        master = MASTER
    bootstrap(directory, master=master or "")
    builder = SparkSession.builder.appName(app_name)
    merged: Mapping[str, str] = settings or {}
    if master is not None:
        builder = builder.master(master)
        merged = {**SETTINGS, **_settings_of(master, archive), **merged}
    for name, value in merged.items():
        builder = builder.config(name, value)
    with output.of_java():
        spark = builder.getOrCreate()
    _send_package(spark)
    if not _finds_source(spark):
        register(spark)
    return spark


def _finds_source(spark: "SparkSession") -> bool:
    """Return whether Spark has found the source by itself: it warns of one that is registered again.

    On a cluster it does not see the code that is sent.
    """
    if not is_local(spark.sparkContext.master or ""):
        return False
    state: Any = spark._jsparkSession.sessionState()  # Nothing public says it.
    return bool(state.dataSourceManager().dataSourceExists("rocketmq"))


def _settings_of(master: str, archive: Path | str | None) -> Mapping[str, str]:
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Else a warning about the host's name.
        return LOCAL_SETTINGS
    if archive is None:
        return {}
    return {
        # YARN has its own way of bringing files to containers.
        "spark.yarn.dist.archives" if master == "yarn" else "spark.archives": f"{archive}#{ENVIRONMENT}",
        "spark.executorEnv.PYTHONPATH": ENVIRONMENT,
    }


def _send_package(spark: "SparkSession") -> None:
    """Send this package to a cluster's workers. Before `register`, which records their imports."""
    context = spark.sparkContext
    if is_local(context.master or "") or any(file.endswith(package_zip().name) for file in context.listFiles):
        return
    context.addPyFile(str(package_zip()))


def register(spark: "SparkSession") -> None:
    """Register `format("rocketmq")` in a session, whether or not Spark finds it by itself."""
    from libramq.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
