"""The earlier LibraMQ, built from this repository's history."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.compat import release


def test_a_child_process_imports_the_old_release(old: Path):
    program = "import libramq; print(libramq.__file__)"
    environment = release.environment(old)
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == [str(old / "libramq" / "__init__.py")]


def test_a_history_without_the_release_names_the_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(release, "CACHE", tmp_path)
    monkeypatch.setattr(release, "OLD_COMMIT", "0" * 40)
    with pytest.raises(release.ReleaseUnavailable, match="git fetch --unshallow"):
        release.old_release()
    assert list(tmp_path.iterdir()) == []
