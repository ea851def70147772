"""Unbatching (`libra store unbatch`): a copy of a store of Apache's in which every message has a record of
its own.

    record of a batch (queue.type=BatchCQ)   queue offset 7, body: a │ b │ c
        ─► records                           7: a    8: b    9: c        … and every other record as it is

Numbers in queues, times and properties stay, so groups continue where they were; places in the log move, and
message ids with them. Queues and indexes are built from the new log, timers are collected again from their
topic. The directory is made beside its final place, and renamed when all of it is on the disk; the original
is only read.

Upstream: MessageDecoder.decodeMessage (a client that unwraps), BatchConsumeQueue.java.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from libramq.clock import Clock
from libramq.errors import RemoteProtocolError, StoreError
from libramq.filesystem import FileSystem, opened, read_bytes
from libramq.formats import fastjson
from libramq.message import sys_flag as flags
from libramq.message.batch import ITEM_BYTES_MIN
from libramq.message.inner_batch import unwrapped_items
from libramq.message.record import (
    BLANK_BYTES,
    BLANK_MAGIC,
    RECORD_BYTES_MIN,
    RecordHead,
)
from libramq.store.checkpoint import FILE_NAME as RECOVERY_POINT
from libramq.store.config import StoreConfig
from libramq.store.copying import TOPICS, UNFINISHED_SUFFIX, read_table, table_names
from libramq.store.log.log_scan import LogScan
from libramq.store.message_store import MessageStore
from libramq.store.reading.read_only_files import ReadOnlyFiles

#: Where a record has its own place in the log.
_PLACE: Final = slice(28, 36)
_TIMER_FILES: Final = ("timercheck", "timermetrics")
#: Ours: what is written at once.
_CHUNK_BYTES: Final = 1 << 20
#: A number in a queue is believed if so many records fit before it (`ConsumeQueue.rebuild`), so the copy
#: begins behind the room that a record each would take of the messages that the original has no more: a
#: record has 92 bytes at least, and a message of a batch 22.
SPREAD: Final = -(-RECORD_BYTES_MIN // ITEM_BYTES_MIN)


@dataclass(slots=True)
class UnbatchReport:
    """The numbers of records that were read, of batches among them, and of records of the copy."""

    topics: list[str]
    read: int = 0
    batches: int = 0
    written: int = 0


def unbatch_store(
    root: Path, to: Path, filesystem: FileSystem, clock: Clock, *, commit_log: Path | None = None
) -> UnbatchReport:
    """Copy a store whose broker is stopped to a directory that is new or empty, without batches.

    commit_log: the directory of its log, if that is not in it; in the copy it is. Raises StoreError if there
    is nothing to do, the log is damaged, or the store is in use.
    """
    log = commit_log or root / "commitlog"
    files = ReadOnlyFiles(filesystem, log)
    topics = _batch_topics(filesystem, root)
    if not files.starts:
        raise StoreError(f"{root} is no store directory with messages: {log} has no files")
    if not topics and not filesystem.listdir(StoreConfig(root=root).batch_queue_directory):
        raise StoreError(f"{root} has no topics with queue.type=BatchCQ; LibraMQ serves it as it is")
    if filesystem.exists(root / RECOVERY_POINT):
        raise StoreError(f"{root} was written by LibraMQ, which serves its batches as they are")
    if filesystem.is_locked(root / "lock"):
        raise StoreError(f"{root} is in use: stop its broker first")
    if filesystem.listdir(to):
        raise StoreError(f"{to} is not empty; copy to a new directory")
    unfinished = to.with_name(to.name + UNFINISHED_SUFFIX)
    filesystem.remove_tree(unfinished)
    try:
        report = UnbatchReport(topics)
        config = StoreConfig(
            root=unfinished,
            mapped_file_size_commit_log=files.file_size,
            mapped_file_size_consume_queue=_queue_file_size(filesystem, root),
            is_copy=True,
        )
        _copy_log(files, MessageStore(config, filesystem, clock), report)
        _copy_tables(root, unfinished, filesystem)
        filesystem.rename(unfinished, to)
        filesystem.sync_directory(to.parent)
    except BaseException:
        filesystem.remove_tree(unfinished)
        raise
    finally:
        files.close()
    return report


def _queue_file_size(filesystem: FileSystem, root: Path) -> int:
    """Return mappedFileSizeConsumeQueue, as a file of the store says; the default if it has none."""
    queues = root / "consumequeue"
    for topic in filesystem.listdir(queues):
        for queue_id in filesystem.listdir(queues / topic):
            found = ReadOnlyFiles(filesystem, queues / topic / queue_id).file_size
            if found:
                return found
    return StoreConfig(root=root).mapped_file_size_consume_queue


def _copy_log(files: ReadOnlyFiles, store: MessageStore, report: UnbatchReport) -> None:
    """Write the log's records to a slave's store, which gives each its unit."""
    store.open()
    try:
        position = begin = files.starts[0] * SPREAD
        chunk = bytearray()
        for record in _records(files, report):
            room = files.start_of(position) + files.file_size - position
            if len(record) + BLANK_BYTES > room:
                chunk += room.to_bytes(4) + BLANK_MAGIC.to_bytes(4) + bytes(room - BLANK_BYTES)
                position += room
            record[_PLACE] = position.to_bytes(8)
            chunk += record
            position += len(record)
            report.written += 1
            if len(chunk) >= _CHUNK_BYTES:
                store.copy.append(begin, bytes(chunk))
                begin = position
                chunk.clear()
        store.copy.append(begin, bytes(chunk))
        store.flush()
    except RemoteProtocolError as error:
        raise StoreError(f"the copy cannot be made: {error}") from None
    finally:
        store.close()


def _records(files: ReadOnlyFiles, report: UnbatchReport) -> Iterator[bytearray]:
    """Yield the records of the copy, with places that are still to be set."""
    # Apache's broker begins a file when one is full: so far the log is certainly written.
    known_end = files.starts[-2] if len(files.starts) > 1 else 0
    for head in LogScan(files, files.starts[0], protected=known_end):
        if not isinstance(head, RecordHead):
            raise StoreError(f"the log is damaged at {head.offset}: {head.reason}; see `libra store check`")
        report.read += 1
        data = files.read(head.physical_offset, head.size)
        if not head.sys_flag & flags.INNER_BATCH:
            yield bytearray(data)
            continue
        report.batches += 1
        yield from _unwrapped(data, head)


def _unwrapped(data: bytes, head: RecordHead) -> Iterator[bytearray]:
    """Yield a record for each message of a batch's record."""
    try:
        yield from map(bytearray, unwrapped_items(data, head))
    except RemoteProtocolError as error:
        raise StoreError(f"the batch at {head.physical_offset} of the log cannot be read: {error}") from None


