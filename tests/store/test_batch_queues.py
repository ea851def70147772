"""Queues of batches (queue.type=BatchCQ): a record may be several messages, and readers see each of them."""

import struct
import zlib

import msgspec
import pytest

from libramq.errors import StoreCorrupt, StoreError
from libramq.message import decode_records, tag_code
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.ids import place_of
from libramq.message.properties import encode_properties
from libramq.spark.reading.store_queues import StoreQueues
from libramq.store import StoreMessage, message_store
from libramq.store.check import check_store
from libramq.store.copying import copy_store
from libramq.store.log.append import AppendStatus
from libramq.store.log.segments import ColdRead
from libramq.store.queues.batch_consume_queue import BatchConsumeQueue
from libramq.store.reading import batch_read
from libramq.store.reading.read import ReadStatus
from tests.store.stores import (
    BORN,
    Disk,
    kill,
    make_store,
    message,
    open_store,
    read_all,
    remove_old_files,
    run_with,
)


def batch(*bodies: str, queue_id: int = 0, tags: str | None = None, topic: str = "T") -> StoreMessage:
    text = encode_properties({"TAGS": tags} if tags else {})
    return StoreMessage(
        topic, queue_id, encode_batch([BatchItem(0, body.encode(), text) for body in bodies]),
        encode_properties({"INNER_NUM": str(len(bodies))}), count=len(bodies), born_host=BORN,
        sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP, born_timestamp_ms=5,
    )  # fmt: skip


def open_batched(root, **options):
    store = open_store(root, mapped_file_size_batch_consume_queue=4 * 46, **options)
    store.keep_in_batches("T")
    return store


def bodies(store, queue_id=0):
    return [(each.queue_offset, each.body.decode()) for each in read_all(store, "T", queue_id)]


def test_messages_of_batches_and_single_ones_are_numbered_and_read_alike(tmp_path):
    store = open_batched(tmp_path)
    results = store.append_batch([batch("a", "b", "c"), message("d"), batch("e"), batch("f", "g")])
    assert [result.queue_offset for result in results] == [0, 3, 4, 5]
    expected = list(enumerate("abcdefg"))
    assert bodies(store) == expected
    result = store.read("T", 0, 1, 3)
    assert [each.body for each in decode_records(b"".join(result.data))] == [b"b", b"c", b"d"]
    assert (result.next_offset, result.count) == (4, 3)
    assert store.drain_topic_puts() == {"T": 7}
    assert store.max_offset("T", 0) == store.next_offset("T", 0) == 7
    store.close()
    again = open_batched(tmp_path)
    assert bodies(again) == expected
    assert not (tmp_path / "consumequeue").exists()
    again.close()


def test_the_files_are_those_of_apaches_batch_consume_queue(tmp_path):
    """BatchConsumeQueue.putBatchMessagePositionInfo; in the log, a record's number is its INNER_BASE."""
    store = open_batched(tmp_path)
    first, second = store.append_batch([batch("a", "b", "c"), message("d", tags="x")])
    store.close()
    data = (tmp_path / "batchconsumequeue" / "T" / "0" / f"{0:020d}").read_bytes()
    stored_ms = first.store_timestamp_ms
    assert struct.unpack_from(">qiqqqhii", data) == (0, first.size, 0, stored_ms, 0, 3, -1, 0)
    assert struct.unpack_from(">qiqqqhii", data, 46) == (
        first.end, second.size, tag_code("x"), stored_ms, 3, 1, -1, 0,
    )  # fmt: skip
    assert not data[92:].strip(b"\0")
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    assert b"INNER_NUM\x013\x02INNER_BASE\x010\x02" in log
    assert b"TAGS\x01x\x02INNER_BASE\x013\x02" in log


def test_a_reader_of_whole_batches_gets_records_as_they_are_stored(tmp_path):
    store = open_batched(tmp_path)
    results = store.append_batch([batch("a", "b", "c"), message("d"), batch("e", "f")])
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    found = store.read("T", 0, 1, 100, as_stored=True)
    assert b"".join(found.data) == log[: results[-1].end]
    assert (found.next_offset, found.count) == (6, 5)
    found = store.read("T", 0, 5, 100, as_stored=True)
    assert b"".join(found.data) == log[results[2].physical_offset : results[2].end]
    found = store.read("T", 0, 0, 100, 1, as_stored=True)
    assert b"".join(found.data) == log[: results[0].end]
    store.close()


