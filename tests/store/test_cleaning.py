"""Old files: which ones are removed, what readers observe, and the state after a crash in between."""

import errno
import itertools
import os
import random
import shutil
from pathlib import Path

import pytest

from libramq.filesystem import DiskUsage
from libramq.store import MessageStore, ReadStatus, StoreConfig
from libramq.store.queues.consume_queue import Boundary
from libramq.store.reading.read import ReadResult
from libramq.store.retention import OldFile, Retention, expired_files
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime
from tests.fakes import ManualClock
from tests.store.stores import (
    Disk,
    bodies,
    clean,
    flush,
    kill,
    message,
    open_store,
    plan_flush,
    remove_old_files,
)

HOUR_MS = 3_600_000
NOW_MS = 1_000 * HOUR_MS
ROOM, AT_MAX, OVER_MAX, AT_FORCIBLY = (DiskUsage(used, 1_000 - used) for used in (100, 750, 751, 850))


def files(*ages_hours: float) -> list[OldFile]:
    return [OldFile(n * 10, 10, int(NOW_MS - age * HOUR_MS)) for n, age in enumerate(ages_hours)]


@pytest.mark.parametrize(
    ("ages_hours", "space", "hour", "expected"),
    [
        ((90, 73, 72, 71), ROOM, 4, (3, 0)),
        ((90, 73, 72, 71), ROOM, 5, (0, 0)),
        ((90, 73, 72, 71), AT_MAX, 5, (0, 0)),
        ((90, 73, 72, 71), OVER_MAX, 5, (3, 0)),
        ((1, 90, 90), ROOM, 4, (0, 0)),  # Never one in the middle.
        ((3, 2, 1), AT_FORCIBLY, 5, (0, 0)),
        ((3, 2, 1), DiskUsage(851, 149), 5, (1, 1)),
        ((3, 2, 1), DiskUsage(861, 139), 5, (2, 2)),
        ((90, 2, 1), DiskUsage(861, 139), 5, (2, 1)),
        ((90, 80, 1), DiskUsage(861, 139), 5, (2, 0)),
        ((3, 2, 1), DiskUsage(1_000, 0), 5, (3, 3)),
        ((90,) * 20, ROOM, 4, (10, 0)),
        ((1,) * 20, DiskUsage(1_000, 0), 4, (10, 10)),
        ((), DiskUsage(1_000, 0), 4, (0, 0)),
        ((90,), DiskUsage(0, 0), 5, (0, 0)),
    ],
)
def test_files_are_chosen_for_deletion(ages_hours, space, hour, expected):
    assert expired_files(files(*ages_hours), space, Retention(), now_ms=NOW_MS, hour=hour) == expected


def test_a_ratio_of_100_deletes_nothing():
    retention = Retention(disk_max_used_percent=100, clean_forcibly_percent=100, delete_hours=frozenset())
    full = DiskUsage(1_000, 0)
    assert expired_files(files(90, 80), full, retention, now_ms=NOW_MS, hour=4) == (0, 0)


def filled(root: Path, **options: object) -> MessageStore:
    """Fill a store with sixty messages of one queue: nine a file of the log, ten a file of the queue."""
    store = open_store(root, **options)
    for number in range(60):
        assert store.append_batch([message(b"%03d" % number + b"." * 400)])[0].is_ok
    flush(store)
    return store


def names(root: Path, below: str) -> list[int]:
    return sorted(int(path.name) for path in (root / below).iterdir())


def test_files_are_deleted_by_age_and_queues_begin_with_what_is_left(tmp_path: Path):
    clock = ManualClock()
    store = filled(tmp_path, clock=clock)
    starts = names(tmp_path, "commitlog")
    for position, start in enumerate(starts):
        stored_s = clock.wall_ms() / 1000 - (73 if position < 2 else 71) * 3600
        os.utime(tmp_path / "commitlog" / f"{start:020d}", (stored_s, stored_s))
    assert clean(store, Retention(), hour=5) == 0
    assert clean(store, Retention(), hour=4) == 2
    assert names(tmp_path, "commitlog") == starts[2:]
    assert names(tmp_path, "consumequeue/T/0")[0] == 200, "numbers 0 to 9 no longer have messages"
    first = store.min_offset("T", 0)
    assert 10 < first < 20
    assert [body[:3] for body in bodies(store)] == [b"%03d" % number for number in range(first, 60)]
    too_small = store.read("T", 0, first - 1, 32)
    assert (too_small.status, too_small.next_offset) == (ReadStatus.OFFSET_TOO_SMALL, first)
    assert store.offset_by_timestamp("T", 0, 0, Boundary.LOWER) == first
    assert clean(store, Retention(), hour=4) == 0
    store.close()


