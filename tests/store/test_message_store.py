"""The message store: appended, read, flushed, closed and opened again."""

import errno
import os
import random
from pathlib import Path

import pytest

from libramq.errors import StoreCorrupt, StoreLocked, SyncFailed
from libramq.message import decode_records, tag_code
from libramq.message import sys_flag as flags
from libramq.message.ids import encode_host
from libramq.store import AppendStatus, FlushDiskType, MessageStore, ReadStatus, StoreMessage, run_flush
from libramq.store.reading.read import warm
from tests.fakes import ManualClock
from tests.quick import quick
from tests.store.stores import (
    BORN,
    Disk,
    bodies,
    copy_as_killed,
    flush,
    kill,
    make_store,
    message,
    open_store,
    plan_flush,
    read_all,
    remove_old_files,
)


def test_a_message_round_trips(tmp_path: Path):
    clock = ManualClock(wall_ms=1_700_000_000_123)
    store = open_store(tmp_path, clock=clock)
    (result,) = store.append_batch([
        StoreMessage(
            "T", 3, b"body", b"TAGS\x01A\x02", tag_code("A"), flag=9, sys_flag=flags.MULTI_TAGS,
            born_timestamp_ms=77, born_host=BORN, reconsume_times=2, prepared_transaction_offset=5,
        )
    ])  # fmt: skip
    assert result.status is AppendStatus.PUT_OK
    assert (result.physical_offset, result.queue_offset) == (0, 0)
    assert result.offset_id == "7F00000100002A9F0000000000000000"
    read = store.read("T", 3, 0, 32)
    assert (read.status, read.next_offset, read.min_offset, read.max_offset) == (ReadStatus.FOUND, 1, 0, 1)
    (found,) = decode_records(b"".join(read.data))
    assert (found.topic, found.queue_id, found.body, found.flag) == ("T", 3, b"body", 9)
    assert (found.sys_flag, found.born_timestamp_ms, found.born_host) == (2, 77, ("10.1.2.3", 4567))
    assert (found.store_timestamp_ms, found.store_host) == (1_700_000_000_123, ("127.0.0.1", 10911))
    assert (found.reconsume_times, found.prepared_transaction_offset) == (2, 5)
    assert found.store_size == result.size
    assert store.take_changes()[0] == {("T", 3): 1}
    assert store.take_changes()[0] == {}
    store.close()


def test_one_batch_is_one_write_in_one_file(tmp_path: Path):
    """A batch that does not fit is moved whole to the next file, after a blank."""
    disk = Disk()
    store = open_store(tmp_path, disk=disk)
    store.append_batch([message(b"x" * 3000)])
    disk.writes.clear()
    results = store.append_batch([message(b"y" * 300, queue_id=i % 2) for i in range(4)])
    assert [r.queue_offset for r in results] == [1, 0, 2, 1]
    assert results[0].physical_offset == 4096
    assert len(disk.writes) == 2  # The blank and the batch.
    end_of_first = 3000 + 91 + 1
    blank = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()[end_of_first : end_of_first + 8]
    assert blank == (4096 - end_of_first).to_bytes(4) + bytes.fromhex("cbd43194")
    assert bodies(store) == [b"x" * 3000, b"y" * 300, b"y" * 300]
    store.close()


def test_eight_bytes_are_always_left_for_the_blank(tmp_path: Path):
    """A record may fill the file up to eight bytes before its end, and not one byte more."""
    fixed = 92
    store = open_store(tmp_path)
    first, second = store.append_batch([message(b"a" * (4096 - 8 - fixed))]) + store.append_batch(
        [message(b"b")]
    )
    assert (first.physical_offset, second.physical_offset) == (0, 4096)
    (third,) = store.append_batch([message(b"c" * (4096 - 8 - 93 - fixed + 1))])
    assert third.physical_offset == 8192
    assert bodies(store) == [b"a" * (4096 - 8 - fixed), b"b", b"c" * (4096 - 8 - 93 - fixed + 1)]
    kill(store)
    again = open_store(tmp_path)
    assert [len(body) for body in bodies(again)] == [3996, 1, 3904]
    again.close()


