"""The store on a disk that loses power: everything reported as durable survives."""

import contextlib
import random
from pathlib import Path

import pytest

from libramq.clock import MonotonicMs
from libramq.store import MessageStore, StoreConfig, run_flush
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.process import PowerCut
from libramq.testing.machine.virtual_time import VirtualTime
from tests.quick import quick
from tests.store.stores import bodies, flush, kill, message


def open_on(disk: MemoryDisk, root: str = "/store") -> MessageStore:
    config = StoreConfig(
        root=Path(root),
        mapped_file_size_commit_log=4096,
        mapped_file_size_consume_queue=200,
        tail_bytes=4096,
    )
    store = MessageStore(config, disk, VirtualTime())
    store.open()
    return store


def append(store: MessageStore, *texts: str) -> None:
    for text in texts:
        assert store.append_batch([message(text)])[0].is_ok


def flush_log(store: MessageStore) -> None:
    """Flush the log but no queues, so that recovery has to build them."""
    plan = store._flusher.plan_log(MonotonicMs(0), forced=True)
    assert plan is not None
    run_flush(store._filesystem, plan)
    store.complete_flush(plan)


@pytest.mark.parametrize("was_made_before", [False, True])
@pytest.mark.parametrize("seed", quick(range(10), 4))
def test_a_store_in_new_directories_survives_with_them(seed: int, was_made_before: bool):
    """Only the store and the directory it is in used to be flushed: `storePathRootDir=a/b/store` was lost."""
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    if was_made_before:  # By `mkdir -p`, or by a process that was killed then.
        disk.makedirs(Path("/srv/a/b/store"))
    store = open_on(disk, "/srv/a/b/store")
    append(store, "first")
    flush_log(store)
    disk.power_cut()
    assert bodies(open_on(disk, "/srv/a/b/store")) == [b"first"]


@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_file_names_of_a_killed_process_are_synced_by_the_next(seed: int):
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    store = open_on(disk)
    append(store, "first")
    kill(store)
    disk.process_died()
    store = open_on(disk)
    append(store, "second")
    flush(store)
    disk.power_cut()
    assert bodies(open_on(disk)) == [b"first", b"second"]


@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_a_queue_file_whose_size_was_lost_is_filled_from_the_log(seed: int):
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    store = open_on(disk)
    texts = [f"{number:02}" for number in range(25)]  # Three queue files.
    append(store, *texts)
    (queue,) = store._queues.pending
    store._queues.write_out_queue(queue)
    for path in store._log.segments.paths_between(0, store._log.end):
        disk.fsync(disk.open(path))
    for directory in store._log.segments.take_new_directories():
        disk.sync_directory(directory)
    disk.power_cut()
    assert bodies(open_on(disk)) == [text.encode() for text in texts]


def test_an_interrupted_recovery_can_be_repeated():
    """It is interrupted between any two calls of the disk, by a kill and by a power cut."""
    for is_power in (False, True):
        for calls in range(1, 200):
            disk = MemoryDisk(VirtualTime(), random.Random(calls))
            store = open_on(disk)
            append(store, *(f"{number:02}" for number in range(45)))
            flush_log(store)
            disk.process_died()
            disk.cut_power_after(calls)
            try:
                open_on(disk)
            except PowerCut:
                disk.power_cut() if is_power else disk.process_died()
                assert len(bodies(open_on(disk))) == 45, (is_power, calls)
            else:
                break
        assert calls > 50, "too little is done to be cut off"


@pytest.mark.parametrize("flushes_before", [0, 1])
@pytest.mark.parametrize("seed", quick(range(10), 4))
def test_messages_of_a_deleted_topic_do_not_reappear(seed: int, flushes_before: int):
    """Nor do they take numbers from messages of the recreated topic."""
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    store = open_on(disk)
    append(store, "old 0", "old 1", "old 2")
    for _ in range(flushes_before):
        flush(store)
    store.delete_topic("T")
    append(store, "new 0")
    flush_log(store)
    for number in (1, 2):
        disk.power_cut()
        store = open_on(disk)
        append(store, f"new {number}")
        flush_log(store)
    disk.power_cut()
    assert bodies(open_on(disk)) == [b"new 0", b"new 1", b"new 2"]


