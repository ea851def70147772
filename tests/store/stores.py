"""Stores for tests: small files, a manual clock, and a disk that can be made to fail."""

import errno
import shutil
from pathlib import Path

import msgspec

from libramq.clock import MonotonicMs
from libramq.filesystem import DiskUsage
from libramq.message import MessageExt, decode_records, tag_code
from libramq.message.ids import encode_host
from libramq.message.properties import encode_properties
from libramq.store import MessageStore, StoreConfig, StoreMessage, run_flush
from libramq.store.flush import FlushPlan
from libramq.store.log.append import MessageRun
from libramq.store.retention import Retention
from tests.fakes import ManualClock, OwnFiles, done

BORN = encode_host(("10.1.2.3", 4567))


def run_with(topic: str, queue_id: int, items, **fields) -> MessageRun:
    """Return a run of messages, each a tuple of flag, body, properties and tag code."""
    flags, bodies, properties, codes = zip(*items, strict=True) if items else ((), (), (), ())
    return MessageRun(topic, queue_id, bodies, properties, codes, flags, **fields)


class Disk(OwnFiles):
    """A file system whose fsync only counts, and whose calls can be made to fail."""

    def __init__(self) -> None:
        super().__init__()
        self.synced: list[int] = []
        self.writes: list[tuple[int, int]] = []
        self.reads: list[tuple[int, int]] = []
        self.bytes_left: int | None = None
        self.fails_sync = False
        self.is_cold = False
        self.space = DiskUsage(used_bytes=10, available_bytes=90)

    def fsync(self, file: int) -> None:
        if self.fails_sync:
            raise OSError(errno.EIO, "the disk is broken")
        self.synced.append(file)

    def sync_directory(self, path: Path) -> None:
        pass

    def pwrite(self, file: int, data: bytes, offset: int) -> None:
        if self.bytes_left is not None:
            if len(data) > self.bytes_left:
                super().pwrite(file, data[: self.bytes_left], offset)
                raise OSError(errno.ENOSPC, "no space left")
            self.bytes_left -= len(data)
        self.writes.append((offset, len(data)))
        super().pwrite(file, data, offset)

    def disk_space(self, path: Path) -> DiskUsage:
        return self.space

    def used_percent(self, path: Path) -> float:
        return 100 * self.space.used_bytes / (self.space.used_bytes + self.space.available_bytes)

    def pread_nowait(self, file: int, size: int, offset: int) -> bytes | None:
        return None if self.is_cold else super().pread_nowait(file, size, offset)

    def pread(self, file: int, size: int, offset: int) -> bytes:
        self.reads.append((offset, size))
        return super().pread(file, size, offset)


def make_store(
    root: Path, *, disk: Disk | None = None, clock: ManualClock | None = None, **options: object
) -> MessageStore:
    """Make a store without opening it; by default its files have 4 KiB, and 10 units."""
    defaults: dict[str, object] = {
        "mapped_file_size_commit_log": 4096,
        "mapped_file_size_consume_queue": 200,
        "tail_bytes": 4096,
    }
    config = StoreConfig(root=root, **(defaults | options))  # type: ignore[arg-type]
    return MessageStore(config, disk or Disk(), clock or ManualClock(), process_id=1)


def open_store(root: Path, **options: object) -> MessageStore:
    """Make a store and open it."""
    store = make_store(root, **options)  # type: ignore[arg-type]
    store.open()
    return store


def kill(store: MessageStore) -> None:
    """Leave a store as a kill does: write nothing more; release lock and descriptors as the kernel would."""
    store._release()


def message(body: bytes | str, topic: str = "T", queue_id: int = 0, tags: str | None = None) -> StoreMessage:
    """Make a message as a send processor does."""
    return StoreMessage(
        topic,
        queue_id,
        body if isinstance(body, bytes) else body.encode(),
        encode_properties({"TAGS": tags} if tags else {}),
        tag_code(tags),
        born_timestamp_ms=5,
        born_host=BORN,
    )


def clean(store: MessageStore, retention: Retention, *, hour: int = 12) -> int:
    """Remove expired files, including the work for threads; return how many files of the log were removed."""
    return int(done(store.cleaning.clean(retention, lambda _: hour)))


def remove_old_files(store: MessageStore, count_max: int = 10) -> int:
    """Remove the oldest files regardless of age.

    All but the last one if that many may be removed at once.
    """
    disk = store._filesystem
    assert isinstance(disk, Disk)
    space, disk.space = disk.space, DiskUsage(used_bytes=1 << 60, available_bytes=0)
    try:
        return clean(store, Retention(clean_forcibly_percent=0, files_per_round_max=count_max))
    finally:
        disk.space = space


def plan_flush(store: MessageStore, now_ms: int, *, thorough: bool = False) -> FlushPlan | None:
    """Return the due flushes of the log and the queues together, as if one thread did them all."""
    if not store._is_open or store._refusal.is_final:
        return None
    flusher, due_ms = store._flusher, MonotonicMs(now_ms)
    plan = flusher.plan_queues(due_ms, store._last_store_timestamp_ms, thorough=thorough)
    of_log = flusher.plan_log(due_ms, forced=thorough)
    if plan is not None and of_log is not None:
        plan = msgspec.structs.replace(
            plan,
            files=of_log.files,
            paths=(*plan.paths, *of_log.paths),
            directories=tuple(dict.fromkeys([*of_log.directories, *plan.directories])),
            commit_log_end=of_log.commit_log_end,
            log_bytes=of_log.log_bytes,
        )
    return store._planned(plan or of_log)


def flush(store: MessageStore, now_ms: int = 1 << 40) -> None:
    """Flush everything to the disk, as the shell does."""
    plan = plan_flush(store, now_ms, thorough=True)
    if plan is not None:
        run_flush(store._filesystem, plan)
        store.complete_flush(plan)


def read_all(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[MessageExt]:
    """Return every message of a queue, pulled from its beginning."""
    found: list[MessageExt] = []
    offset = store.min_offset(topic, queue_id)
    while offset < store.max_offset(topic, queue_id):
        result = store.read(topic, queue_id, offset, 32)
        data = b"".join(result.data)
        assert len(data) == result.size
        messages = decode_records(data)
        assert len(messages) == result.count
        assert result.next_offset > offset
        found += messages
        offset = result.next_offset
    return found


def bodies(store: MessageStore, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    """Return the bodies of a queue's messages; also check that the messages are numbered correctly."""
    messages = read_all(store, topic, queue_id)
    first = store.min_offset(topic, queue_id)
    assert [m.queue_offset for m in messages] == list(range(first, first + len(messages)))
    assert {(m.topic, m.queue_id) for m in messages} <= {(topic, queue_id)}
    return [m.body for m in messages]


def copy_as_killed(root: Path, to: Path) -> Path:
    """Copy the directory as a killed process would leave it."""
    shutil.rmtree(to, ignore_errors=True)
    shutil.copytree(root, to)
    (to / "abort").write_text("1")
    return to
