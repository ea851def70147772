"""Lost consume queue files: rebuilt from the log where it has their records."""

from collections.abc import Callable
from pathlib import Path

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.message import decode_records
from libramq.store import MessageStore
from libramq.store.check import StoreReport, check_store
from tests.store.stores import flush, kill, message, open_store, remove_old_files

QUEUE_BYTES = 200  # Ten units a file.


def check(root: Path) -> StoreReport:
    return check_store(root, LocalFileSystem())


def filled(root: Path, count: int = 35, topic: str = "T", **options: object) -> MessageStore:
    store = open_store(root, **options)
    append(store, range(count), topic)
    return store


def append(store: MessageStore, numbers: range, topic: str = "T", queue_id: int = 0) -> None:
    for number in numbers:
        assert store.append_batch([message(b"%d" % number, topic=topic, queue_id=queue_id)])[0].is_ok


def read(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    found: list[bytes] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        found += [each.body for each in decode_records(b"".join(result.data))]
        assert result.next_offset > offset
        offset = result.next_offset
    return found


def bodies(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


def file(root: Path, number: int, topic: str = "T") -> Path:
    return root / "consumequeue" / topic / "0" / f"{number * QUEUE_BYTES:020d}"


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def zeroed(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:70])


LOSSES: dict[str, Callable[[Path], None]] = {
    "removed": Path.unlink, "emptied": emptied, "zeroed": zeroed, "cut": cut
}  # fmt: skip


#: The lost files. If all are lost, no complete file shows their size.
SOME = [(0,), (1,), (2,), (3,), (1, 2), (0, 2), (0, 3), (2, 3)]
CASES = [(how, lost) for how in LOSSES for lost in (*SOME, (0, 1, 2, 3)) if how != "cut" or lost in SOME]


@pytest.mark.parametrize("stop", ["close", "kill"])
@pytest.mark.parametrize(("how", "lost"), CASES, ids=str)
def test_a_lost_file_of_a_queue_is_built_again(
    tmp_path: Path, lost: tuple[int, ...], how: str, stop: str, caplog
):
    """At the front its messages were unreadable without a warning; in the middle the start failed."""
    store = filled(tmp_path)
    append(store, range(7), "Other")
    flush(store)
    store.close() if stop == "close" else kill(store)
    for number in lost:
        LOSSES[how](file(tmp_path, number))
    report = check(tmp_path)
    missing = sum({3: 5}.get(number, 10) for number in lost)
    if how == "cut":  # Some units are there.
        assert 0 < report.queues.missing_count <= missing
    else:
        assert report.queues.missing_count == report.recovered_unit_count == missing
    assert report.is_damaged
    assert report.queues.unreadable == []
    store = open_store(tmp_path)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 35)
    assert read(store) == bodies(35)
    assert "lost" in caplog.text
    append(store, range(35, 37))
    store.close()
    report = check(tmp_path)
    assert not report.is_damaged
    assert (report.queues.unit_count, report.record_count) == (44, 44)
    caplog.clear()
    store = open_store(tmp_path)
    assert read(store) == bodies(37)
    assert caplog.text == ""
    store.close()


def test_a_start_that_is_killed_amid_the_building_does_it_again(tmp_path: Path):
    """A created but unfilled file is as good as lost."""
    filled(tmp_path).close()
    for number in (0, 1):
        zeroed(file(tmp_path, number))
    store = open_store(tmp_path)
    assert read(store) == bodies(35)
    kill(store)
    store = open_store(tmp_path)
    assert read(store) == bodies(35)
    store.close()


@pytest.mark.parametrize("has_notes", [True, False], ids=["ours", "Apache's"])
def test_messages_of_a_topic_that_was_made_again_stay_gone(tmp_path: Path, has_notes: bool):
    """Apache's broker records no deletion; the numbers restart with the new topic."""
    store = filled(tmp_path, 47)
    append(store, range(12), "Gone")
    store.delete_topic("T")
    store.delete_topic("Gone")
    append(store, range(1000, 1035))
    store.close()
    if not has_notes:
        (tmp_path / "libra.deletions").unlink(missing_ok=True)
        (tmp_path / "libra.checkpoint").unlink()
    file(tmp_path, 0).unlink()
    file(tmp_path, 1).unlink()
    assert check(tmp_path).queues.missing_count == 20
    store = open_store(tmp_path)
    assert read(store) == [b"%d" % number for number in range(1000, 1035)]
    assert store.topics() == {"T"}
    store.close()