def test_a_reader_that_unwraps_gets_the_batches_of_rocketmq_alone_as_they_are_stored(tmp_path):
    store = open_batched(tmp_path)
    foreign = msgspec.structs.replace(batch("x", "y"), sys_flag=flags.INNER_BATCH)
    results = store.append_batch([batch("a", "b", "c"), message("d"), foreign, batch("e", "f")])
    log = (tmp_path / "commitlog" / f"{0:020d}").read_bytes()
    found = store.read("T", 0, 1, 100, may_be_wrapped=True)
    assert b"".join(found.data) == log[: results[1].end], "as far as the first of another protocol"
    assert (found.next_offset, found.count, found.size) == (4, 3, results[1].end)
    found = store.read("T", 0, 5, 100, may_be_wrapped=True)
    bodies = [each.body for each in decode_records(b"".join(found.data))]
    assert (bodies, found.next_offset) == ([b"y", b"e", b"f"], 8), "its messages come one by one"
    found = store.read("T", 0, 7, 100, may_be_wrapped=True)
    assert b"".join(found.data) == log[results[3].physical_offset : results[3].end]
    assert store.read("T", 0, 0, 1, may_be_wrapped=True).next_offset == 3, "whole, despite the limit"
    selected = store.read("T", 0, 0, 100, None, frozenset({tag_code("z")}), may_be_wrapped=True)
    assert selected.status is ReadStatus.NO_MATCHED_MESSAGE
    store.close()


def test_a_message_of_a_batch_has_a_place_of_its_own(tmp_path):
    store = open_batched(tmp_path)
    store.append_batch([message("-"), batch("a", "b", "c")])
    for found in read_all(store, "T", 0):
        again = store.message_at(found.physical_offset)
        assert (again.body, again.queue_offset) == (found.body, found.queue_offset)
    at = store.queue_units("T", 0, 1, 1)[0][0]
    assert [store.message_at(place_of(at, number)) is None for number in range(4)] == [False] * 3 + [True]
    assert store.message_at(place_of(0, 1)) is None
    store.close()


