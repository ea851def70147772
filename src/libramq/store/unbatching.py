"""Unbatching (`libra store unbatch`): copies a store of Apache's broker with one record per message.

    record of a batch (queue.type=BatchCQ)   queue offset 7, body: a │ b │ c
        ─► records                           7: a    8: b    9: c        … and every other record as it is

Queue offsets, times and properties stay, so groups continue where they were. Physical offsets change, and
offset message ids with them. Queues and indexes are built from the new log, and timers are collected again
from their topic. The copy is written to a directory beside its destination, which is renamed once everything
is on the disk; the original is only read.

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

#: The field of a record with its physical offset.
_PLACE: Final = slice(28, 36)
_TIMER_FILES: Final = ("timercheck", "timermetrics")
#: Ours: the bytes written at once.
_CHUNK_BYTES: Final = 1 << 20
#: `ConsumeQueue.rebuild` accepts a queue offset only if that many records fit in the log before it. So the
#: copy leaves room for a record per message that the original has already deleted: a record has at least 92
#: bytes, and a message of a batch 22.
SPREAD: Final = -(-RECORD_BYTES_MIN // ITEM_BYTES_MIN)


@dataclass(slots=True)
class UnbatchReport:
    """The numbers of records read, of batches among them, and of records written."""

    topics: list[str]
    read: int = 0
    batches: int = 0
    written: int = 0


def unbatch_store(
    root: Path, to: Path, filesystem: FileSystem, clock: Clock, *, commit_log: Path | None = None
) -> UnbatchReport:
    """Copy a store whose broker is stopped to a new or empty directory, without batches.

    commit_log: the directory of the log, if it is outside the store directory; the copy has it inside. Raises
    StoreError if there is nothing to do, the log is damaged, or the store is in use.
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
    """Return mappedFileSizeConsumeQueue from the size of a queue's file; the default if there is none."""
    queues = root / "consumequeue"
    for topic in filesystem.listdir(queues):
        for queue_id in filesystem.listdir(queues / topic):
            found = ReadOnlyFiles(filesystem, queues / topic / queue_id).file_size
            if found:
                return found
    return StoreConfig(root=root).mapped_file_size_consume_queue


def _copy_log(files: ReadOnlyFiles, store: MessageStore, report: UnbatchReport) -> None:
    """Write the log's records to a slave's store, which builds the units."""
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
    """Yield the records of the copy, whose physical offsets are still to be set."""
    # Apache's broker begins a file when the previous one is full, so the log up to there is written.
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
    """Yield a record for each message of a batch."""
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
    """Copy the tables without topics' queue.type. Timers keep their progress and are collected again."""
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
