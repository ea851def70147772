"""An earlier LibraMQ as its users have it: a wheel of its commit, unpacked, to be imported by child programs.

No version has been released yet, so the commit is one before changes to files and requests of LibraMQ's own.
The wheel is built once into .cache/releases from the history of this checkout, with pip.
"""

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

import libramq

ROOT = Path(__file__).parent.parent.parent
CACHE = ROOT / ".cache" / "releases"
OLD_COMMIT = "ddc5400c765b4d201463b8530456f873ff049dcc"
BUILD_TIMEOUT_S = 300
PIP_WHEEL = (sys.executable, "-m", "pip", "wheel", "-q", "--disable-pip-version-check", "--no-deps")


class ReleaseUnavailable(Exception):
    """The old release cannot be built here; the text says what to do."""


def old_release() -> Path:
    """Return the directory to import the earlier libramq from; raises ReleaseUnavailable."""
    site = CACHE / OLD_COMMIT[:12]
    if not (site / "libramq" / "__init__.py").is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="building-") as directory:
            unpacked = Path(directory) / "site"
            with zipfile.ZipFile(_build_old_wheel(Path(directory))) as wheel:
                wheel.extractall(unpacked)
            shutil.rmtree(site, ignore_errors=True)
            # Renamed when it is complete, so that an interrupted run leaves nothing that looks built.
            os.rename(unpacked, site)
    return site


def this_tree() -> Path:
    """Return the directory to import the libramq under test from."""
    return Path(libramq.__file__).parent.parent


def environment(site: Path) -> dict[str, str]:
    """Return the variables for a child process that imports libramq from a directory, and our programs."""
    return {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT)])}


def build_wheel(sources: Path, directory: Path) -> Path:
    """Build a wheel in a directory and return its file; raises ReleaseUnavailable."""
    _run(
        [*PIP_WHEEL, "--wheel-dir", str(directory), str(sources)],
        "pip cannot build a wheel of LibraMQ; it needs hatchling from a package index",
    )
    (wheel,) = directory.glob("libramq-*.whl")
    return wheel


def extract(tar: tarfile.TarFile, directory: Path) -> None:
    """Extract an archive; where Python can, links and paths that lead out of the directory are refused."""
    tar.extraction_filter = getattr(tarfile, "data_filter", None)  # Python 3.11 has it from 3.11.4 on.
    tar.extractall(directory)


def _build_old_wheel(directory: Path) -> Path:
    archive, sources = directory / "sources.tar", directory / "sources"
    _run(
        ["git", "-C", str(ROOT), "archive", "--output", str(archive), OLD_COMMIT],
        f"the earlier LibraMQ is commit {OLD_COMMIT}, which this clone lacks; fetch the whole history:"
        " git fetch --unshallow, or git fetch origin main",
    )
    with tarfile.open(archive) as tar:
        extract(tar, sources)
    return build_wheel(sources, directory)


def _run(command: list[str], failure: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S, check=False)
    if done.returncode:
        raise ReleaseUnavailable(f"{failure}\n{done.stderr.strip()}")
