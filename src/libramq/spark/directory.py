"""The directory for the few files that starting Spark needs: links into PySpark, a script for Java.

In the user's cache when that can be written, else in a directory of the user's own under the
temporary directory. Named by the interpreter, because the links differ from one to the next.
"""

import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path


def _is_mine(directory: Path) -> bool:
    """A directory that only this user can write: what lies in it will be executed."""
    found = directory.lstat()
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def spark_directory() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME")
    name = "libramq-" + hashlib.sha256(sys.prefix.encode()).hexdigest()[:16]
    candidates = [
        Path(cache) if cache else Path("~/.cache").expanduser(),
        Path(tempfile.gettempdir()) / f"libramq-{os.getuid()}",
    ]
    for parent in candidates:
        directory = parent / name
        try:
            directory.mkdir(parents=True, mode=0o700, exist_ok=True)
            if _is_mine(directory) and os.access(directory, os.W_OK):
                return directory
        except OSError:
            continue
    return Path(tempfile.mkdtemp(prefix="libramq-"))
