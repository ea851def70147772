"""README, guides, tutorial and examples are run as a reader would run them, and print what they show.

LIBRA_WRITE=1 puts what they print into them instead.
"""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from . import private_network

ROOT = Path(__file__).resolve().parent.parent.parent
READMES = ("README.md", "README.zh.md")
#: The first one shows all groups that there are.
GUIDES = (
    "docs/lag.md", "docs/produce.md", "docs/consume.md", "docs/order.md", "docs/duplicates.md",
    "docs/dead-letters.md", "docs/testing.md", "docs/web-applications.md", "docs/faststream.md",
    "docs/tracing.md", "docs/logging.md", "docs/from-java.md", "docs/from-kafka.md", "docs/security.md",
    "docs/laboratory.md",
)  # fmt: skip
EXAMPLES = (
    "produce", "consume", "fetch", "simple_consumer", "ordered", "idempotent_handler", "rebalance_events",
    "transaction", "request_reply", "record_batches",
)  # fmt: skip
OF_SPARK = ("docs/tutorial.md", "docs/spark.md", "examples/read_topic_with_spark.py")
SECONDS_MAX = 1_200  # What uses Spark takes a minute, and took six at a load of 18 on two cores.
#: Java starts in two thirds of the time.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

pytestmark = pytest.mark.timeout(SECONDS_MAX + 50)


def run(documents: Sequence[str], directory: Path, *, is_private: bool = True) -> None:
    """Run documents in a directory, in a network of their own unless they need a server of the test's."""
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        "JAVA_TOOL_OPTIONS": QUICK,
    }
    environment.pop("NAMESRV_ADDR", None)
    writing = ["--write"] if "LIBRA_WRITE" in os.environ else []
    program = [
        sys.executable,
        "-m",
        "tests.docs.executed",
        *writing,
        *(str(ROOT / name) for name in documents),
    ]
    done = subprocess.run(
        private_network.command(program) if is_private else program,
        cwd=directory,
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]


@pytest.mark.parametrize("name", READMES)
def test_readme_prints_what_it_shows_in_both_languages(name: str, tmp_path: Path):
    run([name], tmp_path)


def test_guides_and_examples_print_what_they_show(tmp_path: Path):
    run([*GUIDES, *(f"examples/{name}.py" for name in EXAMPLES)], tmp_path)


def test_a_broker_is_killed_as_its_page_shows(tmp_path: Path):
    run(["docs/kill-a-broker.md"], tmp_path)


@pytest.mark.spark
def test_pages_that_use_spark_print_what_they_show(tmp_path: Path):
    run(OF_SPARK, tmp_path)


@pytest.mark.spark
def test_pipelines_are_run_as_their_page_shows(tmp_path: Path):
    run(["docs/pipelines.md"], tmp_path)


def test_every_example_is_run():
    of_spark = {Path(name).stem for name in OF_SPARK if name.endswith(".py")}
    programs = {path.stem for path in (ROOT / "examples").glob("*.py") if not path.stem.startswith("test_")}
    # tests/spark/pipeline/test_batches.py runs the last one.
    assert programs == {*EXAMPLES, *of_spark, "pipeline_of_your_own"}