def test_a_batch_larger_than_a_file_is_split_and_a_message_larger_is_refused(tmp_path: Path):
    store = open_store(tmp_path)
    results = store.append_batch([message(bytes([i]) * 1000) for i in range(10)])
    assert all(result.is_ok for result in results)
    assert bodies(store) == [bytes([i]) * 1000 for i in range(10)]
    assert store.append_batch([message(b"z" * 4090)])[0].status is AppendStatus.MESSAGE_ILLEGAL
    store.close()


def test_invalid_messages_do_not_spoil_their_batch(tmp_path: Path):
    store = open_store(tmp_path, max_message_size=100)
    bad_properties = message(b"x")
    bad_properties.properties_text = b"p" * 32768
    bad_number = message(b"x")
    bad_number.flag = 1 << 31
    batch = [
        message("one"), message(b"x" * 101), bad_properties, bad_number, message("x", topic="../up"),
        message("x", queue_id=-1), message("two"),
    ]  # fmt: skip
    statuses = [result.status.name for result in store.append_batch(batch)]
    assert statuses == [
        "PUT_OK", "MESSAGE_ILLEGAL", "PROPERTIES_SIZE_EXCEEDED", "MESSAGE_ILLEGAL", "MESSAGE_ILLEGAL",
        "MESSAGE_ILLEGAL", "PUT_OK",
    ]  # fmt: skip
    assert bodies(store) == [b"one", b"two"]
    store.close()


def test_prepared_and_rollback_messages_take_no_queue_offset(tmp_path: Path):
    store = open_store(tmp_path)
    kinds = (
        flags.TRANSACTION_NONE,
        flags.TRANSACTION_PREPARED,
        flags.TRANSACTION_ROLLBACK,
        flags.TRANSACTION_COMMIT,
    )
    batch = [StoreMessage("T", 0, b"%d" % kind, sys_flag=kind) for kind in kinds]
    assert [result.queue_offset for result in store.append_batch(batch)] == [0, 0, 0, 1]
    assert [m.body for m in read_all(store)] == [b"0", b"8"]
    kill(store)
    again = open_store(tmp_path)
    assert [m.body for m in read_all(again)] == [b"0", b"8"]
    again.close()


def test_ipv6_hosts_are_stored(tmp_path: Path):
    store = open_store(tmp_path, store_host=("fe80::1", 10911))
    sent = message("x")
    sent.born_host = encode_host(("::1", 5))
    (result,) = store.append_batch([sent])
    assert len(result.offset_id) == 56
    (found,) = read_all(store)
    assert (found.born_host, found.store_host) == (("::1", 5), ("fe80::1", 10911))
    assert store.store_timestamp_ms("T", 0, 0) == found.store_timestamp_ms
    kill(store)
    assert len(read_all(open_store(tmp_path))) == 1


@pytest.mark.parametrize("asked", [5, 6, 7, 100])
def test_reads_outside_the_queue_have_their_status(tmp_path: Path, asked: int):
    store = open_store(tmp_path)
    assert store.read("T", 0, asked, 32).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    store.append_batch([message("x") for _ in range(6)])
    result = store.read("T", 0, asked, 32)
    expected = {5: (ReadStatus.FOUND, 6), 6: (ReadStatus.OFFSET_OVERFLOW_ONE, 6)}
    assert (result.status, result.next_offset) == expected.get(asked, (ReadStatus.OFFSET_OVERFLOW_BADLY, 6))
    assert store.read("T", 1, 0, 32).status is ReadStatus.NO_MATCHED_LOGIC_QUEUE
    assert store.read("T", 0, -1, 32).status is ReadStatus.OFFSET_TOO_SMALL
    store.close()


