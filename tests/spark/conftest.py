"""One Spark session and one `libra up` for all tests that need them."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from libramq.sync import Admin

from ..interop.libra import LibraUp, running

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

QUEUES = 4

# A query of a few rows ends before its code would be compiled, and its tasks need no second plan.
INTERPRETED = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
    "spark.sql.adaptive.enabled": "false",
}
# Starts in two thirds of the time; unsuitable for long work.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.driver.memory": "1g",
    **INTERPRETED,
}
#: The standard error of the session's Java and of its Python workers: Spark's log.
LOG = Path(tempfile.gettempdir()) / f"libramq-spark-{os.getpid()}.log"


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from libramq.spark import session

    ours, log = os.dup(2), os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 2)
    try:
        made = session("libramq-tests", settings=QUICK)
    except Exception:
        os.write(ours, LOG.read_bytes())
        raise
    finally:
        os.dup2(ours, 2)
        os.close(ours)
        os.close(log)
    made.sparkContext.setLogLevel("OFF")  # Tests make queries fail on purpose.
    yield made
    made.stop()
    LOG.unlink(missing_ok=True)


@pytest.fixture(scope="session")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LibraUp]:
    with running(tmp_path_factory.mktemp("up")) as started:
        yield started


@pytest.fixture
def topic(up: LibraUp, request: pytest.FixtureRequest) -> str:
    """Return the name of a new topic with four queues, for this test alone."""
    name = request.node.name.replace("[", "-").replace("]", "")
    with Admin(namesrv=up.namesrv) as admin:
        admin.create_topic(name, queues=QUEUES)
    return name
