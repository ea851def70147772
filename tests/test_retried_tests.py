"""`scripts/test --retry` runs a few failed tests once more, and hides no failure of pytest itself."""

import json
import os
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parent.parent / "scripts" / "test"
#: The script's functions, and a fake pytest that fails as FAILED says: exit code and failed tests by part.
PROGRAM = r"""
eval "$(sed -n '/^run_part()/,/^}/p; /^RETRIED_MAX=/p; /^retry_failed()/,/^}/p' "$1")"
say() { :; }
python() {
    [[ $1 != - ]] || { command python3 "$@"; return; }
    local part=$5 cache=${7#cache_dir=}
    [[ " $* " != *" --last-failed "* ]] || { echo "again $part"; return "$AGAIN"; }
    mkdir -p "$cache/v/cache"
    command python3 - "$part" "$cache/v/cache/lastfailed" <<'END'
import json, os, pathlib, sys
code, failed = json.loads(os.environ["FAILED"])[sys.argv[1]]
if failed:
    pathlib.Path(sys.argv[2]).write_text(json.dumps(dict.fromkeys(failed, True)))
sys.exit(code)
END
}
names=() passed_alone=() retry=1
run_part others spark 2
echo "status $?"
((${#passed_alone[@]} == 0)) || printf 'alone %s\n' ${passed_alone[@]}
"""
ONE, NINE = ["t.py::one"], [f"t.py::{number}" for number in range(9)]


@pytest.mark.parametrize(
    ("none", "only", "again", "printed"),
    [
        ((0, []), (0, []), 0, ["status 0"]),
        ((1, ONE), (0, []), 0, ["again none", "status 0", "alone t.py::one"]),
        ((0, []), (1, ONE), 0, ["again only", "status 0", "alone t.py::one"]),
        ((1, ONE), (0, []), 1, ["again none", "status 1"]),
        ((1, NINE), (0, []), 0, ["status 1"]),
        ((3, []), (1, ONE), 0, ["status 3"]),
        ((1, ONE), (3, []), 0, ["status 3"]),
        ((1, []), (0, []), 0, ["status 1"]),
    ],
    ids=["none", "one", "one_of_spark", "again", "too_many", "pytest", "pytest_of_spark", "no_test"],
)
def test_failed_tests_are_run_again_if_they_are_few_and_pytest_has_not_failed(
    none: tuple[int, list[str]], only: tuple[int, list[str]], again: int, printed: list[str], tmp_path: Path
) -> None:
    done = subprocess.run(
        ["bash", "-uo", "pipefail", "-c", PROGRAM, "bash", SCRIPT],
        env={
            **os.environ,
            "TMPDIR": str(tmp_path),
            "FAILED": json.dumps({"none": none, "only": only}),
            "AGAIN": str(again),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == printed, done.stderr
