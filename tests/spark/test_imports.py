"""Tests of which modules Spark's processes load: each one makes their start slower."""

import subprocess
import sys

import pytest


def loaded_by(statement: str) -> set[str]:
    program = f"import sys\n{statement}\nprint(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import libramq.spark", {"pyspark", "pyarrow", "numpy", "libramq.client", "structlog"}),
        # Asked for the schema: nothing that plans or reads.
        ("import pyspark_rocketmq", {"pyarrow", "numpy", "libramq.client", "structlog", "asyncio"}),
        # A task: no client but the queue reader.
        (
            "import libramq.spark.reading.worker",
            {
                "uvloop",
                "asyncio",
                "structlog",
                "libramq.client.producing.producer",
                "libramq.client.consuming.push_consumer",
            },
        ),
    ],
)
def test_an_import_loads_only_what_it_needs(statement: str, unwanted: set[str]):
    assert not loaded_by(statement) & unwanted
