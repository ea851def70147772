"""A store is copied while it is written, cleaned and changed.

The copy has all messages acknowledged before.
"""

import hashlib
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from libramq.catalog.config_ledger import ConfigLedger
from libramq.errors import StoreError, StoreLocked
from libramq.filesystem import LocalFileSystem
from libramq.offsets.journal import OffsetRecord, RecordKind
from libramq.offsets.ledger import OffsetLedger
from libramq.store import MessageStore
from libramq.store.check import check_store
from libramq.store.copying import UNFINISHED_SUFFIX, copy_store
from tests.fakes import ManualClock
from tests.quick import quick
from tests.store.stores import (
    Disk,
    bodies,
    flush,
    kill,
    message,
    open_store,
    read_all,
    remove_old_files,
)

QUEUES = [("T", 0), ("T", 1), ("U", 0)]


class Busy(LocalFileSystem):
    """The disk as a copy sees it: the broker continues to work between any two accesses."""

    def __init__(self, happen: Callable[[], None]) -> None:
        self._happen = happen

    @property
    def flushes_at_once(self) -> int:
        return 1

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        self._happen()
        return super().open(path, write=write, create=create)

    def pread(self, file: int, size: int, offset: int) -> bytes:
        self._happen()
        return super().pread(file, size, offset)

    def listdir(self, path: Path) -> list[str]:
        self._happen()
        return super().listdir(path)

    def size(self, path: Path) -> int:
        self._happen()
        return super().size(path)

    def read_text(self, path: Path) -> str | None:
        self._happen()
        return super().read_text(path)

    def fsync(self, file: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


class Broker:
    """A store with random operations; it remembers the messages sent to each queue by number."""

    def __init__(self, root: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.store = open_store(root, open_files_max=8)
        self.sent: dict[tuple[str, int], list[bytes]] = {key: [] for key in QUEUES}
        self.first = dict.fromkeys(QUEUES, 0)
        self.deleted: set[str] = set()

    def send(self) -> None:
        key = self.random.choice(QUEUES)
        body = b"%d " % len(self.sent[key]) + b"x" * self.random.randrange(25)
        (result,) = self.store.append_batch([message(body, topic=key[0], queue_id=key[1])])
        assert result.queue_offset == len(self.sent[key])
        self.sent[key].append(body)

    def happen(self) -> None:
        chance = self.random.random()
        if chance < 0.3:
            self.send()
        elif chance < 0.36:
            flush(self.store)
        elif chance < 0.40:
            remove_old_files(self.store, self.random.randint(1, 3))
        elif chance < 0.405:
            topic = self.random.choice("TU")
            self.store.delete_topic(topic)
            self.deleted.add(topic)
            for key in QUEUES:
                if key[0] == topic:
                    self.sent[key].clear()
        elif chance < 0.42:
            key = self.random.choice(QUEUES)
            self.store.raise_min_offset(*key, self.random.randrange(len(self.sent[key]) + 1))
        for key in QUEUES:
            self.first[key] = max(self.first[key], self.store.min_offset(*key))


def opened(root: Path) -> MessageStore:
    return open_store(root, open_files_max=8)


@pytest.mark.parametrize("seed", quick(range(25), 8))
def test_a_copy_of_a_store_at_work_has_what_was_acknowledged_before(tmp_path: Path, seed: int) -> None:
    broker = Broker(tmp_path / "store", seed)
    for _ in range(broker.random.randrange(400)):
        broker.happen()
    before = {key: list(sent) for key, sent in broker.sent.items()}
    broker.deleted.clear()
    try:
        copy_store(tmp_path / "store", tmp_path / "copy", Busy(broker.happen))
        after = broker.sent
        report = check_store(tmp_path / "copy", LocalFileSystem())
        if not broker.deleted and any(before.values()):
            assert not report.is_damaged, report
        copy = opened(tmp_path / "copy")
        assert copy.recovery is not None
        assert not copy.recovery.damages
        assert copy.recovery.cut_bytes == 0
        for key in QUEUES:
            if key[0] in broker.deleted:
                continue
            found = bodies(copy, *key)
            first = copy.min_offset(*key)
            assert first <= broker.first[key], "something is missing that the broker still had"
            assert first + len(found) >= len(before[key]), "something acknowledged before is missing"
            assert found == after[key][first : first + len(found)]
        for key in QUEUES:  # It continues.
            (result,) = copy.append_batch([message("more", topic=key[0], queue_id=key[1])])
            assert read_all(copy, *key)[-1].queue_offset == result.queue_offset
        copy.close()
        assert not check_store(tmp_path / "copy", LocalFileSystem()).is_damaged
    finally:
        broker.store.close()


def fingerprint(root: Path) -> dict[str, str]:
    return {
        str(path.relative_to(root)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_copy_changes_nothing_and_opens_as_the_original(tmp_path: Path, is_killed: bool) -> None:
    root, to = tmp_path / "store", tmp_path / "deeper" / "copy"
    store = open_store(root)
    for number in range(100):
        store.append_batch([message(b"%d" % number + b"." * 100)])
        if number == 50:
            flush(store)
    kill(store) if is_killed else store.close()
    before = fingerprint(root)
    report = copy_store(root, to, LocalFileSystem())
    assert fingerprint(root) == before
    assert report.is_closed is not is_killed
    assert sorted(path.name for path in to.parent.iterdir()) == ["copy"]
    original, copy = open_store(root), open_store(to)
    assert original.recovery is not None
    assert copy.recovery is not None
    assert copy.recovery.clean is original.recovery.clean
    assert copy.recovery.start == original.recovery.start == report.recovered_from
    assert copy.recovery.end == original.recovery.end == report.log_end
    assert bodies(copy) == bodies(original)
    original.close()
    copy.close()


def test_a_copy_is_there_whole_or_not_at_all(tmp_path: Path) -> None:
    """A failed copy leaves nothing behind, and a killed one does not obstruct the next."""
    store = open_store(tmp_path / "store")
    store.append_batch([message("a")])
    looks = 0

    def fail() -> None:
        nonlocal looks
        looks += 1
        if looks == 20:
            raise OSError(5, "the disk is broken")

    with pytest.raises(OSError, match="broken"):
        copy_store(tmp_path / "store", tmp_path / "copy", Busy(fail))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    left = tmp_path / ("copy" + UNFINISHED_SUFFIX)
    (left / "commitlog").mkdir(parents=True)
    (left / "commitlog" / "of another time").write_text("")
    copy_store(tmp_path / "store", tmp_path / "copy", LocalFileSystem())
    assert sorted(path.name for path in tmp_path.iterdir()) == ["copy", "store"]
    assert [path.name for path in (tmp_path / "copy" / "commitlog").iterdir()] == [f"{0:020d}"]
    store.close()


def test_what_cannot_be_copied_is_refused_in_one_sentence(tmp_path: Path) -> None:
    disk = LocalFileSystem()
    with pytest.raises(StoreError, match="no store directory"):
        copy_store(tmp_path / "nothing", tmp_path / "copy", disk)
    open_store(tmp_path / "store").close()
    (tmp_path / "store" / "commitlog").mkdir(exist_ok=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").write_text("")
    with pytest.raises(StoreError, match="is not empty"):
        copy_store(tmp_path / "store", tmp_path / "full", disk)
    unfinished = tmp_path / ("copy" + UNFINISHED_SUFFIX)
    unfinished.mkdir()
    lock = disk.lock(unfinished / "lock")
    assert lock is not None
    with pytest.raises(StoreLocked, match="under way"):
        copy_store(tmp_path / "store", tmp_path / "copy", disk)
    disk.close(lock)


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_broker_that_starts_meanwhile_ends_the_copy(tmp_path: Path, is_killed: bool) -> None:
    """The broker's recovery may have changed files that were already copied."""
    store = open_store(tmp_path / "store")
    store.append_batch([message("a")])
    kill(store) if is_killed else store.close()
    started: list[MessageStore] = []

    def start() -> None:
        if not started:
            started.append(open_store(tmp_path / "store", clock=ManualClock()))

    with pytest.raises(StoreError, match="copy again"):
        copy_store(tmp_path / "store", tmp_path / "copy", _Later(start, looks=8))
    assert not (tmp_path / "copy").exists()
    started[0].close()


def test_a_broker_that_stops_meanwhile_does_not(tmp_path: Path) -> None:
    store = open_store(tmp_path / "store")
    for number in range(50):
        store.append_batch([message(b"%d" % number + b"." * 200)])
    copy_store(tmp_path / "store", tmp_path / "copy", _Later(store.close, looks=8))
    copy = open_store(tmp_path / "copy")
    assert len(bodies(copy)) == 50
    copy.close()


class _Later(Busy):
    """A disk on which something happens once, after some accesses."""

    def __init__(self, happen: Callable[[], object], *, looks: int) -> None:
        super().__init__(self._look)
        self._once: Callable[[], object] | None = happen
        self._looks = looks

    def _look(self) -> None:
        self._looks -= 1
        if self._looks <= 0 and self._once is not None:
            once, self._once = self._once, None
            once()


@pytest.mark.parametrize("seed", quick(range(10), 4))
def test_tables_are_of_one_moment(tmp_path: Path, seed: int) -> None:
    """Every change goes to one of the two tables; the copy has a prefix of each table's changes."""
    randomness = random.Random(seed)
    config = tmp_path / "store" / "config"
    (tmp_path / "store" / "commitlog").mkdir(parents=True)
    disk, clock = Disk(), ManualClock()
    offsets = OffsetLedger(disk, config)
    offsets.open(clock.wall_ms())
    names: ConfigLedger[int] = ConfigLedger(disk, config / "groups.json", int)
    entries: dict[str, int] = {}
    count = 0

    def happen() -> None:
        nonlocal count
        if randomness.random() < 0.7:
            count += 1
            record = OffsetRecord(RecordKind.COMMIT, f"T@{count % 5}", 0, count)
            offsets.offsets.apply(record)
            offsets.append([record])
            entries[str(count % 5)] = count
            names.append(str(count % 5), count)
        elif randomness.random() < 0.1:
            offsets.persist(clock.wall_ms())
            plan = names.plan_fold(lambda: dict(entries))
            if plan is not None:
                plan.write()
                plan.written()

    for _ in range(50):
        happen()
    at_least = count
    copy_store(tmp_path / "store", tmp_path / "copy", Busy(happen))

    copied = OffsetLedger(disk, tmp_path / "copy" / "config")
    copied.open(clock.wall_ms())
    table = copied.offsets.tables()["offsetTable"]
    last = max(numbers[0] for numbers in table.values())
    assert last >= at_least
    found = {key: numbers[0] for key, numbers in table.items()}
    assert found == {f"T@{n % 5}": n for n in range(last - 4, last + 1)}

    again: ConfigLedger[int] = ConfigLedger(disk, tmp_path / "copy" / "config" / "groups.json", int)
    loaded = again.load(dict[str, int]) or {}
    again.replay(lambda change: loaded.update({change.name: change.config or 0}))
    last = max(loaded.values())
    assert last >= at_least
    assert loaded == {str(n % 5): n for n in range(last - 4, last + 1)}
    offsets.abandon()
    copied.abandon()


def test_a_log_in_a_directory_of_its_own_is_in_the_copy(tmp_path: Path) -> None:
    """The log may be elsewhere by storePathCommitLog; the copy is still one directory."""
    log = tmp_path / "disk2" / "log"
    store = open_store(tmp_path / "store", commit_log=log)
    for number in range(50):
        store.append_batch([message(b"%d" % number + b"." * 200)])
    assert not (tmp_path / "store" / "commitlog").exists()
    assert sorted(int(path.name) for path in log.iterdir())[:2] == [0, 4096]
    copy_store(tmp_path / "store", tmp_path / "copy", LocalFileSystem(), commit_log=log)
    store.close()
    assert not check_store(tmp_path / "store", LocalFileSystem(), commit_log=log).is_damaged
    for again in (open_store(tmp_path / "store", commit_log=log), open_store(tmp_path / "copy")):
        assert len(bodies(again)) == 50
        again.close()


def test_where_pops_journal_begins_is_in_the_copy(tmp_path: Path) -> None:
    config = tmp_path / "store" / "config"
    config.mkdir(parents=True)
    names = ("timercheck", "consumerFilter.json", "consumerFilter.json.bak", "topics.json", "topics.json.tmp")
    for name in names:
        (config / name).write_text(name)
    copy_store(tmp_path / "store", tmp_path / "copy", LocalFileSystem())
    copied = {path.name: path.read_text() for path in (tmp_path / "copy" / "config").iterdir()}
    assert copied == {name: name for name in ("timercheck", "consumerFilter.json", "topics.json")}
