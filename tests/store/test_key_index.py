"""The key index: built on the first query, in Apache's files, and never trusted beyond the end of the log."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from libramq.errors import StoreCorrupt
from libramq.message import decode_records, inner_batch
from libramq.message import sys_flag as flags
from libramq.message.batch import BatchItem
from libramq.message.properties import encode_properties
from libramq.message.record import peek_record
from libramq.message.tags import java_hash
from libramq.store import MessageStore, StoreMessage
from libramq.store import key_index as module
from libramq.store.key_index import IndexFile, KeyIndex, index_hash, key_hash, keys_of_all, with_key
from libramq.store.reading.read_only_files import ReadOnlyFiles
from tests.fakes import ManualClock
from tests.message.inner_batches import wrapped
from tests.store.stores import BORN, Disk, open_store, remove_old_files

FOREVER = 1 << 62


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def store(tmp_path: Path, clock: ManualClock) -> Iterator[MessageStore]:
    store = open_store(tmp_path, clock=clock, mapped_file_size_commit_log=4_096)
    yield store
    store.close()


def index_of(root: Path, *, slots: int = 7, entries_max: int = 1_000, is_trusted: bool = True) -> KeyIndex:
    return KeyIndex(Disk(), root, slots=slots, entries_max=entries_max, is_trusted=is_trusted)


def add(store: MessageStore, body: str, *, keys: str = "", unique: str = "", topic: str = "T") -> None:
    properties = {name: value for name, value in (("KEYS", keys), ("UNIQ_KEY", unique)) if value}
    sent = StoreMessage(topic, 0, body.encode(), encode_properties(properties), 0, born_host=BORN)
    assert store.append_batch([sent])[0].is_ok


def advance(index: KeyIndex, store: MessageStore) -> int:
    """Bring the index up to date; return how many calls it took."""
    calls = 1
    while not index.advance(store.visible_offset):
        calls += 1
    return calls


def bodies(index: KeyIndex, store: MessageStore, key: str, **options: int) -> list[str]:
    advance(index, store)
    *_, records = search(index, store, key, **options)
    return [decode_records(record)[0].body.decode() for record in records or ()]


def search(index: KeyIndex, store: MessageStore, key: str, **options: int) -> Iterator[list[bytes] | None]:
    limits = {"count_max": 64, "bytes_max": 1 << 20, "begin_ms": 0, "end_ms": FOREVER}
    return index.find("T", key, **({"until": store.visible_offset} | limits | options))


def test_key_hashes_equal_apaches() -> None:
    """A hash is Math.abs of String.hashCode, but 0 for the smallest int, which Math.abs leaves negative."""
    assert key_hash("T", "KEY1") == 1_855_491_935
    assert java_hash("polygenelubricants") == -(1 << 31)
    assert index_hash("polygenelubricants") == 0


def test_messages_are_found_by_each_key_newest_first(tmp_path: Path, store: MessageStore) -> None:
    add(store, "a", keys="red blue", unique="U1")
    add(store, "b", keys="blue", unique="U2")
    add(store, "c", unique="U3")
    add(store, "d", keys="blue", topic="Another")
    index = index_of(tmp_path)
    assert bodies(index, store, "blue") == ["b", "a"]
    assert bodies(index, store, "red") == ["a"]
    assert bodies(index, store, "U3") == ["c"]
    assert bodies(index, store, "green") == []


@pytest.mark.parametrize("after", [(), ("d",), ("d", "e", "f"), ("one that is longer than what was there",)])
def test_a_log_that_was_cut_is_indexed_again_from_there(
    tmp_path: Path, store: MessageStore, clock: ManualClock, after: tuple[str, ...]
) -> None:
    """A slave's log is truncated where it differs from its master's, and then copies other messages."""
    add(store, "a", keys="k")
    shared = store.end
    for body in "bc":
        add(store, body, keys="k")
    index = index_of(tmp_path)
    assert bodies(index, store, "k") == ["c", "b", "a"]
    store.cut(shared)
    clock.advance(1_000)
    for body in after:
        add(store, body, keys="new")
    assert bodies(index, store, "k") == ["a"]
    assert bodies(index, store, "new") == [*reversed(after)]


def test_colliding_keys_are_compared(tmp_path: Path, store: MessageStore) -> None:
    for number in range(20):
        add(store, str(number), keys=f"key{number}")
    index = index_of(tmp_path, slots=1)
    assert [bodies(index, store, f"key{number}") for number in range(20)] == [[str(n)] for n in range(20)]


def test_a_time_range_bounds_the_results(tmp_path: Path, store: MessageStore, clock: ManualClock) -> None:
    add(store, "old", keys="k")
    clock.advance(5_000)
    middle_ms = int(clock.wall_ms())
    clock.advance(5_000)
    add(store, "new", keys="k")
    index = index_of(tmp_path)
    assert bodies(index, store, "k", end_ms=middle_ms) == ["old"]
    assert bodies(index, store, "k", begin_ms=middle_ms) == ["new"]
    assert bodies(index, store, "k", count_max=1) == ["new"]


def test_times_are_those_of_the_messages_to_the_millisecond(
    tmp_path: Path, store: MessageStore, clock: ManualClock
) -> None:
    """The index itself only stores seconds since its first message."""
    add(store, "first", keys="k")
    clock.advance(1_700)
    stored_ms = int(clock.wall_ms())
    add(store, "second", keys="k")
    index = index_of(tmp_path)
    assert bodies(index, store, "k", begin_ms=stored_ms, end_ms=stored_ms) == ["second"]
    assert bodies(index, store, "k", begin_ms=stored_ms + 1) == []
    assert bodies(index, store, "k", end_ms=stored_ms - 1) == ["first"]


def test_messages_of_before_and_after_the_clock_was_set_back_are_found(
    tmp_path: Path, store: MessageStore, clock: ManualClock
) -> None:
    noon_ms = int(clock.wall_ms())
    add(store, "noon", keys="k")
    clock.set_wall(-3 * 3_600_000)
    nine_ms = int(clock.wall_ms())
    add(store, "nine", keys="k")
    index = index_of(tmp_path)
    assert bodies(index, store, "k", begin_ms=noon_ms) == ["noon"]
    assert bodies(index, store, "k", begin_ms=nine_ms, end_ms=nine_ms + 60_000) == ["nine"]


def test_a_query_whose_end_lies_within_a_record_leaves_it_to_the_next(
    tmp_path: Path, store: MessageStore
) -> None:
    """A slave may report any byte, which limits readers; a record across that limit was never indexed."""
    add(store, "a", keys="k")
    within = store.end + 10
    add(store, "b", keys="k")
    index = index_of(tmp_path)
    assert index.advance(within)
    add(store, "c", keys="k")
    assert bodies(index, store, "k") == ["c", "b", "a"]


@pytest.mark.parametrize(
    ("place", "value"),
    [(36, 0x7FFF_FFFF), (36, 1_001), (36, -5), (28, 77), (28, 0)],
    ids=["entries", "one too many", "negative", "end", "end before the log's"],
)
def test_a_file_with_an_impossible_header_is_made_again_with_those_after_it(
    tmp_path: Path, store: MessageStore, place: int, value: int
) -> None:
    """Queries used to fail for ever, or to miss messages."""
    for number in range(30):
        add(store, str(number), keys="k")
    advance(index_of(tmp_path, entries_max=1_000), store)
    (path,) = (tmp_path / "index").iterdir()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(value.to_bytes(4, signed=True))
        if place == 36:  # Slots that lead nowhere, where the header is to blame for it.
            file.seek(40)
            file.write((1_500).to_bytes(4) * 7)
    again = index_of(tmp_path, entries_max=1_000)
    assert bodies(again, store, "k") == [str(number) for number in reversed(range(30))]


def test_an_index_that_the_disk_did_not_take_whole_is_made_again(tmp_path: Path, store: MessageStore) -> None:
    """Messages missing from the index were not found until the next restart."""
    disk = Disk()
    index = KeyIndex(disk, tmp_path, slots=7, entries_max=1_000, is_trusted=True)
    for number in range(5):
        add(store, str(number), keys="k")
    for bytes_left in (0, 30, 60, 150):
        disk.bytes_left = bytes_left
        with pytest.raises(OSError, match="no space left"):
            index.advance(store.visible_offset)
    disk.bytes_left, disk.fails_sync = None, True
    with pytest.raises(OSError, match="the disk is broken"):
        index.advance(store.visible_offset)
    disk.fails_sync = False
    assert bodies(index, store, "k") == ["4", "3", "2", "1", "0"]


def test_a_search_through_many_messages_with_the_same_hash_goes_in_stretches(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sender can choose keys that collide; such a search occupied the thread for minutes."""
    monkeypatch.setattr(module, "STRETCH_LOOKS", 100)
    add(store, "found", keys="BB")
    for number in range(50):
        add(store, str(number), keys="Aa")
    index = index_of(tmp_path)
    advance(index, store)
    steps = list(search(index, store, "BB"))
    assert [decode_records(record)[0].body for record in steps.pop() or ()] == [b"found"]
    assert len(steps) >= 5
    assert set(steps) == {None}


