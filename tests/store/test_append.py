"""Runs of messages are stored as the same messages one by one."""

import pytest

from libramq.message.properties import PROPERTIES_BYTES_MAX
from libramq.message.sys_flag import TRANSACTION_PREPARED
from libramq.store.log.append import AppendStatus, MessageRun, RunResult, StoreMessage
from tests.store.stores import BORN, Disk, open_store, run_with

ITEMS = [(number, b"body %d" % number * number, b"k\x01%d\x02" % number, number) for number in range(1, 8)]


def run_of(items=ITEMS, **fields) -> MessageRun:
    return run_with("Orders", 3, items, **{"born_timestamp_ms": 5, "born_host": BORN} | fields)


def single(run: MessageRun) -> list[StoreMessage]:
    """Return the messages of a run as single ones."""
    return [
        StoreMessage(
            run.topic, run.queue_id, body, properties + run.suffix, code, flag, run.sys_flag,
            run.born_timestamp_ms, run.born_host, run.reconsume_times,
        )
        for flag, body, properties, code in zip(
            run.flags, run.bodies, run.properties, run.tag_codes, strict=True
        )
    ]  # fmt: skip


@pytest.mark.parametrize(
    "fields", [{}, {"born_host": bytes(20)}, {"sys_flag": 8, "reconsume_times": 4}, {"suffix": b"s\x01v\x02"}]
)
def test_a_run_has_the_same_bytes_as_its_messages_one_by_one(tmp_path, fields):
    """Singles before and after it, in its queue and in another, are numbered as if all were single."""
    run = run_of(**fields)
    around = [StoreMessage("Orders", 3, b"x"), StoreMessage("Others", 0, b"y")]
    together, alone = open_store(tmp_path / "runs"), open_store(tmp_path / "singles")
    results = together.append_batch([*around, run, *around])
    singles = alone.append_batch([*around, *single(run), *around])
    for store in (together, alone):
        store.close()
    for name in ("commitlog", "consumequeue"):
        files = sorted(path for path in (tmp_path / "singles" / name).rglob("*") if path.is_file())
        assert files
        for path in files:
            assert (
                tmp_path / "runs" / path.relative_to(tmp_path / "singles")
            ).read_bytes() == path.read_bytes()
    assert [each.queue_offset for each in results] == [0, 0, 1, 8, 1]
    assert results[2].end == singles[-3].end
    assert results[2].offset_ids == ",".join(each.offset_id for each in singles[2:-2])
    assert together.statistics().put_message_count == len(singles)


@pytest.mark.parametrize(
    ("bad", "status"),
    [
        ((0, b"x", b"nul\x01\0\x02", 0), AppendStatus.MESSAGE_ILLEGAL),
        ((0, b"x", bytes(1) * (PROPERTIES_BYTES_MAX + 1), 0), AppendStatus.PROPERTIES_SIZE_EXCEEDED),
        ((1 << 31, b"x", b"", 0), AppendStatus.MESSAGE_ILLEGAL),
    ],
)
def test_nothing_of_a_run_with_an_illegal_message_is_stored(tmp_path, bad, status):
    store = open_store(tmp_path)
    before, refused, after = store.append_batch(
        [StoreMessage("Orders", 3, b"x"), run_of([*ITEMS, bad]), StoreMessage("Orders", 3, b"x")]
    )
    assert (before.status, refused.status, after.status) == (AppendStatus.PUT_OK, status, AppendStatus.PUT_OK)
    assert (before.queue_offset, after.queue_offset) == (0, 1)
    assert before.end == after.physical_offset
    store.close()


@pytest.mark.parametrize("run", [run_of([]), run_of(sys_flag=TRANSACTION_PREPARED)])
def test_a_run_is_queued_and_not_empty(tmp_path, run):
    store = open_store(tmp_path)
    assert store.append_batch([run])[0].status is AppendStatus.MESSAGE_ILLEGAL
    store.close()


def test_a_run_that_no_file_holds_is_stored_in_parts(tmp_path):
    items = [(0, b"%04d" % number * 100, b"", 0) for number in range(30)]  # Files have 4 KiB.
    store = open_store(tmp_path)
    (result,) = store.append_batch([run_of(items)])
    assert isinstance(result, RunResult)
    assert len(set(result.positions)) == len(items)
    assert result.queue_offset == 0
    assert store.end == result.end
    assert store.max_offset("Orders", 3) == len(items)
    store.close()


def test_a_run_of_which_the_disk_refuses_a_part_is_refused(tmp_path):
    items = [(0, b"%04d" % number * 100, b"", 0) for number in range(30)]
    disk = Disk()
    store = open_store(tmp_path, disk=disk)
    disk.bytes_left = 6_000
    (result,) = store.append_batch([run_of(items)])
    assert result.status is AppendStatus.SERVICE_NOT_AVAILABLE
    assert 0 < store.max_offset("Orders", 3) < len(items)
