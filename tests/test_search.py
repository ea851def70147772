"""scripts/search ends with the commands that run its failures again."""

import runpy
import sys
import time
from pathlib import Path

import pytest

SEARCH = runpy.run_path(str(Path(__file__).resolve().parent.parent / "scripts/search"))
SAYS = "print('  repeat it: libra simulate --seed 7 --log', flush=True); "


def found(program: str, *, seconds: float | None = None) -> list[str]:
    """Return the commands that run the failures of a program again, optionally within some seconds."""
    end = None if seconds is None else time.monotonic() + seconds
    return SEARCH["run"]([sys.executable, "-c", program], end)


def test_a_failure_is_named_by_the_command_that_it_printed(capfd: pytest.CaptureFixture[str]) -> None:
    assert found(SAYS + "exit(1)") == ["libra simulate --seed 7 --log"]
    assert "repeat it" in capfd.readouterr().out
    assert found("print('LIBRA_EXPLORE=1 scripts/test --hypothesis-seed 5 tests/a.py::b'); exit(1)") == [
        "LIBRA_EXPLORE=1 scripts/test --hypothesis-seed 5 tests/a.py::b"
    ]


def test_a_failure_that_names_no_command_is_named_by_its_own() -> None:
    assert found("exit(3)") == [f"{sys.executable} -c 'exit(3)'"]
    assert found("exit(0)") == []


def test_a_failure_that_is_found_before_time_is_up_counts() -> None:
    assert found(SAYS + "import time; time.sleep(60)", seconds=1.0) == ["libra simulate --seed 7 --log"]
    assert found("import time; time.sleep(60)", seconds=1.0) == []