@pytest.mark.parametrize("seed", quick(range(10), 4))
def test_a_deleted_topic_stays_deleted(seed: int):
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    store = open_on(disk)
    append(store, "old 0", "old 1")
    flush(store)
    store.delete_topic("T")
    flush_log(store)
    disk.power_cut()
    assert bodies(open_on(disk)) == []


@pytest.mark.parametrize("is_power", [False, True])
@pytest.mark.parametrize("is_made_again", [False, True])
def test_a_topic_whose_deletion_was_cut_off_does_not_reappear_in_parts(is_power: bool, is_made_again: bool):
    """A kill during the removal of a queue's files left some of them, and the store did not open."""
    old = [f"old {number}" for number in range(45)]  # Five files of the queue.
    for calls in range(1, 200):
        disk = MemoryDisk(VirtualTime(), random.Random(calls))
        store = open_on(disk)
        append(store, *old)
        store.append_batch([message("other", topic="Other")])
        flush(store)
        allowed = [[text.encode() for text in old], []]
        disk.cut_power_after(calls)
        with contextlib.suppress(PowerCut):
            store.delete_topic("T")
            flush_log(store)
            allowed = [[]]
            if is_made_again:
                allowed = [[], [b"new"]]
                append(store, "new")
                flush(store)
                allowed = [[b"new"]]
            assert store.removal.left
            store.removal.take_work()()
            disk.cut_power_after(1000)  # It is done.
        is_over = not disk._is_off
        disk.power_cut() if is_power else disk.process_died()
        for _ in range(2):
            store = open_on(disk)
            assert bodies(store) in allowed, calls
            assert bodies(store, "Other") == [b"other"]
            if store.removal.left:
                store.removal.take_work()()
            assert not disk.paths("/store/libra.removed/")
            kill(store)
            disk.process_died()
        if is_over:
            assert calls > 10
            return
    raise AssertionError("the deletion never ended")


def test_a_deletion_in_a_lost_part_of_the_log_hides_no_later_messages():
    """The log lost its end, and a topic of the same name is recreated at the offsets of the old records."""
    disk = MemoryDisk(VirtualTime(), random.Random(3))
    store = open_on(disk)
    append(store, *(f"old {number}" for number in range(8)))
    store.delete_topic("T")
    for path in store.deletions.take_unsynced():
        disk.fsync(disk.open(path))
    for directory in (Path("/store"), Path("/store/commitlog")):
        disk.sync_directory(directory)
    disk.power_cut()  # No part of the log is on the disk.
    store = open_on(disk)
    assert store.end == 0
    append(store, "new 0", "new 1")
    flush_log(store)
    for _ in range(2):
        disk.power_cut()
        store = open_on(disk)
        assert bodies(store) == [b"new 0", b"new 1"]
    assert store.deletions.end_of("T") == 0


@pytest.mark.parametrize("seed", quick(range(20), 6))
def test_a_power_cut_right_after_a_clean_stop_costs_nothing(seed: int):
    """Everything is on the disk when `close` returns: the log, every queue, and the mark of a clean stop."""
    randomness = random.Random(seed)
    disk = MemoryDisk(VirtualTime(), randomness)
    expected: dict[str, list[bytes]] = {}
    for round_ in range(2):
        store = open_on(disk)
        for number in range(60):
            topic = f"T{randomness.randrange(30)}"
            assert store.append_batch([message(f"{round_}-{number}", topic=topic)])[0].is_ok
            expected.setdefault(topic, []).append(f"{round_}-{number}".encode())
            if randomness.random() < 0.1:
                flush(store)
        store.close()
        disk.power_cut()
    store = open_on(disk)
    assert store.recovery is not None
    assert store.recovery.clean
    assert {topic: bodies(store, topic) for topic in expected} == expected
