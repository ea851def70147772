"""A store with Apache's batches is copied to one in which every message has its own record."""

import errno
import zlib
from pathlib import Path

import pytest

from libramq.errors import StoreError
from libramq.filesystem import LocalFileSystem
from libramq.formats import fastjson
from libramq.message import MessageExt, decode_records
from libramq.message.batch import BatchItem, encode_batch
from libramq.message.ids import encode_host
from libramq.message.record import BLANK_BYTES, BLANK_MAGIC, encode_record
from libramq.message.sys_flag import COMPRESSED, COMPRESSION_ZLIB, INNER_BATCH, NEED_UNWRAP
from libramq.store.check import check_store
from libramq.store.unbatching import SPREAD, UnbatchReport, unbatch_store
from tests.fakes import ManualClock
from tests.store.stores import Disk, open_store

FILE_BYTES = 4096
QUEUE_FILE_BYTES = 200  # As in open_store.
WRAPPED = INNER_BATCH | NEED_UNWRAP
BORN = ("10.1.2.3", 4567)


def item(text: str, flag: int = 0) -> BatchItem:
    return BatchItem(flag, text.encode(), f"TAGS\x01{text}\x02UNIQ_KEY\x01id-{text}\x02".encode())


class Apaches:
    """A directory as Apache's broker writes it. begin: the log's first offset."""

    def __init__(self, root: Path, begin: int = 0) -> None:
        self.root = root
        self.begin = begin
        self.log = bytearray()
        self.write_topics({"B": {"queue.type": "BatchCQ", "message.type": "NORMAL"}, "T": {}})

    def write_topics(self, attributes: dict[str, dict[str, str]]) -> None:
        table = {
            name: {"topicName": name, "readQueueNums": 1, "writeQueueNums": 1, "perm": 6, "attributes": each}
            for name, each in attributes.items()
        }
        (self.root / "config").mkdir(parents=True, exist_ok=True)
        content = fastjson.dumps({"dataVersion": {"counter": 3}, "topicConfigTable": table, "more": 1})
        (self.root / "config" / "topics.json").write_bytes(content)
        (self.root / "config" / "consumerOffset.json").write_bytes(b'{"offsetTable":{"B@G":{0:4}}}')

    def add(self, topic: str, offset: int, body: bytes, sys_flag: int = 0, **fields: object) -> None:
        def record(place: int) -> bytes:
            return encode_record(
                topic=topic, queue_id=0, queue_offset=offset, physical_offset=place, body=body,
                properties=b"INNER_NUM\x013\x02" if sys_flag & INNER_BATCH else b"TAGS\x01plain\x02",
                sys_flag=sys_flag, born_timestamp_ms=7, store_timestamp_ms=1_000 + offset,
                born_host=encode_host(BORN), store_host=encode_host(BORN), **fields,  # type: ignore[arg-type]
            )  # fmt: skip

        room = FILE_BYTES - len(self.log) % FILE_BYTES
        if len(record(0)) + BLANK_BYTES > room:
            self.log += room.to_bytes(4) + BLANK_MAGIC.to_bytes(4) + bytes(room - BLANK_BYTES)
        self.log += record(self.begin + len(self.log))

    def add_batch(self, offset: int, *items: BatchItem, sys_flag: int = WRAPPED) -> None:
        body = encode_batch(items)
        self.add("B", offset, zlib.compress(body) if sys_flag & COMPRESSED else body, sys_flag)

    def write(self) -> Path:
        directory = self.root / "commitlog"
        directory.mkdir(exist_ok=True)
        data = bytes(self.log).ljust(-len(self.log) % FILE_BYTES + len(self.log), b"\0")
        for start in range(0, len(data), FILE_BYTES):
            path = directory / f"{self.begin + start:020d}"
            path.write_bytes(data[start : start + FILE_BYTES])
        (self.root / "consumequeue" / "T" / "0").mkdir(parents=True, exist_ok=True)
        (self.root / "consumequeue" / "T" / "0" / f"{0:020d}").write_bytes(bytes(QUEUE_FILE_BYTES))
        (self.root / "batchconsumequeue" / "B" / "0").mkdir(parents=True, exist_ok=True)
        (self.root / "batchconsumequeue" / "B" / "0" / f"{0:020d}").write_bytes(bytes(46))
        return self.root


def unbatched(root: Path, to: Path) -> UnbatchReport:
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    report = unbatch_store(root, to, LocalFileSystem(), ManualClock())
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before
    return report


def read(to: Path, topic: str, first: int = 0) -> list[MessageExt]:
    store = open_store(to, mapped_file_size_commit_log=FILE_BYTES)
    messages, offset = [], first
    while (result := store.read(topic, 0, offset, 32)).count:
        messages += decode_records(b"".join(result.data), check_crc=True)
        offset = result.next_offset
    assert store.min_offset(topic, 0) == first
    store.close()
    return messages


