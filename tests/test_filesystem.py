"""The local file system: locks between processes, atomic replacement of texts, reads that do not wait."""

import os
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import libramq
from libramq.filesystem import BUFFERS_MAX, GAP_BYTES, PAGE_BYTES, LocalFileSystem, Ranges

HOLDER = """
import sys
from pathlib import Path
from libramq.filesystem import LocalFileSystem
print(LocalFileSystem().lock(Path(sys.argv[1])) is not None, flush=True)
sys.stdin.read()
"""


def test_a_lock_holds_against_this_process_and_others(tmp_path: Path):
    filesystem = LocalFileSystem()
    path = tmp_path / "lock"
    held = filesystem.lock(path)
    assert held is not None
    assert filesystem.lock(path) is None  # Closing that descriptor kept the lock:
    assert other_process_can_lock(path) is False
    filesystem.close(held)
    assert other_process_can_lock(path) is True
    again = filesystem.lock(path)
    assert again is not None
    filesystem.close(again)


def other_process_can_lock(path: Path) -> bool:
    environment = {**os.environ, "PYTHONPATH": str(Path(libramq.__file__).parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", HOLDER, str(path)], input=b"", capture_output=True, env=environment, check=True
    )
    return done.stdout.strip() == b"True"


def test_a_file_is_replaced_atomically_and_so_is_its_backup(tmp_path: Path):
    filesystem = LocalFileSystem()
    path = tmp_path / "config" / "topics.json"
    assert filesystem.read_text(path) is None
    for text in ("one", "two", "three"):
        filesystem.replace_text(path, text)
    assert (filesystem.read_text(path), path.with_name("topics.json.bak").read_text()) == ("three", "three")
    filesystem.replace_text(path, "four", backup=False)
    assert (filesystem.read_text(path), path.with_name("topics.json.bak").read_text()) == ("four", "three")
    assert sorted(os.listdir(path.parent)) == ["topics.json", "topics.json.bak"]


def test_reads_end_at_the_end_of_the_file(tmp_path: Path):
    filesystem = LocalFileSystem()
    file = filesystem.open(tmp_path / "f", write=True, create=True)
    filesystem.pwrite(file, b"hello", 3)
    assert filesystem.pread(file, 100, 0) == b"\0\0\0hello"
    assert filesystem.pread_nowait(file, 5, 3) == b"hello"
    assert filesystem.pread_nowait(file, 100, 3) == b"hello"
    filesystem.truncate(file, 4)
    filesystem.truncate(file, 10)
    assert filesystem.pread(file, 100, 0) == b"\0\0\0h" + bytes(6)
    filesystem.close(file)


RANGES = ([(0, 5)], [(0, 5), (5, 7)], [(3, 4), (7, 2), (40_000, 9), (60_000, 1)], [(0, 1), (99_990, 10)],
          [(0, 50_000), (70_000, 9), (60_000, 9)])  # fmt: skip


@pytest.mark.parametrize("ranges", [*RANGES, [(2 * number, 1) for number in range(BUFFERS_MAX)]])
def test_ranges_are_read_at_once_without_what_lies_between_them(tmp_path: Path, ranges: Ranges):
    filesystem, data = LocalFileSystem(), random.Random(1).randbytes(100_000)
    (tmp_path / "f").write_bytes(data)
    file = filesystem.open(tmp_path / "f")
    wanted = b"".join(data[offset : offset + size] for offset, size in ranges)
    assert filesystem.pread_ranges_nowait(file, ranges) == wanted
    filesystem.close(file)


def test_ranges_beyond_the_end_of_the_file_are_short(tmp_path: Path):
    filesystem = LocalFileSystem()
    (tmp_path / "f").write_bytes(b"0123456789")
    file = filesystem.open(tmp_path / "f")
    assert filesystem.pread_ranges_nowait(file, [(0, 2), (8, 4)]) == b"0189"
    assert filesystem.pread_ranges_nowait(file, [(4, 2), (8, 2), (GAP_BYTES + 11, 1)]) == b"4589"
    filesystem.close(file)


def test_ranges_that_are_not_in_memory_are_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """The kernel reads up to the first missing page, or refuses at once."""
    filesystem = LocalFileSystem()
    (tmp_path / "f").write_bytes(bytes(100))
    file = filesystem.open(tmp_path / "f")
    for answer in (5, BlockingIOError()):
        replies = iter([answer, BlockingIOError()])

        def preadv(*_: object, replies: Iterator[int | OSError] = replies) -> int:
            reply = next(replies)
            if isinstance(reply, OSError):
                raise reply
            return reply

        monkeypatch.setattr(os, "preadv", preadv)
        assert filesystem.pread_ranges_nowait(file, [(0, 2), (8, 4)]) is None
    filesystem.close(file)


def test_a_tree_is_removed_without_the_targets_of_its_links(tmp_path: Path):
    filesystem = LocalFileSystem()
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    (tmp_path / "tree" / "deep").mkdir(parents=True)
    (tmp_path / "tree" / "deep" / "link").symlink_to(tmp_path / "kept")
    filesystem.remove_tree(tmp_path / "tree")
    filesystem.remove_tree(tmp_path / "never")
    assert filesystem.listdir(tmp_path) == ["kept"]
    assert filesystem.listdir(tmp_path / "kept") == ["file"]
    assert filesystem.listdir(tmp_path / "never") == []


@pytest.mark.parametrize("size", [100, PAGE_BYTES, 3 * PAGE_BYTES])
def test_a_disk_that_begins_to_write_changes_nothing(tmp_path: Path, size: int):
    files = LocalFileSystem()
    file = files.open(tmp_path / "file", write=True, create=True)
    files.truncate(file, 8 * PAGE_BYTES)
    data = os.urandom(size)
    files.pwrite(file, data, 50)
    files.begin_writing(file, size, 50)
    files.pwrite(file, data, 50 + size)
    files.fsync(file)
    assert files.pread(file, 2 * size, 50) == data * 2
    assert files.file_size(file) == 8 * PAGE_BYTES
    assert files.pread_nowait(file, size, 50) == data  # It is still in the page cache.
    files.close(file)
