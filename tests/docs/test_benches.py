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


@pytest.mark.parametrize("name", BENCHES)
def test_every_bench_starts_from_any_directory_and_shows_its_options(name: str, tmp_path: Path):
    done = subprocess.run(
        [sys.executable, ROOT / "bench" / name, "--help"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"usage: {name} ")


def test_every_bench_named_on_a_page_exists():
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "ARCHITECTURE.md"]
    named = {name for page in pages for name in re.findall(r"`bench/([\w./]+)", page.read_text())}
    assert named
    assert all((ROOT / "bench" / name).exists() for name in named)