def test_the_current_file_and_files_needed_for_recovery_are_never_deleted(tmp_path: Path):
    store = filled(tmp_path)
    last = names(tmp_path, "commitlog")[-1]
    assert remove_old_files(store, 100) > 2
    assert names(tmp_path, "commitlog") == [last]
    for number in range(60, 90):
        store.append_batch([message(b"%03d" % number + b"." * 400)])
    assert remove_old_files(store) == 0, "its units are not on the disk"
    flush(store)
    assert remove_old_files(store) > 0
    store.close()


def test_unwritten_units_are_searched_in_memory(tmp_path: Path):
    store = filled(tmp_path)
    for number in range(30):
        store.append_batch([message(b"%03d" % number + b"." * 400, "Late")])
    plan = plan_flush(store, 1 << 40, thorough=True)
    assert plan is not None
    store.complete_flush(plan)
    assert remove_old_files(store, 100) > 0
    first = store.min_offset("Late", 0)
    assert 0 < first < 30
    assert store.min_offset("T", 0) == 60
    assert [body[:3] for body in bodies(store, "Late")] == [b"%03d" % number for number in range(first, 30)]
    store.close()


def test_readers_of_a_deleted_file_learn_where_the_queue_begins(tmp_path: Path):
    """A read that waits for a thread may only be completed after the file was deleted."""
    disk = Disk()
    store = filled(tmp_path, disk=disk)
    disk.is_cold = True
    cold = store.read("T", 0, 3, 5, may_wait=False)
    assert cold.status is ReadStatus.WOULD_WAIT
    assert remove_old_files(store) > 0
    store.warm(cold.cold)
    again: ReadResult = store.read("T", 0, 3, 5, may_wait=True)
    assert again.status is ReadStatus.OFFSET_TOO_SMALL
    assert store.record_at(0) is None
    store.close()


class Cut(Exception):
    """Raised where the process is killed."""


class CuttingDisk(Disk):
    """A disk whose process is killed after a number of removals."""

    def __init__(self, left: int) -> None:
        super().__init__()
        self.left = left

    def unlink(self, path: Path) -> None:
        if not self.left:
            raise Cut
        self.left -= 1
        super().unlink(path)


@pytest.mark.parametrize("removals", range(8))
def test_a_kill_amid_the_removals_leaves_a_store_that_opens(tmp_path: Path, removals: int):
    disk = CuttingDisk(100)
    store = filled(tmp_path, disk=disk)
    disk.left = removals
    try:
        assert remove_old_files(store, 4) == 4
    except Cut:
        assert removals < 7
    kill(store)
    again = open_store(tmp_path)
    first = again.min_offset("T", 0)
    assert names(tmp_path, "commitlog")[0] == again.statistics().min_physical_offset
    assert (first == 0) == (removals == 0)
    assert [body[:3] for body in bodies(again)] == [b"%03d" % number for number in range(first, 60)]
    assert again.append_batch([message("next")])[0].queue_offset == 60
    again.close()


@pytest.mark.parametrize("seed", range(10))
def test_offsets_of_deleted_messages_are_not_reused_after_a_power_cut(seed: int):
    """The recovery point used not to be on the disk, so that recovery cut the queue at an older one."""
    disk, root = MemoryDisk(VirtualTime(), random.Random(seed)), Path("/store")
    config = StoreConfig(
        root=root, mapped_file_size_commit_log=4096, mapped_file_size_consume_queue=200, tail_bytes=4096
    )
    store = MessageStore(config, disk, ManualClock())
    store.open()
    for _ in range(30):
        assert store.append_batch([message(bytes(400))])[0].is_ok
    assert store.append_batch([message(bytes(400), "Later") for _ in range(9)])[0].is_ok
    flush(store)
    disk.percent_used = 99.0
    assert clean(store, Retention(clean_forcibly_percent=0, files_per_round_max=100)) > 2
    assert store.min_offset("T", 0) == 30
    disk.power_cut()
    again = MessageStore(config, disk, ManualClock())
    again.open()
    assert again.append_batch([message("next")])[0].queue_offset == 30


def test_the_last_file_with_something_on_the_disk_stays(tmp_path: Path):
    """A power cut may leave nothing of a newer file, and a log without files is not opened."""
    store = filled(tmp_path)
    kill(store)
    *_, before, last = names(tmp_path, "commitlog")
    (tmp_path / "commitlog" / f"{last:020d}").write_bytes(bytes(4096))
    shutil.rmtree(tmp_path / "consumequeue")
    for name in ("libra.checkpoint", "abort"):
        (tmp_path / name).unlink()
    again = open_store(tmp_path)
    assert (again.end, names(tmp_path, "commitlog")[-1]) == (last, last)
    assert remove_old_files(again, 100) > 2
    assert names(tmp_path, "commitlog") == [before, last]
    again.close()