def test_no_more_is_read_than_the_reply_may_have(tmp_path: Path, store: MessageStore) -> None:
    for number in range(10):
        add(store, str(number) + "." * 600, keys="k")
    index = index_of(tmp_path)
    assert len(bodies(index, store, "k", bytes_max=2_000)) == 2
    assert len(bodies(index, store, "k", bytes_max=1)) == 1


def test_a_store_time_that_is_no_date_names_a_file(tmp_path: Path, clock: ManualClock) -> None:
    """No checksum covers the store time, so it may have any value."""
    clock.set_wall((1 << 60) - int(clock.wall_ms()))
    store = open_store(tmp_path, clock=clock)
    add(store, "far", keys="k")
    assert bodies(index_of(tmp_path), store, "k", end_ms=1 << 62) == ["far"]
    store.close()


def test_new_messages_are_indexed_by_the_next_query(tmp_path: Path, store: MessageStore) -> None:
    index = index_of(tmp_path)
    add(store, "a", keys="k")
    assert bodies(index, store, "k") == ["a"]
    for number in range(40):  # Over the ends of files of the log.
        add(store, f"b{number}" + "." * 300, keys="k")
    assert len(bodies(index, store, "k")) == 41


def test_a_full_index_file_is_followed_by_another(tmp_path: Path, store: MessageStore) -> None:
    """Another process then continues the last file."""
    index = index_of(tmp_path, entries_max=5)
    for number in range(10):
        add(store, str(number), keys="k", unique=f"U{number}")
    assert bodies(index, store, "k") == [str(number) for number in reversed(range(10))]
    names = sorted(path.name for path in (tmp_path / "index").iterdir())
    assert len(names) == 5  # Four entries each: number 0 is never used.
    add(store, "10", keys="k", unique="U10")
    again = index_of(tmp_path, entries_max=5)
    assert bodies(again, store, "k") == [str(number) for number in reversed(range(11))]


