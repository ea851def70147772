"""A queue's extension, as Apache's broker writes it, has the tag codes missing from units."""

import struct
from pathlib import Path

import pytest
from msgspec.structs import replace

from libramq.message import decode_records, tag_code
from libramq.store import MessageStore
from libramq.store.copying import copy_store
from libramq.store.log.segments import FileRange
from libramq.store.queues.queue_extension import ExtensionUnit, decode_unit, place_of
from libramq.store.reading.read import ReadStatus
from tests.fakes import OwnFiles
from tests.store.stores import Disk, flush, message, open_store, remove_old_files

PLACE_0 = -(1 << 63)
FILE_BYTES = 400
TAGS = ("a", "b", "c")


def encode_unit(code: int, bits: bytes = b"") -> bytes:
    return struct.pack(">hqqh", 20 + len(bits), code, 1_700_000_000_000, len(bits)) + bits


def write_extension(directory: Path, tags: list[str]) -> list[int]:
    """Write units with bit maps of several lengths, as ConsumeQueueExt.put does; return their positions."""
    directory.mkdir(parents=True)
    places: list[int] = []
    start, data = 0, b""
    for number, tag in enumerate(tags):
        unit = encode_unit(tag_code(tag), bytes(number % 3 * 7))
        if len(unit) > FILE_BYTES - len(data) - 4:
            (directory / f"{start:020d}").write_bytes((data + b"\xff\xff").ljust(FILE_BYTES, b"\0"))
            start, data = start + FILE_BYTES, b""
        places.append(start + len(data))
        data += unit
    (directory / f"{start:020d}").write_bytes(data.ljust(FILE_BYTES, b"\0"))
    return places


def make(root: Path, count: int = 60) -> MessageStore:
    """Open a store whose first messages have their codes in an extension; the last three have their own."""
    tags = [TAGS[number % 3] for number in range(count)]
    places = write_extension(root / "consumequeue_ext" / "T" / "0", tags)
    store = open_store(root)
    for number, (tag, place) in enumerate(zip(tags, places, strict=True)):
        body = f"{number} {tag}" + "." * 100
        assert store.append_batch([replace(message(body, tags=tag), tag_code=place + PLACE_0)])[0].is_ok
    for tag in TAGS:
        assert store.append_batch([message(f"ours {tag}", tags=tag)])[0].is_ok
    store.close()
    return open_store(root)


def found(store: MessageStore, tag: str) -> list[str]:
    """Return the tags of the messages that a broker sends to a consumer with one tag."""
    tags: list[str] = []
    offset = store.min_offset("T", 0)
    while (read := store.read("T", 0, offset, 32, tag_codes=frozenset({tag_code(tag)}))).next_offset > offset:
        tags += [each.tags or "" for each in decode_records(b"".join(read.data))]
        offset = read.next_offset
    return tags


def test_a_read_by_tag_returns_the_messages_with_the_tag_and_no_others(tmp_path: Path) -> None:
    store = make(tmp_path)
    assert len(list((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())) > 3
    for tag in TAGS:
        assert found(store, tag) == [tag] * 21
    assert found(store, "none") == []
    assert store.tag_codes("T", 0, 55, end=60) == {tag_code(tag) for tag in TAGS}
    codes = [code for _, _, code in store.queue_units("T", 0, 0, 5)]
    assert codes == [tag_code(tag) for tag in "abcab"]
    store.close()


def test_a_code_that_is_lost_matches_every_tag(tmp_path: Path) -> None:
    """Upstream calls its files weakly reliable. Nothing may be withheld because of them."""
    store = make(tmp_path)
    store.close()
    files = sorted((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
    data = files[0].read_bytes()
    files[0].write_bytes(bytes(20) + data[20:])
    files[1].unlink()
    store = open_store(tmp_path)
    tags = found(store, "c")
    assert tags[0] == "a"
    assert tags.count("c") == 21
    assert len(tags) > 30
    store.close()
    files[2].write_bytes(b"short")
    store = open_store(tmp_path)
    assert len(found(store, "c")) == 61, "no file is trusted"
    store.close()


def test_a_read_waits_for_the_extension_on_a_thread(tmp_path: Path) -> None:
    make(tmp_path).close()
    wanted = frozenset({tag_code("b")})
    cold = set((tmp_path / "consumequeue_ext" / "T" / "0").iterdir())
    opened: dict[int, Path] = {}

    class ColdExtension(Disk):
        def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
            file = super().open(path, write=write, create=create)
            opened[file] = path
            return file

        def pread_nowait(self, file: int, size: int, offset: int) -> bytes | None:
            return None if opened[file] in cold else super().pread_nowait(file, size, offset)

    store = open_store(tmp_path, disk=ColdExtension())
    result = store.read("T", 0, 0, 32, tag_codes=wanted, may_wait=False)
    assert result.status is ReadStatus.WOULD_WAIT
    assert [each.path for each in result.cold if isinstance(each, FileRange)] == [min(cold)]
    assert store.read("T", 0, 0, 32, may_wait=False).status is ReadStatus.FOUND, "codes are not needed"
    assert store.tag_codes("T", 0, 0, end=5) is None
    cold.clear()
    result = store.read("T", 0, 0, 32, tag_codes=wanted, may_wait=False)
    assert {each.tags for each in decode_records(b"".join(result.data))} == {"b"}
    store.close()


def test_old_files_of_the_extension_are_removed_with_those_of_the_queue(tmp_path: Path) -> None:
    store = make(tmp_path)
    flush(store)
    directory = tmp_path / "consumequeue_ext" / "T" / "0"
    before = sorted(directory.iterdir())
    assert remove_old_files(store, 1) == 1
    first = store.min_offset("T", 0)
    assert 10 < first < 60
    assert sorted(directory.iterdir()) == before[-len(list(directory.iterdir())) :] != before
    assert [tag for tag in found(store, "a") if tag != "a"] == []
    store.close()


def test_a_copy_has_the_extension(tmp_path: Path) -> None:
    store = make(tmp_path / "store")
    flush(store)
    copy_store(tmp_path / "store", tmp_path / "copy", OwnFiles())
    store.close()
    copy = open_store(tmp_path / "copy")
    assert found(copy, "b") == ["b"] * 21
    copy.close()


@pytest.mark.parametrize(
    ("data", "unit"),
    [
        (encode_unit(7), ExtensionUnit(7, 1_700_000_000_000, 0)),
        (encode_unit(-7, b"bits") + b"more", ExtensionUnit(-7, 1_700_000_000_000, 4)),
        (encode_unit(7)[:19], None),
        (b"\xff\xff" + bytes(30), None),
        (bytes(40), None),
        (b"\0\x14" + bytes(16) + b"\0\x01", None),
    ],
)
def test_a_unit_is_read_only_if_its_sizes_agree(data: bytes, unit: ExtensionUnit | None) -> None:
    assert decode_unit(data) == unit
    assert decode_unit(b"xyz" + data, 3) == unit


def test_a_place_is_below_every_tag_code() -> None:
    assert place_of(PLACE_0 + 40) == 40
    assert [place_of(code) for code in (-(1 << 31), 0, 1 << 40)] == [None] * 3
    assert place_of(-(1 << 31) - 1) is not None
