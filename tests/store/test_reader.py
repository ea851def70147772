"""A store is read without its broker: after a clean stop, after a kill, and while its broker writes."""

import hashlib
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from libramq.errors import StoreCorrupt, StoreError
from libramq.filesystem import LocalFileSystem
from libramq.message import decode_record
from libramq.store.reader import Span, StoreReader
from tests.fakes import ManualClock
from tests.quick import quick
from tests.store.stores import copy_as_killed, flush, kill, make_store, message, open_store, remove_old_files

Lost = list[tuple[tuple[str, int], int, int]]


def everything(root: Path, commit_log: Path | None = None) -> tuple[dict[tuple[str, int], list[bytes]], Lost]:
    """Return the bodies of each queue in order, and the lost ranges."""
    reader = StoreReader(root, commit_log=commit_log)
    lost: Lost = []
    spans = [Span(key, at.min_offset, at.max_offset, at) for key, at in reader.survey().items()]
    found = read(reader, spans, lost)
    reader.close()
    return found, lost


def read(reader: StoreReader, spans: list[Span], lost: Lost) -> dict[tuple[str, int], list[bytes]]:
    found: dict[tuple[str, int], list[bytes]] = {}
    numbers: dict[tuple[str, int], int] = {span.queue: span.start for span in spans}
    for window in reader.windows(spans, lambda *stretch: lost.append(stretch)):
        assert window.physical.tolist() == sorted(window.physical.tolist())
        for start, physical in zip(window.starts.tolist(), window.physical.tolist(), strict=True):
            decoded = decode_record(window.data, start, check_crc=True)
            assert decoded is not None
            one = decoded[0]
            assert one.physical_offset == physical
            key = one.topic, one.queue_id
            assert one.queue_offset >= numbers[key]
            numbers[key] = one.queue_offset + 1
            found.setdefault(key, []).append(one.body)
    return found


def fill(store, count: int, seed: int = 7) -> dict[tuple[str, int], list[bytes]]:
    """Append messages to three queues of two topics, in random order and of random size."""
    print(f"seed {seed}")
    randomness = random.Random(seed)
    sent: dict[tuple[str, int], list[bytes]] = {}
    for number in range(count):
        key = randomness.choice([("T", 0), ("T", 1), ("U", 0)])
        body = b"%d" % number + b"x" * randomness.randrange(200)
        store.append_batch([message(body, topic=key[0], queue_id=key[1])])
        sent.setdefault(key, []).append(body)
    return sent


