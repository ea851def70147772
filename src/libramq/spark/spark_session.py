"""A Spark session for Python sources, on this machine or a cluster: settings, environment variables, and
sending this package to workers.

Before the JVM starts, this module sets what PySpark leaves to chance: the workers' Python, the Java, and that
workers import this environment's compiled PySpark instead of the one in a zip file (half a second less for
every new worker). The caller can override each setting.

A cluster's workers have different paths. There the Python is found by name, with the driver's version, and
the package is sent (`worker_code`). docs/clusters.md says what else workers need.
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
        # Progress bars would overwrite the program's output.
        "spark.ui.showConsoleProgress": "false",
        # Casts to text and dates would otherwise use the machine's time zone.
        "spark.sql.session.timeZone": "UTC",
        # Saves 40 ms for every Python task compared with TCP over loopback.
        "spark.python.unix.domain.socket.enabled": "true",
        # If off, every query on a source with push-down fails; ours has it with option("pushdown", "true").
        "spark.sql.python.filterPushdown.enabled": "true",
        # Keeps state on disk rather than in the JVM's memory; transformWithState requires it.
        "spark.sql.streaming.stateStore.providerClass": (
            "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
        ),
        # A batch uploads only its changes, not the whole state.
        "spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled": "true",
    }
)
"""Settings for every master. Chosen, like LOCAL_SETTINGS, by measuring short tasks and small batches."""

LOCAL_SETTINGS: Final[Mapping[str, str]] = MappingProxyType(
    {
        # Spark's default of 200 is for clusters: each partition is a task in every batch. Fixed for the life
        # of a stateful checkpoint.
        "spark.sql.shuffle.partitions": "2",
        # The web UI would take a port that may be in use.
        "spark.ui.enabled": "false",
        # No other machine needs to reach this driver, and a laptop's host name often does not resolve.
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        # Renames local files without forking a process, which saves 20 ms for each of a batch's two logs.
        # Unsafe on a shared store.
        "spark.sql.streaming.checkpointFileManagerClass": (
            "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
        ),
    }
)
"""Settings for `local[…]` masters only: one driver on one machine."""


#: Spark's own defaults, at the log level of its shells; with this file Spark prints nothing about either.
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

#: Ours: two cores, because a laptop has other work.
MASTER: Final = "local[2]"
#: Set by spark-submit, which has already started the JVM.
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
        # By default, workers run the first `python3` on the PATH.
        os.environ["PYSPARK_PYTHON"] = sys.executable if is_local(master) else _python_by_name()
    if "SPARK_HOME" not in os.environ:
        package = Path(pyspark.__file__).parent
        home = directory / "spark"
        home.mkdir(parents=True, exist_ok=True)
        for name in ("jars", "bin"):  # Deliberately not python/lib, which has the zip.
            _link(home / name, package / name)
        # Suppresses four lines at every start; a user's SPARK_CONF_DIR takes precedence.
        write_file(home / "conf" / "log4j2.properties", LOG_SETTINGS)
        os.environ["SPARK_HOME"] = str(home)
    java = java_home()
    if java is not None:
        os.environ["JAVA_HOME"] = str(java)


def _python_by_name() -> str:
    """Return a name for this Python that works on workers and here: Spark also starts helpers here by it."""
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
    `bootstrap`. archive: for a cluster, packages that its workers lack, as `.tar.gz` or `.zip`; a file or a
    URL. This function is optional: any other session finds the source by itself or with `register`.
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
    """Return whether Spark has found the source by itself; registering it again would cause a warning.

    On a cluster, Spark does not see the code that is sent.
    """
    if not is_local(spark.sparkContext.master or ""):
        return False
    state: Any = spark._jsparkSession.sessionState()  # No public API has it.
    return bool(state.dataSourceManager().dataSourceExists("rocketmq"))


def _settings_of(master: str, archive: Path | str | None) -> Mapping[str, str]:
    if is_local(master):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")  # Avoids a warning about the host name.
        return LOCAL_SETTINGS
    if archive is None:
        return {}
    return {
        # YARN has its own setting for files that containers need.
        "spark.yarn.dist.archives" if master == "yarn" else "spark.archives": f"{archive}#{ENVIRONMENT}",
        "spark.executorEnv.PYTHONPATH": ENVIRONMENT,
    }


def _send_package(spark: "SparkSession") -> None:
    """Send this package to a cluster's workers. Call it before `register`, which records the imports."""
    context = spark.sparkContext
    if is_local(context.master or "") or any(file.endswith(package_zip().name) for file in context.listFiles):
        return
    context.addPyFile(str(package_zip()))


def register(spark: "SparkSession") -> None:
    """Register `format("rocketmq")` in a session, even if Spark finds it by itself."""
    from libramq.spark.source import RocketMQSource

    spark.dataSource.register(RocketMQSource)
