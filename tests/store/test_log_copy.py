"""A store that copies another's log: whole records from any pieces, and a cut that survives a power cut."""

import random
from pathlib import Path

import pytest

from libramq.errors import RemoteProtocolError
from libramq.store import MessageStore, StoreConfig
from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.process import PowerCut
from libramq.testing.machine.virtual_time import VirtualTime
from tests.store.stores import bodies, flush, message, open_store, plan_flush, read_all

FILE_BYTES = 4096
TEXTS = [f"{number:02}" * 60 for number in range(30)]  # About two files.
SHARED = 12


def open_copy(disk: MemoryDisk) -> MessageStore:
    config = StoreConfig(
        root=Path("/store"),
        mapped_file_size_commit_log=FILE_BYTES,
        mapped_file_size_consume_queue=200,
        tail_bytes=4096,
        is_copy=True,
    )
    store = MessageStore(config, disk, VirtualTime())
    store.open()
    return store


def log_of(store: MessageStore, start: int = 0) -> bytes:
    data, position = b"", start
    while position < store.end:
        size = min(store.log_file_end(position), store.end) - position
        part = store.read_log(position, size, may_wait=True)
        assert isinstance(part, bytes)
        data, position = data + part, position + size
    return data


@pytest.fixture
def master(tmp_path: Path):
    store = open_store(tmp_path / "master")
    for text in TEXTS:
        assert store.append_batch([message(text)])[0].is_ok
    yield store
    store.close()


def end_of(store: MessageStore, count: int) -> int:
    """Return where the first messages end in the log."""
    result = store.read("T", 0, count - 1, 1)
    data = b"".join(result.data)
    return int.from_bytes(data[28:36]) + len(data)


@pytest.mark.parametrize("seed", range(10))
def test_records_arrive_in_pieces_of_any_size(master: MessageStore, seed: int):
    """After every piece the log ends at the end of a record, and the queues have units for all of it."""
    data, randomness = log_of(master), random.Random(seed)
    store = open_copy(MemoryDisk(VirtualTime(), randomness))
    position = 0
    while position < len(data):
        size = randomness.choice((1, 7, 200, 5_000))
        store.copy.append(position, data[position : position + size])
        position += min(size, len(data) - position)
        assert store.copy.position == position
        assert store.end in {0, FILE_BYTES, 2 * FILE_BYTES} | {
            end_of(master, count) for count in range(1, len(TEXTS) + 1)
        }
        assert bodies(store) == [text.encode() for text in TEXTS[: store.max_offset("T", 0)]]
    assert log_of(store) == data
    assert bodies(store) == [text.encode() for text in TEXTS]
    store.close()


def test_a_copy_takes_nothing_but_its_masters_log(master: MessageStore):
    store = open_copy(MemoryDisk(VirtualTime(), random.Random(1)))
    assert not store.append_batch([message("of its own")])[0].is_ok
    store.copy.append(0, log_of(master))
    assert not store.append_batch([message("of its own")])[0].is_ok
    store.close()


def test_bytes_that_cannot_follow_are_refused(master: MessageStore):
    data = log_of(master)
    store = open_copy(MemoryDisk(VirtualTime(), random.Random(1)))
    store.copy.append(0, data[:1000])
    with pytest.raises(RemoteProtocolError, match="sent its log from 1001"):
        store.copy.append(1001, data[1001:])
    store.copy.forget_partial()
    with pytest.raises(RemoteProtocolError, match="mappedFileSizeCommitLog"):
        store.copy.append(store.end, bytes(1000))
    store.close()


def test_a_damaged_body_is_copied_and_no_reader_gets_it(master: MessageStore):
    """The logs stay equal byte for byte, although the master's disk has a flipped bit."""
    data = bytearray(log_of(master))
    data[end_of(master, 5) + 120] ^= 1
    store = open_copy(MemoryDisk(VirtualTime(), random.Random(1)))
    store.copy.append(0, bytes(data))
    assert log_of(store) == data
    readable = [found.body for found in read_all(store)]
    assert readable == [text.encode() for text in (*TEXTS[:5], *TEXTS[6:])]
    store.close()


@pytest.mark.parametrize("calls", range(60))
def test_a_cut_survives_a_power_cut_at_any_moment(master: MessageStore, calls: int):
    """What both logs share stays; the rest may or may not survive, and is cut again."""
    data = log_of(master)
    disk = MemoryDisk(VirtualTime(), random.Random(calls))
    store = open_copy(disk)
    store.copy.append(0, data)
    flush(store)
    shared = end_of(master, SHARED)
    disk.cut_power_after(calls)
    try:
        store.cut(shared)
    except PowerCut:
        disk.power_cut()
        disk.process_died()
        store = open_copy(disk)
        assert bodies(store)[:SHARED] == [text.encode() for text in TEXTS[:SHARED]]
        assert bodies(store) == [text.encode() for text in TEXTS][: store.max_offset("T", 0)]
        if store.end > shared:
            store.cut(shared)
    else:
        disk.heal()
    assert store.end == shared
    # The master continues with different messages.
    store.copy.append(shared, data[shared:])
    flush(store)
    disk.power_cut()
    disk.process_died()
    store = open_copy(disk)
    assert log_of(store) == data
    assert bodies(store) == [text.encode() for text in TEXTS]
    store.close()


def test_a_flush_that_was_under_way_confirms_nothing_after_a_cut(master: MessageStore):
    data = log_of(master)
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    store = open_copy(disk)
    store.copy.append(0, data)
    plan = plan_flush(store, 0, thorough=True)
    assert plan is not None
    shared = end_of(master, SHARED)
    store.cut(shared)
    store.copy.append(shared, data[shared:])
    store.complete_flush(plan)
    assert store.flushed_offset == shared
    store.close()
