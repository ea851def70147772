"""The tutorial does what it says: it is run as a reader would, and prints what it shows.

LIBRA_WRITE=1 puts what it prints into it instead.
"""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..interop.libra import LibraUp

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENT = ROOT / "docs" / "tutorial.md"
SECONDS_MAX = 600  # A busy machine took 350.
#: Starts in two thirds of the time.
QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto"

pytestmark = [pytest.mark.spark, pytest.mark.timeout(SECONDS_MAX + 50)]


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[LibraUp]:
    """Servers of the reader's own, with their data beside the reader."""
    started = LibraUp(tmp_path, "--data", "libra-data")
    try:
        started.wait_ready()
        yield started
    finally:
        started.stop()


def test_the_tutorial(shop: LibraUp, tmp_path: Path):
    command = [sys.executable, "-m", "tests.docs.executed", DOCUMENT]
    done = subprocess.run(
        [*command, "--write"] if "LIBRA_WRITE" in os.environ else command,
        cwd=tmp_path,
        env={
            **os.environ,
            "NAMESRV_ADDR": shop.namesrv,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
            "JAVA_TOOL_OPTIONS": QUICK,
        },
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4_000:]