def test_the_log_is_indexed_in_slices(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STRETCH", 3)
    for number in range(7):
        add(store, str(number), keys="k")
    index = index_of(tmp_path)
    assert advance(index, store) == 3
    assert advance(index, store) == 1


def test_a_slice_is_bounded_in_bytes_as_well(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """5,000 messages of 4 MiB would occupy the thread for a minute."""
    monkeypatch.setattr(module, "STRETCH_BYTES", 1_000)
    for number in range(6):
        add(store, str(number) + "." * 600, keys="k")
    assert advance(index_of(tmp_path), store) > 2


def test_a_slice_is_bounded_in_keys_as_well(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A message may have thousands of keys in its 32 KB of properties."""
    monkeypatch.setattr(module, "STRETCH_KEYS", 10)
    for _ in range(6):
        add(store, "many", keys=" ".join(f"k{number}" for number in range(10)))
    assert advance(index_of(tmp_path), store) > 5


def test_an_index_file_of_another_size_is_left_as_it_is(tmp_path: Path, store: MessageStore) -> None:
    """The file used to be truncated silently to the configured size, and messages were not found."""
    add(store, "a", keys="k")
    advance(index_of(tmp_path), store)
    (path,) = (tmp_path / "index").iterdir()
    before = path.read_bytes()
    with pytest.raises(StoreCorrupt, match="was maxHashSlotNum or maxIndexNum changed"):
        index_of(tmp_path, entries_max=500).advance(store.visible_offset)
    assert path.read_bytes() == before


def test_messages_not_yet_visible_are_not_found(tmp_path: Path, store: MessageStore) -> None:
    add(store, "a", keys="k")
    visible = store.visible_offset
    add(store, "b", keys="k")
    index = index_of(tmp_path)
    assert index.advance(visible)
    *_, found = search(index, store, "k", until=visible)
    assert found is not None
    assert [decode_records(record)[0].body for record in found] == [b"a"]
    assert bodies(index, store, "k") == ["b", "a"]


def test_after_an_unclean_stop_the_last_file_is_rebuilt(tmp_path: Path, store: MessageStore) -> None:
    """A power cut may have kept the file's header and lost its entries."""
    for number in range(6):
        add(store, str(number), keys="k")
    advance(index_of(tmp_path, entries_max=4), store)
    last = max((tmp_path / "index").iterdir())
    with last.open("r+b") as file:
        file.seek(40)
        file.write(bytes(last.stat().st_size - 40))
    assert bodies(index_of(tmp_path, entries_max=4), store, "k") != [str(n) for n in reversed(range(6))]
    again = index_of(tmp_path, entries_max=4, is_trusted=False)
    assert bodies(again, store, "k") == [str(number) for number in reversed(range(6))]


def test_an_index_ahead_of_the_log_is_rebuilt(tmp_path: Path, clock: ManualClock) -> None:
    """Messages lost in a power cut must not be found, nor keep later ones from being indexed."""
    longer = open_store(tmp_path / "longer", clock=clock)
    add(longer, "a", keys="k")
    add(longer, "gone", keys="k")
    advance(index_of(tmp_path / "longer"), longer)
    longer.close()
    shorter = open_store(tmp_path / "shorter", clock=clock)
    add(shorter, "b", keys="k")
    (tmp_path / "longer" / "index").rename(tmp_path / "shorter" / "index")
    assert bodies(index_of(tmp_path / "shorter"), shorter, "k") == ["b"]
    shorter.close()


def test_index_files_are_deleted_with_their_messages(tmp_path: Path, store: MessageStore) -> None:
    for number in range(40):
        add(store, str(number) + "." * 300, keys="k")
    index = index_of(tmp_path, entries_max=5)
    advance(index, store)
    before = len(list((tmp_path / "index").iterdir()))
    store.flush()
    assert remove_old_files(store) > 0
    found = bodies(index, store, "k")
    assert 0 < len(found) < 40
    assert len(list((tmp_path / "index").iterdir())) < before


def test_log_files_deleted_while_indexing_are_skipped(
    tmp_path: Path, store: MessageStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Retention removes files while a thread reads them."""
    for number in range(40):
        add(store, str(number) + "." * 300, keys="k")
    store.flush()
    index = index_of(tmp_path)
    reads = 0

    def read(files: ReadOnlyFiles, offset: int, size: int) -> bytes:
        nonlocal reads
        reads += 1
        if reads == 3:
            assert remove_old_files(store) > 0
        return original(files, offset, size)

    original = ReadOnlyFiles.read
    monkeypatch.setattr(ReadOnlyFiles, "read", read)
    while not index.advance(store.visible_offset):
        pass
    reads = -1_000
    left = bodies(index, store, "k")
    assert left
    assert all(int(body.split(".")[0]) >= 40 - len(left) for body in left)


def test_index_files_have_apaches_layout(tmp_path: Path, store: MessageStore) -> None:
    add(store, "a", keys="k")
    add(store, "b", keys="k")
    advance(index_of(tmp_path), store)
    (path,) = (tmp_path / "index").iterdir()
    data = path.read_bytes()
    assert len(path.name) == 17
    assert len(data) == 40 + 7 * 4 + 1_000 * 20
    assert int.from_bytes(data[36:40]) == 3  # The number of the next entry; the first one is 1.
    slot = key_hash("T", "k") % 7
    assert int.from_bytes(data[40 + 4 * slot : 44 + 4 * slot]) == 2
    entry = data[40 + 28 + 2 * 20 :][:20]
    assert int.from_bytes(entry[:4]) == key_hash("T", "k")
    assert int.from_bytes(entry[16:]) == 1
    with closing(IndexFile(Disk(), path, slots=7, entries_max=1_000)) as index:
        assert list(index.chain(key_hash("T", "k"), 0, FOREVER)) == [index.header.end_offset, 0]


@pytest.mark.parametrize("lost", [(0,), (1,), (-1,), (0, 1), (1, 3)], ids=str)
def test_a_lost_file_is_built_again(tmp_path: Path, store: MessageStore, lost: tuple[int, ...]) -> None:
    """Its messages could no longer be found by key, without any warning."""
    for number in range(40):
        add(store, str(number), keys=f"key{number}")
    found = [[str(number)] for number in range(40)]
    index = index_of(tmp_path, entries_max=8)
    assert [bodies(index, store, f"key{number}") for number in range(40)] == found
    names = sorted((tmp_path / "index").iterdir())
    assert len(names) > 4
    for number in lost:
        names[number].unlink()
    index = index_of(tmp_path, entries_max=8)
    assert [bodies(index, store, f"key{number}") for number in range(40)] == found
    before = {path: path.stat().st_ino for path in (tmp_path / "index").iterdir()}
    index = index_of(tmp_path, entries_max=8)
    assert bodies(index, store, "key0") == ["0"]
    assert {path: path.stat().st_ino for path in (tmp_path / "index").iterdir()} == before


EVEN = [BatchItem(0, b"z", b"UNIQ_KEY\x01U%02d\x02KEYS\x01k%02d all\x02" % (n, n)) for n in range(20)]
UNEVEN = [BatchItem(0, b"zz", "KEYS\x01schl\u00fcssel all".encode()), BatchItem(0, b"", b"k07\x01KEYS\x02")]
ALL_TIME = 0, 2**62


@pytest.mark.parametrize("compression", [None, flags.COMPRESSION_ZLIB])
def test_only_the_messages_with_a_key_are_made(compression, monkeypatch):
    """A batch may have 32,767, and a search looks into each batch that has the key."""
    made = []
    encode = inner_batch.encode_record
    monkeypatch.setattr(
        inner_batch, "encode_record", lambda **f: made.append(f["queue_offset"]) or encode(**f)
    )
    record = wrapped([*EVEN, *UNEVEN], 100, compression=compression)
    for key, offsets in {
        "k07": [107], "U19": [119], "schl\u00fcssel": [120], "all": [*range(100, 121)], "k0": [], "zz": [],
    }.items():  # fmt: skip
        made.clear()
        found = [head for _, data in with_key(record, "T", key, *ALL_TIME) if (head := peek_record(data))]
        assert made == [head.queue_offset for head in found] == offsets, key
        assert [place >> 48 for place, _ in with_key(record, "T", key, *ALL_TIME)] == [
            offset - 100 for offset in offsets
        ]
    head = peek_record(bytes(50) + record, 50)  # A scan's heads have places in its window.
    assert head is not None
    assert sorted(keys_of_all(record, head)) == sorted(
        {"all", "schl\u00fcssel", *(f"{kind}{number:02}" for kind in "kU" for number in range(20))}
    )


@pytest.mark.parametrize("body", [b"\xff" * 400, b"", b"\0" * 30])
def test_a_batch_that_cannot_be_read_has_no_keys(body):
    record = wrapped(EVEN, 100, body=body)
    head = peek_record(record)
    assert head is not None
    assert keys_of_all(record, head) == []
    assert with_key(record, "T", "all", *ALL_TIME) == []