def test_a_queue_without_any_entry_is_that_of_the_newer_topic(tmp_path: Path):
    store = filled(tmp_path, 47)
    store.delete_topic("T")
    append(store, range(1000, 1035))
    append(store, range(3), "Other")
    store.close()
    (tmp_path / "libra.deletions").unlink(missing_ok=True)
    for number in range(4):
        file(tmp_path, number).unlink()
    store = open_store(tmp_path)
    assert read(store) == [b"%d" % number for number in range(1000, 1035)]
    store.close()


def test_only_a_run_up_to_the_first_entry_that_is_there_is_built(tmp_path: Path):
    """An unreadable record ends the run; earlier units stay missing."""
    store = filled(tmp_path)
    unit = store._queues.get("T", 0).unit(4)
    store.close()
    data = bytearray((tmp_path / "commitlog" / f"{0:020d}").read_bytes())
    data[unit[0] + 4] ^= 255
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(data)
    file(tmp_path, 0).unlink()
    report = check(tmp_path)
    assert report.queues.missing_count == 5
    store = open_store(tmp_path)
    assert read(store) == bodies(35)[5:]
    assert store.min_offset("T", 0) == 5
    store.close()


def test_a_queue_that_begins_with_the_log_lacks_nothing(tmp_path: Path, caplog):
    """Its first files were removed with those of the log."""
    store = filled(tmp_path, 70)
    store.close()
    store = open_store(tmp_path)
    remove_old_files(store, 3)
    first = store.min_offset("T", 0)
    assert first >= 10
    expected = read(store)
    store.close()
    assert not file(tmp_path, 0).exists()
    assert check(tmp_path).queues.missing_count == 0
    caplog.clear()
    store = open_store(tmp_path)
    assert (store.min_offset("T", 0), read(store)) == (first, expected)
    assert caplog.text == ""
    store.close()


def test_of_a_lost_file_whose_log_is_partly_gone_the_rest_is_built(tmp_path: Path):
    store = filled(tmp_path, 70)
    store.close()
    store = open_store(tmp_path)
    remove_old_files(store, 3)
    first, expected = store.min_offset("T", 0), read(store)
    store.close()
    min(path for path in file(tmp_path, 0).parent.iterdir()).unlink()
    store = open_store(tmp_path)
    assert (store.min_offset("T", 0), read(store)) == (first, expected)
    store.close()


def test_deleted_messages_of_a_queue_stay_gone(tmp_path: Path):
    """This holds after DeleteRecords, and for every file removed before the beginning it set."""
    store = filled(tmp_path)
    store.raise_min_offset("T", 0, 25)
    store.close()
    file(tmp_path, 0).unlink()
    file(tmp_path, 1).unlink()
    store = open_store(tmp_path)
    assert read(store) == bodies(35)[25:]
    store.close()


@pytest.mark.parametrize("lost", [(0,), (1,), (0, 1), (3,)], ids=str)
def test_lost_files_of_a_light_queue_are_built_again(tmp_path: Path, lost: tuple[int, ...]):
    options = {"light_queues_max": 10}
    store = open_store(tmp_path, **options)
    for number in range(35):
        light = message(b"%d" % number, queue_id=number % 3)
        light.properties_text += b"INNER_MULTI_DISPATCH\x01%LMQ%a\x02"
        assert store.append_batch([light])[0].is_ok
    store.close()
    for number in lost:
        file(tmp_path, number, "%LMQ%a").unlink()
    assert check(tmp_path).is_damaged
    store = open_store(tmp_path, **options)
    assert read(store, "%LMQ%a") == bodies(35)
    store.close()


