"""The flush of many files: several at once, and the report if some of them fail."""

import errno
import threading
from pathlib import Path

import pytest

from libramq.errors import StoreError, SyncFailed
from libramq.filesystem import FLUSHES_AT_ONCE, LocalFileSystem
from libramq.store.checkpoint import RecoveryPointFile
from libramq.store.config import FlushDiskType
from libramq.store.flush import PATHS_MIN, FlushPlan, run_flush
from tests.fakes import ManualClock
from tests.store.stores import Disk, bodies, kill, message, open_store


class Waiting(LocalFileSystem):
    """A disk whose flushes wait for each other: none ends before the allowed number is in progress."""

    def __init__(self, at_once: int) -> None:
        self._together = threading.Barrier(at_once)

    def fsync(self, file: int) -> None:
        self._together.wait(timeout=60)
        super().fsync(file)


class Failing(LocalFileSystem):
    """A disk with files, by name, that cannot be opened or cannot be flushed."""

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


class Zeroed(Disk):
    """A disk where zeroes are written ahead, by default 1 KiB at a time."""

    def __init__(self, zeroed_bytes: int = 1024) -> None:
        super().__init__()
        self._zeroed_bytes = zeroed_bytes
        #: The written stretches of zeroes.
        self.zeroes: list[tuple[int, int]] = []

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        super().pwrite(file, data, offset)
        if not data.strip(b"\0"):
            self.zeroes.append((offset, len(data)))

    @property
    def zeroed_bytes(self) -> int:
        return self._zeroed_bytes


def files(root: Path, count: int) -> tuple[Path, ...]:
    paths = tuple(root / f"{number:03}" for number in range(count))
    for path in paths:
        path.write_bytes(b"x")
    return paths


def test_many_files_wait_for_the_disk_together(tmp_path: Path):
    """A file system writes its journal once for all waiting flushes; one by one, 10,000 queues took 11 s."""
    run_flush(Waiting(FLUSHES_AT_ONCE), FlushPlan(paths=files(tmp_path, 3 * FLUSHES_AT_ONCE)))


def test_a_topic_that_was_deleted_meanwhile_keeps_nothing_from_being_flushed(tmp_path: Path):
    paths = files(tmp_path, 2 * PATHS_MIN)
    paths[3].unlink()
    disk = Failing({})
    run_flush(disk, FlushPlan(paths=paths, directories=(tmp_path, tmp_path / "gone")))
    assert sorted(disk.opened) == [path.name for path in paths]


class Deleting(LocalFileSystem):
    """A disk where the event loop deletes a topic just before the thread opens one of its directories."""

    def sync_directory(self, path: Path) -> None:
        path.rename(path.with_name("libra.removed"))
        super().sync_directory(path)


def test_a_topic_deleted_while_its_directory_is_flushed_does_not_end_the_store(tmp_path: Path):
    (directory := tmp_path / "T").mkdir()
    run_flush(Deleting(), FlushPlan(directories=(directory,)))
    assert not directory.exists()


@pytest.mark.parametrize("count", [PATHS_MIN - 1, 4 * PATHS_MIN])
def test_a_failed_flush_is_final_even_where_another_file_could_not_be_opened(tmp_path: Path, count: int):
    """The kernel reports the failure only once: if the plan were run again, it would seem to succeed."""
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


class QueuesClosed(Disk):
    """A disk where queue files can no longer be opened once `is_closed` is set."""

    is_closed = False

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        if self.is_closed and "consumequeue" in path.parts:
            raise OSError(errno.EMFILE, "Too many open files")
        return super().open(path, write=write, create=create)


def test_the_log_is_flushed_even_where_a_queue_cannot_be(tmp_path: Path):
    disk = QueuesClosed()
    store = open_store(tmp_path, disk=disk)
    store.append_batch([message("a")])
    store.flush()
    end = store.append_batch([message("b")])[0].end
    disk.is_closed = True
    with pytest.raises(StoreError, match="Too many open files"):
        store.flush()
    assert store.flushed_offset == end
    kill(store)


