"""A custom pipeline: the example, with a broker of `libramq.testing`."""

import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import pyarrow.dataset as ds
import pytest

from libramq.message import Message
from libramq.spark import plan_batches
from libramq.sync import Producer
from libramq.testing import Broker

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FILE = Path(__file__).parents[3] / "examples" / "pipeline_of_your_own.py"


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker() as started:
        yield started


@pytest.fixture
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pipeline_of_your_own", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sell(broker: Broker, *cents: int) -> None:
    with Producer(namesrv=broker.namesrv) as producer:
        for number in cents:
            producer.send(Message("Sales", b'{"shop": "Harbour", "cents": %d}' % number))


@pytest.mark.spark
def test_each_sale_is_kept_once_though_a_run_was_killed(
    spark: "SparkSession", broker: Broker, example: ModuleType, tmp_path: Path
):
    given = {"namesrv": broker.namesrv}
    sell(broker, 1, 2, 3)
    assert example.keep_sales(spark, tmp_path, **given) == 3
    sell(broker, 4, 5)
    checkpoint = tmp_path / "sales.checkpoint"
    assert sum(part.row_count for part in plan_batches({**example.OPTIONS, **given}, checkpoint)) == 2
    # Killed after its rows were in the table: Spark does not know of the batch, and repeats it.
    assert example.keep_sales(spark, tmp_path, **given) == 2
    for file in checkpoint.glob("commits/*1*"):
        file.unlink()
    example.keep_sales(spark, tmp_path, **given)
    kept = ds.dataset(tmp_path / "sales", format="parquet", partitioning="hive").to_table()
    assert sorted(kept["cents"].to_pylist()) == [1, 2, 3, 4, 5]


def test_a_plan_needs_no_spark(broker: Broker, example: ModuleType, tmp_path: Path):
    sell(broker, 1, 2)
    parts = plan_batches({**example.OPTIONS, "namesrv": broker.namesrv}, tmp_path / "none")
    assert sum(part.row_count for part in parts) == 2
    assert list(tmp_path.iterdir()) == []