def contents(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


def test_a_closed_store_of_many_files_is_read(tmp_path: Path):
    store = open_store(tmp_path)
    sent = fill(store, 300)
    store.close()
    assert everything(tmp_path) == (sent, [])


def test_the_log_may_have_a_directory_of_its_own(tmp_path: Path):
    """With storePathCommitLog the directory used to be refused for having no log."""
    root, log = tmp_path / "store", tmp_path / "other disk"
    store = open_store(root, commit_log=log)
    sent = fill(store, 100)
    flush(store)
    kill(store)
    with pytest.raises(StoreError, match="it has no commitlog; is it elsewhere"):
        everything(root)
    with pytest.raises(StoreError, match="missing"):
        everything(root, tmp_path / "missing")
    assert everything(root, log) == (sent, [])
    open_store(root, commit_log=log).close()
    assert everything(root, log) == (sent, [])


def test_reading_changes_and_locks_nothing(tmp_path: Path):
    store = open_store(tmp_path)
    sent = fill(store, 50)
    flush(store)
    before = contents(tmp_path)
    reader = StoreReader(tmp_path)
    reader.survey()
    assert contents(tmp_path) == before
    store.append_batch([message("later", topic="T", queue_id=0)])
    sent["T", 0].append(b"later")
    store.close()
    reader.close()
    assert everything(tmp_path)[0] == sent


def test_killed_store_is_read_to_the_last_whole_record(tmp_path: Path):
    """The store's last units were only in memory, and its last record may be incomplete."""
    store = open_store(tmp_path / "live")
    sent = fill(store, 120)
    copy = copy_as_killed(tmp_path / "live", tmp_path / "copy")
    assert everything(copy) == (sent, [])
    flush(store)
    sent |= {key: sent[key] + more for key, more in fill(store, 60, seed=8).items()}
    copy = copy_as_killed(tmp_path / "live", tmp_path / "copy")
    assert everything(copy) == (sent, [])
    end = store._log.end
    size = 4096
    last = copy / "commitlog" / f"{(end - 1) // size * size:020d}"
    data = bytearray(last.read_bytes())
    data[(end - 1) % size] ^= 0xFF  # The last byte of its body: the checksum detects it.
    last.write_bytes(data)
    found, _ = everything(copy)
    assert sum(map(len, found.values())) == sum(map(len, sent.values())) - 1
    kill(store)


def test_reader_and_recovery_agree_about_every_cut(tmp_path: Path):
    store = open_store(tmp_path / "live")
    fill(store, 40)
    flush(store)
    fill(store, 20, seed=8)
    end = store._log.end
    for cut in range(end - 400, end, 37):
        copy = copy_as_killed(tmp_path / "live", tmp_path / "copy")
        start = (cut - 1) // 4096 * 4096
        path = copy / "commitlog" / f"{start:020d}"
        data = bytearray(path.read_bytes())
        data[cut - start :] = bytes(4096 - (cut - start))
        path.write_bytes(data)
        for later in range(start + 4096, end + 4096, 4096):
            (copy / "commitlog" / f"{later:020d}").unlink(missing_ok=True)
        reader = StoreReader(copy)
        survey = reader.survey()
        reader.close()
        again = make_store(copy)
        again.open()
        assert {key: at.max_offset for key, at in survey.items() if at.max_offset} == {
            (topic, queue_id): again.max_offset(topic, queue_id)
            for topic in sorted(again.topics())
            for queue_id in again.queue_ids(topic)
            if again.max_offset(topic, queue_id)
        }
        kill(again)
    kill(store)


@pytest.mark.parametrize("step_ms", [10_000, -86_400_000])
def test_a_store_in_use_is_read_up_to_its_recovery_point(tmp_path: Path, step_ms: int):
    """The broker could still lose the rest, regardless of the clock."""
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    first = fill(store, 30)
    flush(store)
    clock.set_wall(step_ms)
    store.append_batch([message("later")])
    found, lost = everything(tmp_path)
    assert (found, lost) == (first, [])
    kill(store)
    assert everything(tmp_path)[0]["T", 0] == [*first["T", 0], b"later"]


def test_deleted_files_raise_the_first_offset(tmp_path: Path):
    store = open_store(tmp_path)
    sent = fill(store, 300)
    flush(store)
    assert remove_old_files(store, 3) == 3
    minimum = {key: store.min_offset(*key) for key in sent}
    store.close()
    found, lost = everything(tmp_path)
    assert found == {key: bodies[minimum[key] :] for key, bodies in sent.items()}
    assert lost == []
    reader = StoreReader(tmp_path)
    extent = reader.survey()["T", 0]
    assert read(reader, [Span(("T", 0), 0, 1, extent)], lost) == {}
    assert lost == [(("T", 0), 0, 1)]
    reader.close()


def test_part_of_a_queue_is_read(tmp_path: Path):
    store = open_store(tmp_path)
    sent = fill(store, 300)
    store.close()
    reader = StoreReader(tmp_path)
    survey, lost = reader.survey(), Lost()
    spans = [Span(("T", 0), 7, 31, survey["T", 0]), Span(("U", 0), 60, 5000, survey["U", 0])]
    assert read(reader, spans, lost) == {("T", 0): sent["T", 0][7:31], ("U", 0): sent["U", 0][60:]}
    assert lost == [(("U", 0), len(sent["U", 0]), 5000)]
    reader.close()


def test_offsets_are_found_by_time(tmp_path: Path):
    clock = ManualClock()
    store = open_store(tmp_path, clock=clock)
    times = []
    for _ in range(40):
        clock.advance(10)
        times.append(clock.wall_ms())
        store.append_batch([message("x")])
    store.close()
    reader = StoreReader(tmp_path)
    extent = reader.survey()["T", 0]
    assert reader.offset_at(("T", 0), extent, 0) == 0
    assert [reader.offset_at(("T", 0), extent, time_ms) for time_ms in times] == list(range(40))
    assert reader.offset_at(("T", 0), extent, times[17] + 1) == 18
    assert reader.offset_at(("T", 0), extent, times[-1] + 1) == 40
    reader.close()


def test_directories_without_a_store_are_refused(tmp_path: Path):
    with pytest.raises(StoreError, match="is no store directory"):
        StoreReader(tmp_path)
    store = open_store(tmp_path)
    fill(store, 300)
    store.close()
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    with pytest.raises(StoreCorrupt, match="one is missing"):
        StoreReader(tmp_path)


def test_the_lock_is_reported_and_not_taken(tmp_path: Path):
    disk = LocalFileSystem()
    path = tmp_path / "lock"
    assert not disk.is_locked(path)
    held = disk.lock(path)
    assert held is not None
    assert disk.is_locked(path)
    assert disk.is_locked(path)
    disk.close(held)
    assert not disk.is_locked(path)
    again = disk.lock(path)
    assert again is not None
    disk.close(again)


def test_a_queue_begins_where_its_beginning_was_raised_to(tmp_path: Path):
    store = open_store(tmp_path)
    sent = fill(store, 100)
    store.raise_min_offset("T", 0, 7)
    flush(store)
    expected = sent | {("T", 0): sent["T", 0][7:]}
    assert everything(tmp_path) == (expected, [])
    store.close()
    assert everything(tmp_path) == (expected, [])


class InterruptedFiles(LocalFileSystem):
    """A file system on which another process removes files before some call."""

    def __init__(self, calls: int, happen: Callable[[], object]) -> None:
        self.calls = calls
        self.happen = happen

    def _call(self) -> None:
        self.calls -= 1
        if self.calls == 0:
            self.happen()

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        self._call()
        return super().open(path, write=write, create=create)

    def size(self, path: Path) -> int:
        self._call()
        return super().size(path)

    def listdir(self, path: Path) -> list[str]:
        self._call()
        return super().listdir(path)

    def pread(self, file: int, size: int, offset: int) -> bytes:
        self._call()
        return super().pread(file, size, offset)


@pytest.mark.parametrize("first_call", quick(range(1, 12), 3))
def test_files_removed_while_reading_are_reported_as_lost(tmp_path: Path, first_call: int):
    """Files disappear at any call of the reader: each message is either read or reported lost, never both."""
    for calls in range(first_call, 1_000, 11):
        root = tmp_path / str(calls)
        store = open_store(root)
        sent = fill(store, 120)
        flush(store)
        filesystem = InterruptedFiles(calls, partial(remove_old_files, store, 3))
        reader = StoreReader(root, filesystem=filesystem)
        extents = reader.survey()
        lost: Lost = []
        spans = [Span(key, at.min_offset, at.max_offset, at) for key, at in extents.items()]
        assert {span.queue: span.end for span in spans} == {key: len(bodies) for key, bodies in sent.items()}
        reader.offset_at(("T", 0), extents["T", 0], 1)
        found = read(reader, spans, lost)
        reader.close()
        for span in spans:
            gone = [number for key, start, end in lost if key == span.queue for number in range(start, end)]
            left = [number for number in range(span.start, span.end) if number not in gone]
            assert found.get(span.queue, []) == [sent[span.queue][number] for number in left], calls
            assert len(gone) == len(set(gone)), "reported once"
        store.close()
        if filesystem.calls > 0:
            break
    else:
        raise AssertionError("the reader makes more calls than were tried")
