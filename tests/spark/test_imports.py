"""Tests of which modules Spark's processes load: every module slows their start."""

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
        # Only the schema is requested, so nothing that plans or reads is loaded.
        ("import pyspark_rocketmq", {"pyarrow", "numpy", "libramq.client", "structlog", "asyncio"}),
        # A laboratory task: a cluster's workers may lack the packages that render pages.
        ("import libramq.lab.laboratory", {"jinja2", "markupsafe"}),
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


@pytest.mark.parametrize(("module", "is_worker"), [("pyspark.daemon", True), ("__main__", False)])
def test_a_worker_keeps_what_it_has_loaded_out_of_garbage_collections(module: str, is_worker: bool):
    """PySpark's daemon collects after every task; in a user's own process nothing changes."""
    program = (
        "import gc, sys\n"
        "from importlib.machinery import ModuleSpec\n"
        "from libramq.spark.source import RocketMQSource\n"
        f"sys.modules['__main__'].__spec__ = ModuleSpec({module!r}, None)\n"
        "RocketMQSource({'subscribe': 'T'}).schema()\n"
        "print(gc.get_freeze_count())"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert (int(done.stdout) > 10_000) is is_worker