def test_one_read_is_limited_in_count_and_bytes(tmp_path: Path):
    """A read returns at least one message; beyond that, every limit of count and bytes holds."""
    big = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
    store = open_store(tmp_path, **big, max_transfer_bytes_on_message_in_memory=5000)
    store.append_batch([message(b"x" * 908) for _ in range(100)])  # 1000 bytes a record.
    assert store.read("T", 0, 0, 32).count == 5
    assert store.read("T", 0, 0, 3).count == 3
    assert store.read("T", 0, 0, 32, 2999).count == 2
    assert store.read("T", 0, 0, 32, 1).count == 1
    assert store.read("T", 0, 98, 32).count == 2
    store.close()
    store = open_store(tmp_path, **big)
    assert store.read("T", 0, 0, 100).count == 32
    store.close()
    store = open_store(tmp_path, **big, in_memory_bytes=10_000)
    assert store.read("T", 0, 0, 32).count == 8  # Older than messages that count as in memory.
    assert store.read("T", 0, 90, 32).count == 10
    store.close()


def test_a_read_with_a_large_byte_limit_is_not_cut_at_apaches_limit(tmp_path: Path):
    limits = {"in_memory_bytes": 0, "bulk_transfer_bytes": 60_000, "bulk_transfer_count": 50}
    big = {"mapped_file_size_commit_log": 1 << 20, "mapped_file_size_consume_queue": 20_000}
    store = open_store(tmp_path, **big, **limits)
    store.append_batch([message(b"x" * 908) for _ in range(100)])  # 1000 bytes a record.
    more = 256 * 1024 + 1
    assert store.read("T", 0, 0, 1000, more - 1).count == 8
    assert store.read("T", 0, 0, 1000, more).count == 50
    assert store.read("T", 0, 0, 40, more).count == 40
    store.close()
    store = open_store(tmp_path, **big, **(limits | {"bulk_transfer_count": 1000}))
    assert store.read("T", 0, 0, 1000, more).count == 60
    store.close()


def test_interleaved_queues_are_read_in_stretches(tmp_path: Path):
    disk = Disk()
    store = open_store(tmp_path, disk=disk, mapped_file_size_commit_log=1 << 20)
    for number in range(400):
        store.append_batch([message(b"%d" % number * 20, queue_id=number % 8)])
    disk.reads.clear()
    result = store.read("T", 3, 0, 32)
    assert [m.body for m in decode_records(b"".join(result.data))] == [
        b"%d" % number * 20 for number in range(3, 256, 8)
    ]
    assert len(disk.reads) == 1  # The queue's own units are still in memory.
    store.close()


def test_records_far_apart_are_read_separately(tmp_path: Path):
    disk = Disk()
    store = open_store(tmp_path, disk=disk, mapped_file_size_commit_log=1 << 20)
    for number in range(40):
        store.append_batch([message(b"wanted"), message(b"%d" % number * 20_000, queue_id=1)])
    disk.reads.clear()
    assert store.read("T", 0, 0, 20).count == 20
    assert len(disk.reads) == 20
    store.close()


