"""The flush of many files: several at once, and what is said where some of them fail."""

import errno
import threading
from pathlib import Path

import pytest

from libramq.errors import SyncFailed
from libramq.filesystem import FLUSHES_AT_ONCE, LocalFileSystem
from libramq.store.flush import PATHS_MIN, FlushPlan, run_flush


class Waiting(LocalFileSystem):
    """Flushes that wait for each other: none ends before as many as may be under way are."""

    def __init__(self, at_once: int) -> None:
        self._together = threading.Barrier(at_once)

    def fsync(self, file: int) -> None:
        self._together.wait(timeout=60)
        super().fsync(file)


class Failing(LocalFileSystem):
    """Files that cannot be opened, or not be flushed, by name."""

    def __init__(self, failures: dict[str, int]) -> None:
        self._failures = failures
        self.opened: list[str] = []
        self._names: dict[int, str] = {}

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        self.opened.append(path.name)
        if self._failures.get(path.name) == errno.EMFILE:
            raise OSError(errno.EMFILE, "Too many open files")
        file = super().open(path, write=write, create=create)
        self._names[file] = path.name
        return file

    def fsync(self, file: int) -> None:
        if self._failures.get(self._names[file]) == errno.EIO:
            raise OSError(errno.EIO, "the disk is broken")
        super().fsync(file)


def files(root: Path, count: int) -> tuple[Path, ...]:
    paths = tuple(root / f"{number:03}" for number in range(count))
    for path in paths:
        path.write_bytes(b"x")
    return paths


def test_many_files_wait_for_the_disk_together(tmp_path: Path):
    """One by one 10,000 queues took 11 s: a file system writes its journal once for all that wait for it."""
    run_flush(Waiting(FLUSHES_AT_ONCE), FlushPlan(paths=files(tmp_path, 3 * FLUSHES_AT_ONCE)))


def test_a_topic_that_was_deleted_meanwhile_keeps_nothing_from_being_flushed(tmp_path: Path):
    paths = files(tmp_path, 2 * PATHS_MIN)
    paths[3].unlink()
    disk = Failing({})
    run_flush(disk, FlushPlan(paths=paths, directories=(tmp_path, tmp_path / "gone")))
    assert sorted(disk.opened) == [path.name for path in paths]


@pytest.mark.parametrize("count", [PATHS_MIN - 1, 4 * PATHS_MIN])
def test_a_failed_flush_is_final_even_where_another_file_could_not_be_opened(tmp_path: Path, count: int):
    """The kernel reports it once: were the plan run again, it would seem to succeed."""
    disk = Failing({"002": errno.EIO, "004": errno.EMFILE})
    with pytest.raises(SyncFailed, match="002 cannot be flushed"):
        run_flush(disk, FlushPlan(paths=files(tmp_path, count)))


def test_a_failed_flush_is_final_where_the_unopened_file_came_first(tmp_path: Path):
    disk = Failing({"000": errno.EMFILE, "004": errno.EIO})
    paths = files(tmp_path, 4 * PATHS_MIN)
    with pytest.raises(SyncFailed, match="004 cannot be flushed"):
        run_flush(disk, FlushPlan(paths=paths))
    assert len(disk.opened) == len(paths)


def test_where_none_failed_but_some_could_not_be_opened_the_plan_may_be_run_again(tmp_path: Path):
    disk = Failing({"004": errno.EMFILE})
    with pytest.raises(OSError, match="Too many open files"):
        run_flush(disk, FlushPlan(paths=files(tmp_path, 4 * PATHS_MIN)))
