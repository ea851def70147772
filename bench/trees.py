"""Source trees to measure: directories with `src/libramq` in them, or commits, unpacked in .cache/trees."""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache" / "trees"


def source_tree(name: str) -> Path:
    """Return the tree of a directory or commit."""
    directory = Path(name).resolve()
    if (directory / "src" / "libramq").is_dir():
        return directory
    found = _git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}")
    if found.returncode:
        raise SystemExit(f"{name} is neither a directory with src/libramq nor a commit of this repository")
    tree = CACHE / found.stdout.decode().strip()
    if not tree.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE) as directory:
            unpacked = Path(directory) / "tree"
            archive = _git("archive", tree.name, "src", check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(archive)) as members:
                members.extraction_filter = getattr(tarfile, "data_filter", None)  # From 3.11.4 on.
                members.extractall(unpacked)
            # Renamed once complete, so that an interrupted run leaves no partial tree.
            os.rename(unpacked, tree)
    return tree


def environment(tree: Path) -> Mapping[str, str]:
    """Return the environment in which a child process imports libramq from a tree."""
    return {"PYTHONPATH": str(tree / "src")}


def import_from(tree: Path) -> None:
    """Make this process import libramq from a tree; call it before the first import."""
    assert "libramq" not in sys.modules
    sys.path.insert(0, str(tree / "src"))


def revision(tree: Path) -> str:
    """Return a tree's name for tables."""
    return tree.name[:12] if tree.parent == CACHE else str(tree)


def _git(*arguments: str, check: bool = False) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(["git", "-C", str(ROOT), *arguments], capture_output=True, check=check)