@pytest.mark.parametrize(
    ("file_bytes", "tail_bytes", "reads", "pieces"),
    [(1 << 20, 4096, 2, 1), (1 << 14, 4096, 2, 2), (1 << 20, 1 << 20, 0, 2)],
    ids=["one file", "two files", "memory"],
)
def test_a_batch_of_one_queue_is_read_at_once(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file_bytes: int,
    tail_bytes: int,
    reads: int,
    pieces: int,
):
    """Two batches of the queue are read, with those of seven others between them."""
    store = open_store(tmp_path, mapped_file_size_commit_log=file_bytes, tail_bytes=tail_bytes)
    for number in range(24):
        bodies = [b"%d.%d" % (number, each) * 25 for each in range(16)]
        store.append_batch([message(body, queue_id=number % 8) for body in bodies])
    wanted = [b"%d.%d" % (number, each) * 25 for number in (3, 11) for each in range(16)]
    preadv, offsets = os.preadv, []

    def counted(file: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        offsets.append(offset)
        return preadv(file, buffers, offset, flags)

    monkeypatch.setattr(os, "preadv", counted)
    for may_wait in (False, True):
        result = store.read("T", 3, 0, 32, may_wait=may_wait)
        assert [each.body for each in decode_records(b"".join(result.data))] == wanted
        assert len(result.data) == pieces
    assert len(offsets) == reads
    store.close()


def test_tag_codes_are_filtered_without_reading_the_log(tmp_path: Path):
    store = open_store(tmp_path, mapped_file_size_consume_queue=20_000, mapped_file_size_commit_log=1 << 20)
    store.append_batch([message(f"{i}", tags="AB"[i % 2]) for i in range(900)])
    odd = store.read("T", 0, 0, 4, tag_codes=frozenset({tag_code("B")}))
    assert [m.body for m in decode_records(b"".join(odd.data))] == [b"1", b"3", b"5", b"7"]
    assert odd.next_offset == 8  # Messages that were not examined are requested again.
    none = store.read("T", 0, 0, 32, tag_codes=frozenset({5}))
    assert (none.status, none.next_offset, none.count) == (ReadStatus.NO_MATCHED_MESSAGE, 800, 0)
    negative = store.read("T", 0, 0, 32, tag_codes=frozenset({tag_code("order-created")}))
    assert negative.status is ReadStatus.NO_MATCHED_MESSAGE
    store.append_batch([message("neg", tags="order-created")])
    assert store.read("T", 0, 899, 32, tag_codes=frozenset({tag_code("order-created")})).count == 1
    store.close()


def test_a_cold_read_names_the_bytes_to_warm(tmp_path: Path):
    disk = Disk()
    store = open_store(tmp_path, disk=disk)
    for i in range(30):
        store.append_batch([message(bytes([i]) * 500)])
    flush(store)
    disk.is_cold = True
    result = store.read("T", 0, 0, 3, may_wait=False)
    assert result.status is ReadStatus.WOULD_WAIT
    assert result.cold
    warm(disk, result.cold)
    assert store.read("T", 0, 0, 3).count == 3
    disk.is_cold = False
    assert store.read("T", 0, 0, 3, may_wait=False).count == 3
    disk.is_cold = True
    store.append_batch([message("new")])
    assert store.read("T", 0, 30, 1, may_wait=False).count == 1  # From memory.
    store.close()


def test_nothing_is_readable_before_it_is_flushed_under_sync_flush(tmp_path: Path):
    store = open_store(tmp_path, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    first = store.append_batch([message("one"), message("two", queue_id=1)])
    assert store.visible_offset == 0
    assert (store.max_offset("T", 0), store.take_changes()[0]) == (0, {})
    assert store.read("T", 0, 0, 32).status is ReadStatus.NO_MESSAGE_IN_QUEUE
    assert store.message_at(0) is None
    plan = plan_flush(store, 0)
    assert plan is not None
    second = store.append_batch([message("three")])
    run_flush(store._filesystem, plan)
    store.complete_flush(plan)
    assert first[1].end == store.flushed_offset == store.visible_offset < second[0].end
    assert bodies(store) == [b"one"]
    assert store.take_changes()[0] == {("T", 0): 1, ("T", 1): 1}
    flush(store)
    assert bodies(store) == [b"one", b"three"]
    assert store.take_changes()[0] == {("T", 0): 2}
    store.close()


def test_a_failed_fsync_is_final(tmp_path: Path):
    """The kernel may have dropped the pages, so nothing may be acknowledged afterwards."""
    disk = Disk()
    clock = ManualClock()
    store = open_store(tmp_path, disk=disk, clock=clock, flush_disk_type=FlushDiskType.SYNC_FLUSH)
    store.append_batch([message("one")])
    plan = plan_flush(store, 0)
    assert plan is not None
    disk.fails_sync = True
    with pytest.raises(SyncFailed, match="broken") as failed:
        run_flush(disk, plan)
    store.fail_flush(failed.value)
    disk.fails_sync = False
    assert store.append_batch([message("two")])[0].status is AppendStatus.SERVICE_NOT_AVAILABLE
    clock.advance(1 << 40)
    assert store.append_batch([message("two")])[0].status is AppendStatus.SERVICE_NOT_AVAILABLE
    assert plan_flush(store, 1 << 40, thorough=True) is None
    assert store.max_offset("T", 0) == 0
    assert "flushed" in (store.statistics().failure or "")
    store.close()
    assert (tmp_path / "abort").exists()


@pytest.mark.parametrize("left", [0, 1, 50, 92, 93, 150, 250])
def test_a_full_disk_loses_nothing_and_leaves_nothing_behind(tmp_path: Path, left: int):
    disk, clock = Disk(), ManualClock()
    store = open_store(tmp_path, disk=disk, clock=clock)
    store.append_batch([message("kept")])
    disk.bytes_left = left
    results = store.append_batch([message(f"lost {i}") for i in range(3)])
    assert {result.status for result in results} == {AppendStatus.SERVICE_NOT_AVAILABLE}
    disk.bytes_left = None
    assert store.append_batch([message("refused")])[0].status is AppendStatus.SERVICE_NOT_AVAILABLE
    clock.advance(1_000)
    (result,) = store.append_batch([message("later!")])
    assert (result.is_ok, result.queue_offset) == (True, 1)
    assert bodies(store) == [b"kept", b"later!"]
    killed = open_store(copy_as_killed(tmp_path, tmp_path.parent / "killed"))
    assert bodies(killed) == [b"kept", b"later!"]
    killed.close()
    store.close()


def test_a_disk_too_full_for_the_queues_keeps_the_log_flushed(tmp_path: Path):
    disk, clock = Disk(), ManualClock()
    store = open_store(tmp_path, disk=disk, clock=clock)
    results = store.append_batch([message("one"), message("two", queue_id=1)])
    disk.bytes_left = 20
    flush(store)
    assert store.flushed_offset == results[1].end
    assert "consume queue" in (store.statistics().failure or "")
    assert not store.append_batch([message("refused")])[0].is_ok
    disk.bytes_left = None
    clock.advance(1_000)
    flush(store)
    assert store.append_batch([message("three")])[0].is_ok
    assert (bodies(store), bodies(store, queue_id=1)) == ([b"one", b"three"], [b"two"])
    store.close()


def test_a_flush_is_due_by_time_and_by_pages(tmp_path: Path):
    disk = Disk()
    store = open_store(tmp_path, disk=disk, mapped_file_size_commit_log=1 << 20)
    now_ms = 1_000_000
    plan = plan_flush(store, now_ms)  # The first call is beyond every interval.
    if plan is not None:
        store.complete_flush(plan)
    store.append_batch([message(b"x" * 100)])
    assert plan_flush(store, now_ms + 600) is None  # Not four pages.
    store.append_batch([message(b"x" * 17_000)])
    plan = plan_flush(store, now_ms + 1_200)
    assert plan is not None
    store.complete_flush(plan)
    assert store.flushed_offset == store.visible_offset
    store.append_batch([message(b"x" * 17_000)])
    assert plan_flush(store, now_ms + 1_300) is None  # Not half a second.
    plan = plan_flush(store, now_ms + 1_700)
    assert plan is not None
    store.complete_flush(plan)
    store.append_batch([message("little")])
    assert plan_flush(store, now_ms + 2_000) is None
    plan = plan_flush(store, now_ms + 12_000)
    assert plan is not None
    assert plan.commit_log_end == store.visible_offset
    store.close()


def test_a_second_opener_is_refused_while_the_first_holds_the_lock(tmp_path: Path):
    store = open_store(tmp_path)
    with pytest.raises(StoreLocked, match="in use"):
        make_store(tmp_path).open()
    store.append_batch([message("x")])
    with pytest.raises(StoreLocked):
        make_store(tmp_path).open()  # The refusal before did not drop the lock.
    store.close()
    again = open_store(tmp_path)
    assert bodies(again) == [b"x"]
    again.close()


def test_a_clean_stop_leaves_nothing_to_recover(tmp_path: Path):
    store = open_store(tmp_path)
    store.append_batch([message(b"x" * 500, queue_id=i % 3) for i in range(40)])
    store.close()
    assert not (tmp_path / "abort").exists()
    assert (tmp_path / "checkpoint").stat().st_size == 4096
    again = make_store(tmp_path)
    report = again.open()
    assert (report.clean, report.record_count) == (True, 0)
    assert (tmp_path / "abort").read_text().splitlines()[0] == "1"
    assert len(bodies(again, queue_id=0)) == 14
    assert again.append_batch([message("next")])[0].queue_offset == 14
    again.close()


def test_files_of_the_wrong_size_or_with_a_gap_stop_the_start(tmp_path: Path):
    store = open_store(tmp_path)
    store.append_batch([message(b"x" * 2000) for _ in range(6)])
    store.close()
    with pytest.raises(StoreCorrupt, match="configured size"):
        make_store(tmp_path, mapped_file_size_commit_log=8192).open()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    with pytest.raises(StoreCorrupt, match="missing"):
        make_store(tmp_path).open()


def test_message_at_trusts_only_records_the_queue_confirms(tmp_path: Path):
    store = open_store(tmp_path)
    forged_at = 91 + 1 + 0  # The body of the first message is itself a record.
    inner = open_store(tmp_path / "other")
    inner.append_batch([message("inner")])
    record = inner.record_at(0)
    assert record is not None
    inner.close()
    body_at = 88
    forged = record[:28] + body_at.to_bytes(8) + record[36:]
    results = store.append_batch([message(forged), message("second")])
    assert store.message_at(body_at) is None
    found = store.message_at(results[1].physical_offset)
    assert found is not None
    assert found.body == b"second"
    for offset in (-1, 1, forged_at, results[1].physical_offset + 1, 4095, 4096, 1 << 40, (1 << 63) - 1):
        assert store.message_at(offset) is None
    store.close()


def test_deleting_a_topic_removes_its_queues(tmp_path: Path):
    store = open_store(tmp_path)
    store.append_batch([message("a", "A"), message("b", "B"), message("a", "A", queue_id=1)])
    flush(store)
    assert store.queue_ids("A") == [0, 1]
    store.delete_topic("A")
    assert store.topics() == {"B"}
    assert not (tmp_path / "consumequeue" / "A").exists()
    assert store.append_batch([message("new", topic="A")])[0].queue_offset == 0
    assert (bodies(store, "A"), bodies(store, "B")) == ([b"new"], [b"b"])
    store.close()
    again = open_store(tmp_path)
    assert (bodies(again, "A"), bodies(again, "B")) == ([b"new"], [b"b"])
    kill(again)
    (tmp_path / "checkpoint").unlink()
    rebuilt = open_store(tmp_path)  # Everything is read again; the newer number 0 wins.
    assert bodies(rebuilt, "A") == [b"new"]
    rebuilt.close()


def test_a_topic_on_another_disk_is_deleted_in_its_place(tmp_path: Path):
    """If `consumequeue` is a link to another disk, nothing can be renamed out of it."""

    class OtherDisk(Disk):
        def rename(self, path: Path, to: Path) -> None:
            raise OSError(errno.EXDEV, "Invalid cross-device link")

    store = open_store(tmp_path, disk=OtherDisk())
    store.append_batch([message("a", "A"), message("b", "B")])
    flush(store)
    store.delete_topic("A")
    assert [path.name for path in (tmp_path / "consumequeue").iterdir()] == ["B"]
    assert store.topics() == {"B"}
    assert store.removal.left == []
    store.close()


def test_deleting_a_topic_removes_its_extension_files(tmp_path: Path):
    """A new topic of the same name would find what Apache's broker left in them (enableConsumeQueueExt)."""
    store = open_store(tmp_path)
    store.append_batch([message("a", "A"), message("b", "B")])
    extensions = tmp_path / "consumequeue_ext"
    for topic in "AB":
        (extensions / topic / "0").mkdir(parents=True)
        (extensions / topic / "0" / f"{0:020d}").write_bytes(b"extension")
    store.delete_topic("A")
    assert [path.name for path in extensions.iterdir()] == ["B"]
    store.close()
    assert not list((tmp_path / "libra.removed").iterdir())


def test_queues_begin_later_after_old_files_are_deleted(tmp_path: Path):
    store = open_store(tmp_path)
    for i in range(60):
        store.append_batch([message(b"%03d" % i + b"." * 400)])
    flush(store)
    removed = remove_old_files(store)
    assert removed > 2
    first = store.min_offset("T", 0)
    assert 0 < first < 60
    assert store.read("T", 0, 0, 32).status is ReadStatus.OFFSET_TOO_SMALL
    assert [body[:3] for body in bodies(store)] == [b"%03d" % i for i in range(first, 60)]
    assert remove_old_files(store) == 0
    store.close()
    again = open_store(tmp_path)
    assert (again.min_offset("T", 0), again.max_offset("T", 0)) == (first, 60)
    kill(again)
    killed = open_store(tmp_path)
    assert (killed.min_offset("T", 0), killed.max_offset("T", 0)) == (first, 60)
    assert [body[:3] for body in bodies(killed)] == [b"%03d" % i for i in range(first, 60)]
    killed.close()


@pytest.mark.parametrize("seed", quick(range(25), 10))
def test_the_store_agrees_with_plain_lists(tmp_path: Path, seed: int):
    """Random batches, reads, flushes, clean stops and kills are compared with lists in memory."""
    rng = random.Random(seed)
    clock = ManualClock()
    model: dict[tuple[str, int], list[bytes]] = {}
    count = 0

    def start() -> MessageStore:
        return open_store(tmp_path, clock=clock, tail_bytes=rng.choice([4096, 1 << 16]))

    store = start()
    for _ in range(120):
        action = rng.random()
        clock.advance(rng.randint(0, 700))
        if action < 0.6:
            batch, keys = [], []
            for _ in range(rng.randint(1, 12)):
                topic, queue_id = rng.choice(["A", "B", "%RETRY%g", "L" * 130]), rng.randint(0, 2)
                body = b"%d:" % count + rng.randbytes(rng.randint(0, 900))
                count += 1
                batch.append(message(body, topic, queue_id, rng.choice([None, "x", "y"])))
                keys.append((topic, queue_id))
            for key, sent, result in zip(keys, batch, store.append_batch(batch), strict=True):
                assert result.is_ok
                assert result.queue_offset == len(model.setdefault(key, []))
                model[key].append(sent.body)
        elif action < 0.8:
            plan = plan_flush(store, clock.monotonic_ms(), thorough=rng.random() < 0.2)
            if plan is not None:
                run_flush(store._filesystem, plan)
                store.complete_flush(plan)
        elif action < 0.84:
            store.close()
            store = start()
        elif action < 0.88:
            kill(store)
            store = start()
        elif model:
            key = rng.choice(list(model))
            offset = rng.randint(0, len(model[key]))
            result = store.read(*key, offset, rng.randint(1, 32))
            found = [m.body for m in decode_records(b"".join(result.data))]
            assert found == model[key][offset : offset + len(found)]
            assert result.max_offset == len(model[key])
    for key, expected in model.items():
        assert bodies(store, *key) == expected
    store.close()
