"""`scripts/test-times` names files that take too long, and failed tests with their errors."""

import importlib.machinery
import importlib.util
import os
import subprocess
import sys
import tomllib
from pathlib import Path

from tests import times

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "test-times"


def test_a_file_that_takes_too_long_without_a_reason_is_named():
    loader = importlib.machinery.SourceFileLoader("test_times_script", str(SCRIPT))
    spec = importlib.util.spec_from_loader(loader.name, loader)
    assert spec is not None
    script = importlib.util.module_from_spec(spec)
    loader.exec_module(script)
    paths = ("tests/a.py", "tests/testing/test_simulation.py", "tests/interop/a.py")
    files = dict.fromkeys(paths, (60.0, 70.0, 1))
    (said,) = script.too_slow("others", files, 1.0)
    assert said.startswith(
        "tests/a.py took 60 s of processor; 20 s are meant, 50 s allowed here. Make its tests"
    )
    assert script.too_slow("others", files, 1.4) == script.too_slow("spark", files, 1.0) == []


def test_every_file_with_a_reason_exists():
    root = SCRIPT.parent.parent
    listed = tomllib.loads((root / "tests" / "slow_files.toml").read_text())
    assert all((root / name).exists() and reason for name, reason in listed.items())


def test_failed_tests_are_named_with_their_errors(tmp_path):
    (tmp_path / "plugin.py").write_text(
        "from tests.times import Times\n"
        "def pytest_configure(config): config.pluginmanager.register(Times())\n"
    )
    (tmp_path / "test_it.py").write_text(
        "import pytest\n@pytest.fixture\ndef broken(): raise OSError('no\\nroom')\n"
        "def test_a(): assert 1 == 2, 'one is not two'\ndef test_b(broken): pass\ndef test_c(): pass\n"
    )
    name = f"of-a-test-{os.getpid()}"
    path = os.pathsep.join([str(SCRIPT.parent.parent), str(tmp_path)])
    environment = {**os.environ, "LIBRAMQ_TEST_TIMES": name, "PYTHONPATH": path}
    pytest = [sys.executable, "-m", "pytest", "-q", "-p", "plugin", "-c", os.devnull, f"--rootdir={tmp_path}"]
    try:
        subprocess.run([*pytest, tmp_path], env=environment, check=False, stdout=subprocess.DEVNULL)
        said = subprocess.check_output([sys.executable, SCRIPT, "--failures", name], text=True)
    finally:
        (times.DIRECTORY / f"{name}.json").unlink(missing_ok=True)
    assert said.splitlines() == [
        "test_it.py::test_a: AssertionError: one is not two",
        "test_it.py::test_b: OSError: no",
    ]