@pytest.mark.parametrize("compressed", [0, COMPRESSED | COMPRESSION_ZLIB])
def test_each_message_gets_a_record_with_its_number(tmp_path: Path, compressed: int):
    store = Apaches(tmp_path / "apaches")
    store.add_batch(0, item("a", flag=5), item("b"), item("c"), sys_flag=WRAPPED | compressed)
    store.add("T", 0, b"other")
    store.add("B", 3, b"alone")
    store.add_batch(4, item("d"), item("e"))
    report = unbatched(store.write(), tmp_path / "to")
    assert report == UnbatchReport(["B"], read=4, batches=2, written=7)
    messages = read(tmp_path / "to", "B")
    assert [(m.queue_offset, m.body, m.tags) for m in messages] == [
        (0, b"a", "a"), (1, b"b", "b"), (2, b"c", "c"), (3, b"alone", "plain"),
        (4, b"d", "d"), (5, b"e", "e"),
    ]  # fmt: skip
    first = messages[0]
    assert (first.message_id, first.flag, first.sys_flag, first.born_host) == ("id-a", 5, 0, BORN)
    assert (first.born_timestamp_ms, first.store_timestamp_ms) == (7, 1_000)
    (other,) = read(tmp_path / "to", "T")
    assert (other.body, other.store_timestamp_ms, other.born_host) == (b"other", 1_000, BORN)
    assert not check_store(tmp_path / "to", LocalFileSystem()).is_damaged


def test_more_records_than_fit_one_file_and_a_log_that_begins_later(tmp_path: Path):
    store = Apaches(tmp_path / "apaches", begin=5 * FILE_BYTES)
    for batch in range(60):
        store.add_batch(300 + 3 * batch, *(item(f"{batch}-{number}" + "x" * 150) for number in range(3)))
    unbatched(store.write(), tmp_path / "to")
    messages = read(tmp_path / "to", "B", 300)
    assert [m.queue_offset for m in messages] == list(range(300, 480))
    assert [m.body[:4].rstrip(b"x") for m in messages[:4]] == [b"0-0", b"0-1", b"0-2", b"1-0"]
    assert messages[0].physical_offset == 5 * FILE_BYTES * SPREAD
    assert not check_store(tmp_path / "to", LocalFileSystem()).is_damaged


def test_tables_are_copied_and_topics_lose_the_attribute(tmp_path: Path):
    store = Apaches(tmp_path / "apaches")
    store.add_batch(0, item("a"), item("b"))
    root = store.write()
    (root / "config" / "timercheck").write_bytes(b"t" * 4096)
    (root / "timerwheel").write_bytes(b"w")
    unbatched(root, tmp_path / "to")
    topics = fastjson.loads((tmp_path / "to" / "config" / "topics.json").read_bytes())
    assert topics["topicConfigTable"]["B"]["attributes"] == {"message.type": "NORMAL"}
    assert (topics["topicConfigTable"]["T"]["attributes"], topics["more"]) == ({}, 1)
    offsets = fastjson.loads((tmp_path / "to" / "config" / "consumerOffset.json").read_bytes())
    assert offsets["offsetTable"] == {"B@G": {0: 4}}
    assert (tmp_path / "to" / "config" / "timercheck").read_bytes() == b"t" * 4096
    assert not (tmp_path / "to" / "timerwheel").exists()
    assert not (tmp_path / "to" / "batchconsumequeue").exists()


def test_what_cannot_be_copied_is_refused_and_leaves_nothing(tmp_path: Path):
    to, files, clock = tmp_path / "to", LocalFileSystem(), ManualClock()
    with pytest.raises(StoreError, match="no store directory"):
        unbatch_store(tmp_path / "missing", to, files, clock)
    store = Apaches(tmp_path / "apaches")
    store.write_topics({"T": {}})
    store.add("T", 0, b"x")
    root = store.write()
    (root / "batchconsumequeue" / "B" / "0" / f"{0:020d}").unlink()
    (root / "batchconsumequeue" / "B" / "0").rmdir()
    (root / "batchconsumequeue" / "B").rmdir()
    with pytest.raises(StoreError, match="serves it as it is"):
        unbatch_store(root, to, files, clock)
    store.write_topics({"B": {"queue.type": "BatchCQ"}})
    store.add("B", 0, encode_batch([item("a")])[:-3], WRAPPED)
    root = store.write()
    with pytest.raises(StoreError, match=r"the batch at \d+ of the log cannot be read"):
        unbatch_store(root, to, files, clock)
    lock = files.lock(root / "lock")
    assert lock is not None
    if files.is_locked(root / "lock"):  # Not where a process does not see its own locks.
        with pytest.raises(StoreError, match="is in use"):
            unbatch_store(root, to, files, clock)
    files.close(lock)
    to.mkdir()
    (to / "mine").write_bytes(b"")
    with pytest.raises(StoreError, match="is not empty"):
        unbatch_store(root, to, files, clock)
    assert [path.name for path in tmp_path.iterdir()] == ["apaches", "to"] or not list(
        tmp_path.glob("*.unfinished")
    )


def test_a_damaged_log_is_refused(tmp_path: Path):
    store = Apaches(tmp_path / "apaches")
    for number in range(40):
        store.add_batch(3 * number, *(item(f"{number}-{part}" + "x" * 100) for part in range(3)))
    root = store.write()
    first = root / "commitlog" / f"{0:020d}"
    data = bytearray(first.read_bytes())
    data[600] ^= 1
    first.write_bytes(bytes(data))
    with pytest.raises(StoreError, match="the log is damaged at"):
        unbatch_store(root, tmp_path / "to", LocalFileSystem(), ManualClock())
    assert not (tmp_path / "to").exists()


def test_a_full_disk_leaves_nothing_behind(tmp_path: Path):
    store = Apaches(tmp_path / "apaches")
    store.add_batch(0, item("a" * 2000), item("b" * 1000))
    root, disk = store.write(), Disk()
    disk.bytes_left = 1_000
    with pytest.raises((StoreError, OSError)) as raised:
        unbatch_store(root, tmp_path / "to", disk, ManualClock())
    assert isinstance(raised.value, StoreError) or raised.value.errno == errno.ENOSPC
    assert [path.name for path in tmp_path.iterdir()] == ["apaches"]
