"""One Spark session for all tests that need one."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# Starts in two thirds of the time; not for work that lasts.
QUICK = {
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto",
    "spark.driver.memory": "1g",
}


@pytest.fixture(scope="session")
def spark() -> Iterator["SparkSession"]:
    from libramq.spark import session

    made = session("libramq-tests", settings=QUICK)
    made.sparkContext.setLogLevel("OFF")  # Tests make queries fail on purpose.
    yield made
    made.stop()
