"""Systems without Linux's calls, such as macOS: each call is removed and its replacement is checked."""

import fcntl
import os
import resource
import time
from pathlib import Path

import pytest

from libramq import filesystem
from libramq.cli.failure import failure_line
from libramq.clock import clock_with_sleep
from libramq.transport import admission


@pytest.fixture
def macos(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Remove Linux's calls; return the calls of fcntl with the number of macOS's full flush."""
    for module, name in (
        (os, "RWF_NOWAIT"),
        (os, "preadv"),
        (os, "fdatasync"),
        (os, "posix_fadvise"),
        (time, "CLOCK_BOOTTIME"),
    ):
        monkeypatch.delattr(module, name)
    monkeypatch.setattr("sys.platform", "darwin")
    flushed: list[tuple[int, int]] = []
    real = fcntl.fcntl

    def fake(file: int, command: int, *rest: object) -> object:
        if command == 51:
            flushed.append((file, command))
            return 0
        return real(file, command, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", fake)
    monkeypatch.setattr(filesystem, "HAS_FILE_LOCKS", False)
    return flushed


def test_files_are_read_flushed_and_locked(macos: list[tuple[int, int]], tmp_path: Path):
    files = filesystem.LocalFileSystem()
    file = files.open(tmp_path / "f", write=True, create=True)
    files.pwrite(file, b"hello", 0)
    files.begin_writing(file, 5, 0)
    files.fsync(file)
    assert macos == [(file, 51)], "fsync alone leaves it in the disk's cache"
    assert files.pread_nowait(file, 5, 0) == b"hello"
    files.close(file)
    files.replace_text(tmp_path / "t", "text")
    assert len(macos) == 5, "the file and its directory, and the same for its backup"
    held = files.lock(tmp_path / "lock")
    assert held is not None
    assert files.lock(tmp_path / "lock") is None
    assert files.is_locked(tmp_path / "lock")
    files.close(held)
    assert not files.is_locked(tmp_path / "lock")


def test_a_file_system_without_a_full_flush_is_flushed_as_far_as_it_can(
    macos: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    def refuse(*_: object) -> None:
        raise OSError(95, "not supported")

    synced: list[int] = []
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    monkeypatch.setattr(os, "fsync", synced.append)
    files = filesystem.LocalFileSystem()
    file = files.open(tmp_path / "f", write=True, create=True)
    files.fsync(file)
    files.close(file)
    assert synced == [file]


def test_the_clock_counts_sleep_where_the_system_allows_it(macos: object):
    assert clock_with_sleep() == time.CLOCK_MONOTONIC


def test_the_descriptor_limit_is_raised_as_far_as_macos_allows(monkeypatch: pytest.MonkeyPatch):
    """Its hard limit may be infinite, and yet anything above OPEN_MAX is refused."""
    asked: list[int] = []

    def set_limit(_: int, limits: tuple[int, int]) -> None:
        asked.append(limits[0])
        if limits[0] > 10_240:
            raise ValueError("not allowed")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", set_limit)
    assert admission.raise_limit() == 10_240
    assert asked == [65_536, 10_240]


def test_a_system_without_posix_is_refused_in_one_line():
    error = ModuleNotFoundError("No module named 'fcntl'", name="fcntl")
    line = failure_line(error)
    assert line is not None
    assert line.startswith("LibraMQ runs on Linux and macOS; this Python")