# The tables.


def _batch_topics(filesystem: FileSystem, root: Path) -> list[str]:
    data = read_table(filesystem, root / "config", TOPICS).get(f"{TOPICS}.json")
    table: dict[str, dict[str, object]] = (fastjson.loads(data) if data else {}).get("topicConfigTable") or {}
    return sorted(name for name, topic in table.items() if _is_of_batches(topic))


def _is_of_batches(topic: dict[str, object]) -> bool:
    attributes = topic.get("attributes")
    return isinstance(attributes, dict) and attributes.get("queue.type") == "BatchCQ"


def _copy_tables(root: Path, to: Path, filesystem: FileSystem) -> None:
    """Copy the tables; topics lose the attribute. Timers keep how far they are, and are collected again."""
    source, target = root / "config", to / "config"
    filesystem.makedirs(target)
    for stem in (*table_names(filesystem, source), TOPICS):
        for name, data in read_table(filesystem, source, stem).items():
            text = _without_batches(data) if name == f"{TOPICS}.json" else data
            filesystem.replace_text(target / name, text.decode(), backup=False)
    for name in _TIMER_FILES:
        if filesystem.exists(source / name):
            with opened(filesystem, target / name, write=True, create=True) as file:
                filesystem.pwrite(file, read_bytes(filesystem, source / name), 0)
                filesystem.fsync(file)


def _without_batches(data: bytes) -> bytes:
    document = fastjson.loads(data)
    for topic in (document.get("topicConfigTable") or {}).values():
        if _is_of_batches(topic):
            del topic["attributes"]["queue.type"]
    return fastjson.dumps(document, indent=True)
