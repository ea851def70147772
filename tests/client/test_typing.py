"""The type checker's verdict on programs that use the client: right ones pass, wrong ones fail."""

import re
from pathlib import Path

import pytest
from mypy import api

PROGRAMS = Path(__file__).parent / "programs"
#: Kept from run to run: the client's modules are checked again only where they have changed.
CACHE = Path(__file__).parents[2] / ".cache" / "mypy-programs"


@pytest.fixture(scope="module")
def complaints():
    """Return the lines that mypy complains about, by file; it runs once for all of them."""
    files = sorted(map(str, PROGRAMS.glob("*.py")))
    out, err, _ = api.run(["--strict", "--config-file=", f"--cache-dir={CACHE}", *files])
    assert not err, err
    found = {Path(file).name: {} for file in files}
    for line in out.splitlines():
        match = re.match(r"(.*\.py):(\d+): error: (.*)", line)
        if match:
            found[Path(match[1]).name].setdefault(int(match[2]), []).append(match[3])
    return found


def test_a_right_program_is_accepted(complaints):
    """It has every handler, hook and option that the documentation shows."""
    assert complaints["right.py"] == {}


def test_a_wrong_program_is_refused(complaints):
    """Each line of it is refused, and no other."""
    lines = (PROGRAMS / "wrong.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, start=1) if line.endswith("# wrong")}
    accepted = [lines[number - 1] for number in sorted(wrong - set(complaints["wrong.py"]))]
    assert accepted == []
    assert set(complaints["wrong.py"]) == wrong
