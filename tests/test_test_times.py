"""`scripts/test-times --check`: a file that takes too long is named, with what to do about it."""

import importlib.machinery
import importlib.util
import tomllib
from pathlib import Path

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
