"""The commands that measure the documentation's figures start, and `--help` explains them."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
#: A process of another one.
INNER = {"rebalance_member", "kafka_rebalance_member"}
BENCHES = sorted(
    path.name
    for path in (ROOT / "bench").iterdir()
    if path.is_file() and os.access(path, os.X_OK) and path.name not in INNER
)


#: Each bench is a fork of one process that has loaded what all need; some choose a tree to load libramq from.
#: What a bench says goes into NAME.out and NAME.err.
PROGRAM = """
import gc, os, runpy, sys, traceback
import asyncio, msgspec, structlog, uvloop
directory, *names = sys.argv[1:]
sys.path.insert(0, directory)
gc.freeze()
for name in names:
    if not os.fork():
        for number, kind in ((1, "out"), (2, "err")):
            os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
        sys.argv = [os.path.join(directory, name), "--help"]
        try:
            runpy.run_path(sys.argv[0], run_name="__main__")
        except SystemExit as ended:
            print(ended.code or "", file=sys.stderr, end="")
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def output(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ask every bench for its options; return the directory with what each said."""
    directory = tmp_path_factory.mktemp("benches")
    subprocess.run(
        [sys.executable, "-c", PROGRAM, ROOT / "bench", *BENCHES],
        cwd=directory,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        timeout=300,
        check=True,
    )
    return directory


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_starts_from_any_directory_and_shows_its_options(name: str, output: Path):
    assert (output / f"{name}.err").read_text() == ""
    assert (output / f"{name}.out").read_text().startswith(f"usage: {name} ")


def test_every_bench_named_on_a_page_exists():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    named = {name for page in pages for name in re.findall(r"`bench/([\w./]+)", page.read_text())}
    assert named
    assert all((ROOT / "bench" / name).exists() for name in named)
