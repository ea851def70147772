"""The clocks: what the type checker refuses, and how a moment is converted from one clock to the other."""

import subprocess
import sys
from pathlib import Path

import pytest

from libramq.clock import Now

PROLOGUE = """
from libramq.clock import Clock, MonotonicMs, Now, WallMs
from libramq.groups.consumer_group import Session

def sentence(clock: Clock, session: Session) -> None:
    wall_ms, now_ms = clock.wall_ms(), clock.monotonic_ms()
"""
#: Correct code, then wrong code: one statement each, and the error of the line.
RIGHT = (
    "due_ms: MonotonicMs = now_ms + 500",
    "waited_ms: int = now_ms - due_ms",
    "is_due: bool = now_ms >= due_ms",
    "expires_ms: WallMs = wall_ms + 500",
    "session.seen(now_ms=now_ms)",
    "recorded: int = int(wall_ms)",
    "shown_ms: WallMs = Now(wall_ms=wall_ms, monotonic_ms=now_ms).wall_of(due_ms)",
)
WRONG = {
    "session.seen(now_ms=wall_ms)": "arg-type",
    "Now(wall_ms=now_ms, monotonic_ms=now_ms)": "arg-type",
    "late_ms = wall_ms - now_ms": "operator",
    "age_ms = now_ms - wall_ms": "operator",
    "elapsed_ms = wall_ms - clock.wall_ms()": "operator",
    "is_over = now_ms > wall_ms": "operator",
    "is_now = now_ms == wall_ms": "comparison-overlap",
    "until_ms: MonotonicMs = wall_ms + 1": "assignment",
    "by_ms: MonotonicMs = 5_000": "assignment",
    "at_ms: WallMs = 1_700_000_000_000": "assignment",
}


def errors_of(directory: Path, statements: tuple[str, ...]) -> dict[str, str]:
    """Return mypy's error for each statement that has one."""
    program = directory / "program.py"
    program.write_text(PROLOGUE + "".join(f"    {statement}\n" for statement in statements))
    source = Path(__file__).parents[1] / "src"
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--hide-error-context", program],
        cwd=directory,
        env={"MYPYPATH": str(source), "PATH": "", "MYPY_CACHE_DIR": str(directory / "cache")},
        capture_output=True,
        text=True,
        timeout=380,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert not done.stderr, done.stderr
    assert all(line.startswith("program.py:") for line in lines), lines
    first = PROLOGUE.count("\n") + 1
    return {statements[int(line.split(":")[1]) - first]: line.rpartition("[")[2][:-1] for line in lines}


def test_the_type_checker_refuses_one_clock_for_the_other(tmp_path):
    """Mixing clocks, subtracting two wall times, or making up a time is refused; the rest is accepted."""
    assert errors_of(tmp_path, (*RIGHT, *WRONG)) == WRONG


@pytest.mark.parametrize("set_by_ms", [-3_600_000, 0, 3_600_000])
def test_times_recorded_together_keep_their_distance(set_by_ms):
    now = Now(wall_ms=1_700_000_000_000 + set_by_ms, monotonic_ms=9_000)
    assert now.wall_of(9_000) == now.wall_ms
    assert now.wall_of(8_000) - now.wall_of(5_500) == 2_500