@pytest.mark.parametrize("gone", list(itertools.product([False, True], repeat=3)))
@pytest.mark.parametrize("clean_stop", [True, False])
def test_a_queue_opens_whichever_of_its_old_files_are_gone(tmp_path: Path, gone, clean_stop):
    """Removals are not synced, so a power cut may bring back any of the files."""
    store = filled(tmp_path)
    removed = {name: (tmp_path / "consumequeue/T/0" / f"{name:020d}").read_bytes() for name in (0, 200, 400)}
    assert remove_old_files(store, 4) == 4
    assert names(tmp_path, "consumequeue/T/0")[0] == 600
    first = store.min_offset("T", 0)
    store.close() if clean_stop else kill(store)
    for is_gone, (name, data) in zip(gone, removed.items(), strict=True):
        if not is_gone:
            (tmp_path / "consumequeue/T/0" / f"{name:020d}").write_bytes(data)
    again = open_store(tmp_path)
    assert again.min_offset("T", 0) == first
    assert [body[:3] for body in bodies(again)] == [b"%03d" % number for number in range(first, 60)]
    again.close()


def test_a_queue_without_a_file_that_is_needed_is_built_again(tmp_path: Path):
    store = filled(tmp_path)
    expected = bodies(store)
    store.close()
    (tmp_path / "consumequeue/T/0" / f"{400:020d}").unlink()
    again = open_store(tmp_path)
    assert bodies(again) == expected
    again.close()


def test_files_the_disk_fails_to_remove_are_retried_and_replaced_by_no_others(tmp_path: Path, caplog):
    disk = Disk()
    store = filled(tmp_path, disk=disk)
    starts = names(tmp_path, "commitlog")
    unlink = disk.unlink

    def refuse(path: Path) -> None:
        raise OSError(errno.EIO, "the disk is broken")

    disk.unlink = refuse  # type: ignore[method-assign]
    for _ in range(3):
        remove_old_files(store, 2)
    assert names(tmp_path, "commitlog") == starts
    assert store.statistics().min_physical_offset == starts[2]
    disk.unlink = unlink  # type: ignore[method-assign]
    assert clean(store, Retention()) == 0
    assert names(tmp_path, "commitlog") == starts[2:]
    store.close()


def test_a_recreated_topic_keeps_its_files(tmp_path: Path):
    """Its first file has the same name as one that a thread is about to remove."""
    store = filled(tmp_path)
    store._filesystem.space = DiskUsage(1 << 60, 0)  # type: ignore[attr-defined]
    steps = store.cleaning.clean(Retention(clean_forcibly_percent=0), lambda _: 12)
    work = next(steps).work
    while work.func.__name__ != "_remove_files":
        work = steps.send(work()).work
    store.delete_topic("T")
    assert store.append_batch([message("anew")])[0].queue_offset == 0
    assert store.plan_queue_flush(1 << 40) is None, "its units wait in memory"
    with pytest.raises(StopIteration):
        steps.send(work())
    store._filesystem.space = DiskUsage(10, 90)  # type: ignore[attr-defined]
    flush(store)
    assert names(tmp_path, "consumequeue/T/0") == [0]
    assert bodies(store) == [b"anew"]
    kill(store)
    again = open_store(tmp_path)
    assert bodies(again) == [b"anew"]
    again.close()


@pytest.mark.parametrize("end", ["clean stop", "kill", "kill without a flush"])
def test_a_raised_minimum_offset_survives_a_restart(tmp_path: Path, end: str):
    store = filled(tmp_path)
    store.append_batch([message("other", "Other")])
    assert store.raise_min_offset("T", 0, 25) == 25
    assert store.raise_min_offset("T", 0, 7) == 25
    assert store.raise_min_offset("T", 9, 7) == 0
    assert store.read("T", 0, 24, 1).status is ReadStatus.OFFSET_TOO_SMALL
    assert not store.is_flushed
    if end != "kill without a flush":
        flush(store)
    kill(store) if "kill" in end else store.close()
    again = open_store(tmp_path)
    assert again.min_offset("T", 0) == 25
    assert again.min_offset("Other", 0) == 0
    assert again.raise_min_offset("T", 0, 1 << 60) == 60
    assert again.read("T", 0, 60, 1).status is ReadStatus.OFFSET_OVERFLOW_ONE
    kill(again)
    last = open_store(tmp_path)
    assert (last.min_offset("T", 0), last.max_offset("T", 0)) == (60, 60)
    last.delete_topic("T")
    assert last.append_batch([message("anew")])[0].queue_offset == 0
    kill(last)
    anew = open_store(tmp_path)
    assert bodies(anew) == [b"anew"]
    anew.close()
