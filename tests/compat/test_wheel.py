"""The wheel of this tree works in an empty environment: it needs nothing from a checkout."""

import subprocess
import sys
import venv
from pathlib import Path

import libramq

from . import release

SECONDS_MAX = 300


def test_the_wheel_works_in_an_empty_environment(tmp_path: Path):
    wheel = release.build_wheel(release.ROOT, tmp_path)
    home = tmp_path / "environment"
    venv.create(home, with_pip=False, symlinks=True)
    pip = [sys.executable, "-m", "pip", "--python", str(home), "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--no-compile", str(wheel)], check=True, timeout=SECONDS_MAX)

    def libra(*arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [str(home / "bin" / "libra"), *arguments]
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False, cwd=tmp_path, env={}
        )

    version = libra("--version")
    assert (version.stdout, version.stderr) == (f"libra {libramq.__version__}\n", "")
    # The name server, brokers and all kinds of clients work without any of the extras.
    simulated = libra("simulate", "--seed", "1")
    assert simulated.returncode == 0, simulated
    assert "every invariant held" in simulated.stdout
    needs_spark = libra("lab", "run", "--dry-run")
    assert (needs_spark.returncode, len(needs_spark.stderr.splitlines())) == (2, 1), needs_spark
    assert "pip install 'libramq[spark,java]'" in needs_spark.stderr
    typed, templates = (
        list(home.glob(f"lib/python*/site-packages/libramq/{name}"))
        for name in ("py.typed", "report/templates/page.html")
    )
    assert (len(typed), len(templates)) == (1, 1)
