"""Tests of the session: the caller's settings take precedence over ours, and existing sessions work."""

from typing import TYPE_CHECKING

import pytest

from libramq.spark.spark_session import LOCAL_SETTINGS, SETTINGS

from .conftest import QUICK

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


def test_settings_are_in_force(spark: "SparkSession"):
    for name, value in {**SETTINGS, **LOCAL_SETTINGS}.items():
        if name != "spark.sql.python.filterPushdown.enabled":  # Another test turns it off and on.
            assert spark.conf.get(name) == value, name


def test_arguments_outrank_defaults(spark: "SparkSession"):
    assert spark.conf.get("spark.driver.memory") == QUICK["spark.driver.memory"]
    from libramq.spark import session

    again = session(settings={"spark.sql.shuffle.partitions": "5"})
    try:
        assert again.conf.get("spark.sql.shuffle.partitions") == "5"
        assert again.sparkContext is spark.sparkContext
    finally:
        session()
    assert spark.conf.get("spark.sql.shuffle.partitions") == "2"


def test_workers_run_this_python(spark: "SparkSession"):
    import sys

    found = spark.sparkContext.parallelize([0], 1).map(lambda _: __import__("sys").executable).collect()
    assert found == [sys.executable]