def test_many_new_queues_are_made_in_slices(tmp_path: Path):
    """50,000 new queues blocked all other work for 20 s.

    Queues that are added meanwhile belong to the next round.
    """
    store = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)

    def made() -> int:
        return sum(1 for path in (tmp_path / "consumequeue").rglob("*") if path.is_file())

    for queue_id in range(200):
        store.append_batch([message("first", queue_id=queue_id)])
    end = store.end
    slices = 0
    while True:
        before = made()
        plan = store.plan_queue_flush(1 << 40)
        assert made() - before <= 32
        store.append_batch([message("later", topic="U", queue_id=slices)])
        slices += 1
        if plan is not None:
            run_flush(store._filesystem, plan)
            store.complete_flush(plan)
        if not store.is_writing_queues:
            break
    assert slices == 200 // 32 + 1
    assert made() == 200
    plan = store.plan_log_flush(1 << 40)
    assert plan is not None
    run_flush(store._filesystem, plan)
    store.complete_flush(plan)
    point = RecoveryPointFile(store._filesystem, tmp_path).load()
    assert point is not None
    assert (point.dispatched, point.units) == (end, 200)
    kill(store)

    again = open_store(tmp_path, mapped_file_size_commit_log=1 << 20)
    assert again.recovery is not None
    assert again.recovery.start == end
    assert all(bodies(again, queue_id=queue_id) == [b"first"] for queue_id in range(200))
    assert all(bodies(again, "U", queue_id) == [b"later"] for queue_id in range(slices))
    again.close()


def test_a_topic_deleted_during_a_round_does_not_look_lost_later(tmp_path: Path):
    """The round's recovery point would count no units, so that a crash would have all queues rebuilt."""
    store = open_store(tmp_path, queue_slice_cost=1)
    for topic in ("T", "U"):
        store.append_batch([message("a", topic=topic)])
    end = store.end
    is_deleted = False
    while not is_deleted or store.is_writing_queues:
        plan = store.plan_queue_flush(1 << 40)
        if not is_deleted:
            store.delete_topic("U")
            is_deleted = True
        if plan is not None:
            run_flush(store._filesystem, plan)
            store.complete_flush(plan)
    plan = store.plan_log_flush(1 << 40)
    assert plan is not None
    run_flush(store._filesystem, plan)
    store.complete_flush(plan)
    kill(store)
    again = open_store(tmp_path)
    assert again.recovery is not None
    assert again.recovery.start == end
    assert bodies(again) == [b"a"]
    again.close()


def test_a_flush_finds_zeroes_where_the_next_records_go(tmp_path: Path):
    """A flush into a hole waits for the file system's journal: for 32 KiB it takes three times as long."""
    disk = Zeroed()
    store = open_store(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    end = store.append_batch([message("one")])[0].end
    assert disk.zeroes == [(end, 1024 - end)]
    while store.end < 1024:
        assert len(disk.zeroes) == 1
        store.append_batch([message("more")])
    assert disk.zeroes[1:] == [(store.end, 2048 - store.end)]
    store.close()
    assert (tmp_path / "commitlog" / f"{0:020}").stat().st_size == 4096


def test_zeroes_end_with_their_file(tmp_path: Path):
    disk = Zeroed(zeroed_bytes=3000)
    store = open_store(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    while store.end < 4096:
        store.append_batch([message("one")])
    assert [offset + size for offset, size in disk.zeroes] == [3000, 4096, 6000 - 4096]
    store.flush()
    assert len(bodies(store)) == store.max_offset("T", 0)


def test_large_records_and_asynchronous_flushes_have_no_zeroes_written_ahead(tmp_path: Path):
    for name, flush_disk_type, body in (
        ("a", FlushDiskType.ASYNC_FLUSH, 10),
        ("s", FlushDiskType.SYNC_FLUSH, 1 << 16),
    ):
        disk = Zeroed()
        store = open_store(
            tmp_path / name, disk=disk, flush_disk_type=flush_disk_type, mapped_file_size_commit_log=1 << 20
        )
        store.append_batch([message(b"x" * body)])
        assert disk.zeroes == []


def test_a_disk_that_refuses_zeroes_still_takes_records(tmp_path: Path):
    disk = Zeroed()
    store = open_store(tmp_path, disk=disk, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    disk.bytes_left = 700
    assert all(store.append_batch([message("one")])[0].is_ok for _ in range(5))
    assert store.failure is None


def test_zeroes_are_written_again_where_a_failed_write_removed_them(tmp_path: Path):
    disk, clock = Zeroed(), ManualClock()
    store = open_store(tmp_path, disk=disk, clock=clock, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store.append_batch([message("one")])
    disk.bytes_left = 10
    assert not store.append_batch([message("two")])[0].is_ok
    disk.bytes_left = None
    disk.zeroes.clear()
    clock.advance(60_000)
    assert store.append_batch([message("three")])[0].is_ok
    assert disk.zeroes == [(store.end, 1024 - store.end)]
    store.flush()
    assert bodies(store) == [b"one", b"three"]