def test_a_message_of_a_damaged_batch_is_not_found(tmp_path):
    """A reader that stored it again would give it a matching checksum."""
    store = open_batched(tmp_path)
    (stored,) = store.append_batch([batch("a", "b")])
    path = tmp_path / "commitlog" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[data.index(b"b", stored.size // 3)] ^= 1
    store.close()
    path.write_bytes(data)
    again = open_batched(tmp_path)
    assert again.read("T", 0, 0, 2).count == 2
    assert again.message_at(1 << 48) is None
    again.close()


def test_a_tag_selects_messages_within_a_batch(tmp_path):
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b", tags="x"), batch("c", tags="y"), message("d", tags="x")])
    result = store.read("T", 0, 0, 32, None, frozenset({tag_code("x")}))
    assert [each.body for each in decode_records(b"".join(result.data))] == [b"a", b"b", b"d"]
    result = store.read("T", 0, 0, 32, None, frozenset({tag_code("z")}))
    assert (result.status, result.next_offset) == (ReadStatus.NO_MATCHED_MESSAGE, 4)
    store.close()


@pytest.mark.parametrize("tags", [None, "x"])
def test_a_read_of_few_messages_goes_through_a_large_batch(tmp_path, tags):
    store = open_batched(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.append_batch([message("first"), batch(*map(str, range(1500)), tags="x"), message("last", tags="x")])
    codes = None if tags is None else frozenset({tag_code(tags)})
    found, offset, looks = [], 0, 0
    while offset < 1502:
        result = store.read("T", 0, offset, 32, None, codes)
        assert result.count <= 32
        assert result.next_offset > offset
        found += [each.body.decode() for each in decode_records(b"".join(result.data))]
        offset, looks = result.next_offset, looks + 1
    assert found == ([] if tags else ["first"]) + [*map(str, range(1500)), "last"]
    none = frozenset({tag_code("z")})
    assert store.read("T", 0, 1, 32, None, none).next_offset == 801, "as many are looked at as elsewhere"
    store.close()


def test_the_bytes_of_a_read_are_bounded_within_a_batch(tmp_path):
    store = open_batched(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.append_batch([batch(*("x" * 1_000 for _ in range(100)))])
    sizes = [store.read("T", 0, offset, 32, 5_000) for offset in (0, 50, 99)]
    assert [result.count for result in sizes] == [4, 4, 1]
    assert [result.next_offset for result in sizes] == [4, 54, 100]
    assert store.read("T", 0, 7, 32, 10).count == 1
    store.close()


def test_a_large_batch_is_unwrapped_by_a_thread_and_once(tmp_path, monkeypatch):
    store = open_batched(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.append_batch([batch(*map(str, range(1000)))])
    result = store.read("T", 0, 0, 32, may_wait=False)
    assert result.status is ReadStatus.WOULD_WAIT
    store.warm(result.cold)
    monkeypatch.setattr(store.unwrapping, "_format", None)
    found = []
    while len(found) < 1000:
        result = store.read("T", 0, len(found), 32, may_wait=False)
        assert result.status is ReadStatus.FOUND
        found += [each.body for each in decode_records(b"".join(result.data))]
    assert found == [b"%d" % number for number in range(1000)]
    store.close()


def test_what_is_read_from_amid_a_batch_reads_its_record_once(tmp_path, monkeypatch):
    """A 4 MiB record takes milliseconds to read; redelivering its messages one by one took seconds."""
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b"), batch("c", "d")])
    places = [each.physical_offset for each in read_all(store, "T", 0)]
    with monkeypatch.context() as unread:
        unread.setattr(batch_read, "fetch", None)
        unread.setattr(message_store, "find_record", None)
        (found,) = decode_records(b"".join(store.read("T", 0, 1, 1).data))
        assert (found.body, store.message_at(places[1]).body) == (b"b", b"b")
        assert store.message_at(place_of(places[0], 2)) is None
    store.cut(places[2])
    assert store.message_at(places[3]) is None
    store.append_batch([batch("e", "f")])
    assert bodies(store) == list(enumerate("abef"))
    assert store.message_at(places[3]).body == b"f"
    store.close()


def test_a_batch_that_cannot_be_read_is_tried_once(tmp_path, monkeypatch):
    """Unpacking may take long: a reader would wait for it repeatedly, and finally in the loop."""
    store = open_batched(tmp_path, mapped_file_size_commit_log=1 << 20)
    text = encode_properties({"INNER_NUM": "2"})
    flag = flags.INNER_BATCH | flags.NEED_UNWRAP
    store.append_batch([StoreMessage("T", 0, b"x" * 100_000, text, count=2, sys_flag=flag), message("a")])
    cold = store.read("T", 0, 0, 32, may_wait=False)
    assert cold.status is ReadStatus.WOULD_WAIT
    store.warm(cold.cold)
    monkeypatch.setattr(store.unwrapping, "_format", None)
    result = store.read("T", 0, 0, 32, may_wait=False)
    assert [each.body for each in decode_records(b"".join(result.data))] == [b"a"]
    store.close()


def test_a_compressed_batch_is_unwrapped_by_a_thread_however_small_it_is(tmp_path):
    store = open_batched(tmp_path)
    packed = batch("a", "b")
    packed.body = zlib.compress(packed.body)
    packed.sys_flag |= flags.COMPRESSED
    store.append_batch([packed])
    cold = store.read("T", 0, 0, 32, may_wait=False)
    assert cold.status is ReadStatus.WOULD_WAIT
    store.warm(cold.cold)
    result = store.read("T", 0, 0, 32, may_wait=False)
    assert [each.body for each in decode_records(b"".join(result.data))] == [b"a", b"b"]
    store.close()


def test_a_large_batch_is_not_unwrapped_where_nobody_may_wait(tmp_path):
    store = open_batched(tmp_path, mapped_file_size_commit_log=1 << 20)
    store.append_batch([batch(*map(str, range(1000)))])
    with store.without_waiting():
        for look in (lambda: store.read("T", 0, 7, 1), lambda: store.message_at(place_of(0, 7))):
            store.unwrapping.forget()
            with pytest.raises(ColdRead, match="not unwrapped") as cold:
                look()
            store.warm((cold.value.stretch,))
            look()
        assert store.message_at(place_of(0, 7)).body == b"7"
    store.close()


def test_a_batch_that_cannot_be_read_is_skipped(tmp_path):
    store = open_batched(tmp_path)
    store.append_batch([
        message("a"),
        StoreMessage("T", 0, b"no batch", encode_properties({"INNER_NUM": "2"}), count=2,
                     sys_flag=flags.INNER_BATCH | flags.NEED_UNWRAP),
        message("b"),
    ])  # fmt: skip
    assert bodies(store) == [(0, "a"), (3, "b")]
    assert store.statistics().unreadable_count == 1
    store.close()


@pytest.mark.parametrize(
    "wrong",
    [
        StoreMessage("Plain", 0, b"x", encode_properties({"INNER_NUM": "1"}), sys_flag=flags.INNER_BATCH),
        StoreMessage("T", 0, b"x", sys_flag=flags.INNER_BATCH),
        StoreMessage("T", 0, b"x", encode_properties({"INNER_NUM": "3"}), sys_flag=flags.INNER_BATCH),
        StoreMessage(
            "T", 0, b"x", encode_properties({"INNER_NUM": "40000"}), count=40_000, sys_flag=flags.INNER_BATCH
        ),
        run_with("T", 0, [(0, b"x", b"", 0)], sys_flag=flags.INNER_BATCH),
    ],
)  # fmt: skip
def test_what_is_no_inner_batch_is_refused(tmp_path, wrong):
    store = open_batched(tmp_path)
    (result,) = store.append_batch([wrong])
    assert result.status is AppendStatus.MESSAGE_ILLEGAL
    assert bodies(store) == []
    store.close()


def test_a_run_of_single_messages_is_stored_in_a_queue_of_batches(tmp_path):
    store = open_batched(tmp_path)
    run = run_with("T", 0, [(0, b"a", b"", 0), (0, b"b", b"K\x01v", 0)], born_timestamp_ms=5, born_host=BORN)
    (result,) = store.append_batch([run])
    assert (result.queue_offset, len(result.positions)) == (0, 2)
    assert bodies(store) == [(0, "a"), (1, "b")]
    assert read_all(store, "T", 0)[1].properties["K"] == "v"
    kill(store)
    again = open_batched(tmp_path)
    assert bodies(again) == [(0, "a"), (1, "b")]
    again.close()


def test_queues_are_built_again_from_the_log_alone(tmp_path):
    """Their directory is lost and the topic unknown; the first record tells the kind of its queues."""
    store = open_batched(tmp_path)
    store.append_batch([message("a"), batch("b", "c"), batch("x", "y", queue_id=1)])
    kill(store)
    again = open_store(tmp_path, mapped_file_size_batch_consume_queue=4 * 46)
    assert bodies(again) == [(0, "a"), (1, "b"), (2, "c")]
    assert bodies(again, 1) == [(0, "x"), (1, "y")]
    assert isinstance(again._queues.get("T", 0), BatchConsumeQueue)
    again.close()
    assert not (tmp_path / "consumequeue").exists()


@pytest.mark.parametrize("number", [-1, 2**63 - 2, 2**63 - 1])
def test_a_unit_with_an_impossible_number_is_none_and_built_from_the_log(tmp_path, number):
    """The file was edited by hand."""
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b", "c"), message("d"), batch("e", "f")])
    store.close()
    path = tmp_path / "batchconsumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    struct.pack_into(">q", data, 2 * 46 + 28, number)
    path.write_bytes(data)
    assert check_store(tmp_path, Disk()).is_damaged
    again = open_batched(tmp_path)
    assert bodies(again) == list(enumerate("abcdef"))
    assert again.append_batch([batch("g")])[0].queue_offset == 6
    again.close()


def test_a_slave_builds_the_same_queues(tmp_path):
    master = open_batched(tmp_path / "master")
    slave = make_store(tmp_path / "slave", is_copy=True, mapped_file_size_batch_consume_queue=4 * 46)
    slave.open()
    master.append_batch([message("a"), batch("b", "c"), batch("x", "y", queue_id=1)])
    data = master.read_log(0, master.end, may_wait=True)
    assert isinstance(data, bytes)
    slave.copy.append(0, data)
    assert bodies(slave) == bodies(master) == [(0, "a"), (1, "b"), (2, "c")]
    assert slave.statistics().put_message_count == master.statistics().put_message_count == 5
    assert slave.drain_topic_puts() == {"T": 5}
    master.close()
    slave.close()
    queue = "batchconsumequeue/T/0/00000000000000000000"
    assert (tmp_path / "slave" / queue).read_bytes() == (tmp_path / "master" / queue).read_bytes()


def test_old_files_are_removed(tmp_path):
    store = open_batched(tmp_path)
    for number in range(200):
        store.append_batch([batch(f"{number}a" * 20, f"{number}b" * 20)])
    store.flush()
    names = {path.name for path in (tmp_path / "batchconsumequeue" / "T" / "0").iterdir()}
    assert remove_old_files(store) > 0
    first = store.min_offset("T", 0)
    assert first > 0
    assert first % 2 == 0
    assert bodies(store)[0][0] == first
    left = {path.name for path in (tmp_path / "batchconsumequeue" / "T" / "0").iterdir()}
    assert left < names
    expected = bodies(store)
    store.append_batch([batch("next")])
    store.close()
    again = open_batched(tmp_path)
    assert bodies(again) == [*expected, (400, "next")]
    assert again.min_offset("T", 0) == first
    again.close()


def test_a_check_and_a_copy_cover_queues_of_batches(tmp_path):
    store = open_batched(tmp_path / "store")
    store.append_batch([message("a"), batch("b", "c"), message("p", topic="Plain")])
    store.flush()
    copy_store(tmp_path / "store", tmp_path / "copy", Disk())
    store.close()
    for root in (tmp_path / "store", tmp_path / "copy"):
        report = check_store(root, Disk())
        assert report.queues.queue_count == 2
        assert (report.queues.missing_count, report.queues.wrong_count, report.queues.stray_count) == (
            0,
            0,
            0,
        )
        again = open_batched(root)
        assert bodies(again) == [(0, "a"), (1, "b"), (2, "c")]
        again.close()
    path = tmp_path / "store" / "batchconsumequeue" / "T" / "0" / f"{0:020d}"
    data = bytearray(path.read_bytes())
    data[11] ^= 1
    path.write_bytes(data)
    assert check_store(tmp_path / "store", Disk()).queues.wrong_count == 1


def test_a_deleted_topic_may_be_made_again_with_queues_of_the_other_kind(tmp_path):
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b")])
    store.flush()
    store.delete_topic("T")
    store.removal.take_work()()
    store.append_batch([message("plain")])
    kill(store)
    again = open_store(tmp_path, mapped_file_size_batch_consume_queue=4 * 46)
    assert bodies(again) == [(0, "plain")]
    assert not isinstance(again._queues.get("T", 0), BatchConsumeQueue)
    again.close()


def test_the_newer_of_two_kinds_of_queues_is_kept(tmp_path):
    """A power cut has undone the removal of the older one."""
    (tmp_path / "kept").mkdir()
    store = open_batched(tmp_path / "kept")
    store.append_batch([batch("a", "b")])
    store.close()
    older = tmp_path / "kept" / "batchconsumequeue"
    older.rename(tmp_path / "older")
    store = open_store(tmp_path / "kept", mapped_file_size_batch_consume_queue=4 * 46)
    store.delete_topic("T")
    store.append_batch([message("plain")])
    store.close()
    (tmp_path / "older").rename(older)
    again = open_store(tmp_path / "kept", mapped_file_size_batch_consume_queue=4 * 46)
    assert bodies(again) == [(0, "plain")]
    again.close()
    assert not list(older.iterdir())


def test_an_empty_directory_of_apaches_does_not_make_a_topic_one_of_batches(tmp_path):
    (tmp_path / "batchconsumequeue" / "T" / "0").mkdir(parents=True)
    store = open_store(tmp_path)
    store.append_batch([message("a")])
    assert not isinstance(store._queues.get("T", 0), BatchConsumeQueue)
    store.close()


def test_a_batch_of_another_number_of_messages_than_it_says_is_damaged(tmp_path):
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b")])
    record = store.record_at(0)
    assert record is not None
    (plan,) = store.read("T", 0, 0, 1, as_stored=True).data
    head = next(iter(store.unwrapping._kept))
    wrong = head._replace(properties=head.properties.replace(b"INNER_NUM\x012", b"INNER_NUM\x013"))
    with pytest.raises(StoreCorrupt, match="2 messages, and it announces 3"):
        store.unwrapping.unwrap(bytes(plan), wrong)
    store.close()


def test_readers_of_the_files_hear_that_a_topic_is_not_for_them(tmp_path):
    """If the topic were skipped silently, a table of all messages would lack its messages."""
    store = open_batched(tmp_path)
    store.append_batch([batch("a", "b"), message("p", topic="Plain")])
    store.close()
    (tmp_path / "batchconsumequeue" / "Deleted" / "0").mkdir(parents=True)
    queues = StoreQueues(str(tmp_path), "b")
    assert queues.topics() == ["Plain", "T"]
    assert len(queues.queues("Plain")) == 1
    with pytest.raises(StoreError, match="topic T keeps batches"):
        queues.queues("T")
    queues.close()