@pytest.mark.parametrize("stop", ["close", "kill"])
@pytest.mark.parametrize("lost", [(0,), (1,), (0, 2), (3,)], ids=str)
def test_lost_files_of_a_queue_of_batches_are_built_again(tmp_path: Path, lost: tuple[int, ...], stop: str):
    options = {"mapped_file_size_batch_consume_queue": 460}
    store = open_store(tmp_path, **options)
    store.keep_in_batches("T")
    append(store, range(35))
    flush(store)
    store.close() if stop == "close" else kill(store)
    for number in lost:
        (tmp_path / "batchconsumequeue" / "T" / "0" / f"{number * 460:020d}").unlink()
    report = check(tmp_path)
    assert report.is_damaged
    assert report.queues.missing_count == sum({3: 5}.get(number, 10) for number in lost)
    store = open_store(tmp_path, **options)
    assert (store.min_offset("T", 0), store.max_offset("T", 0)) == (0, 35)
    assert read(store) == bodies(35)
    store.close()
    assert not check(tmp_path).is_damaged


def test_a_lost_queue_is_built_again_though_a_topic_was_deleted_before_the_kill(tmp_path: Path):
    """Until more was stored the number of entries was unknown, and the lost queue was silently empty."""
    store = filled(tmp_path)
    append(store, range(5), "deleted")
    flush(store)
    store.delete_topic("deleted")
    kill(store)
    for path in (tmp_path / "consumequeue" / "T" / "0").iterdir():
        path.unlink()
    assert check(tmp_path).recovered_unit_count == 35
    store = open_store(tmp_path)
    assert read(store) == bodies(35)
    assert read(store, "deleted") == []
    store.close()


def close_as_another_broker(store: MessageStore, root: Path) -> None:
    """Close a store, leaving only files that Apache's broker would leave."""
    store.close()
    for path in root.glob("libra.*"):
        path.unlink()


ENDS = [
    ("cut", (3,)), ("emptied", (3,)), ("removed", (3,)), ("removed", (2, 3)), ("removed", (0, 1, 2, 3)),
    ("zeroed", (2, 3)), ("zeroed", (0, 1, 2, 3)), ("removed", ()),
]  # fmt: skip


@pytest.mark.parametrize(("how", "lost"), ENDS, ids=str)
def test_the_last_files_of_a_queue_that_another_broker_closed_are_built_again(
    tmp_path: Path, lost: tuple[int, ...], how: str, caplog
):
    """Its units were not counted, so its next messages got the numbers of the lost ones."""
    store = filled(tmp_path)
    append(store, range(7), "Other")
    append(store, range(35, 40))
    append(store, range(7, 9), "Other")
    close_as_another_broker(store, tmp_path)
    for number in lost:
        LOSSES[how](file(tmp_path, number))
    report = check(tmp_path)
    assert report.queues.missing_count == report.recovered_unit_count
    assert report.queues.missing_count == (7 if how == "cut" else 10 * len(lost))
    assert report.is_damaged is bool(lost)
    store = open_store(tmp_path)
    assert (read(store), read(store, "Other")) == (bodies(40), bodies(9))
    assert ("the last files of consume queues were lost" in caplog.text) is bool(lost)
    append(store, range(40, 42))
    close_as_another_broker(store, tmp_path)
    assert not check(tmp_path).is_damaged
    caplog.clear()
    store = open_store(tmp_path)
    assert read(store) == bodies(42)
    assert caplog.text == ""
    store.close()


def test_a_start_that_is_killed_amid_the_building_of_an_end_does_it_again(tmp_path: Path):
    store = filled(tmp_path)
    append(store, range(7), "Other")
    close_as_another_broker(store, tmp_path)
    file(tmp_path, 3).unlink()
    store = open_store(tmp_path)
    kill(store)
    file(tmp_path, 3).write_bytes(bytes(QUEUE_BYTES))
    store = open_store(tmp_path)
    assert read(store) == bodies(35)
    store.close()


def test_of_an_empty_queue_that_another_broker_closed_the_newer_topics_messages_are_built(tmp_path: Path):
    store = filled(tmp_path, 47)
    store.delete_topic("T")
    append(store, range(1000, 1015))
    append(store, range(3), "Other")
    close_as_another_broker(store, tmp_path)
    for number in range(2):
        file(tmp_path, number).unlink()
    store = open_store(tmp_path)
    assert read(store) == [b"%d" % number for number in range(1000, 1015)]
    store.close()
