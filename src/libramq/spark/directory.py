"""The directory for the few files needed to start Spark: links into PySpark, a script for Java.

It is in the user's cache if that can be written, else in the user's own directory below the temporary one. It
is named after the interpreter, because the links differ between interpreters.
"""

import hashlib
import os
import stat
import sys
import tempfile
from pathlib import Path


def _is_mine(directory: Path) -> bool:
    """Return whether only this user can write a directory, whose files will be executed."""
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
