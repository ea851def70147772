"""The parts of the store in isolation: tail, segments, checkpoint, dispatch, names of files."""

import errno
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from libramq.errors import InvalidName
from libramq.filesystem import LocalFileSystem, safe_child
from libramq.message.delay_level import delay_ms
from libramq.message.record import encode_record, peek_record
from libramq.store.checkpoint import Checkpoint, read_checkpoint, write_checkpoint
from libramq.store.log.commit_log import Tail
from libramq.store.log.segments import Segments
from libramq.store.open_files import OpenFiles
from libramq.store.queues.consume_queue import unit_tag_code


@pytest.mark.parametrize("seed", range(5))
def test_the_tail_holds_the_newest_bytes(seed: int):
    rng = random.Random(seed)
    tail, log = Tail(64), b""
    for _ in range(300):
        data = rng.randbytes(rng.choice([1, 5, 20, 63, 64, 65, 200]))
        tail.append(len(log), data)
        log += data
        assert tail.end == len(log)
        assert tail.start == max(0, len(log) - 64)
        start = rng.randint(max(0, len(log) - 90), len(log))
        size = rng.randint(0, len(log) - start)
        assert tail.read(start, size) == (log[start : start + size] if start >= tail.start else None)
    assert tail.read(len(log) - 1, 2) is None


def test_the_tail_restarts_after_a_gap():
    tail = Tail(64)
    tail.append(0, b"abc")
    tail.append(100, b"def")
    assert (tail.start, tail.end, tail.read(100, 3), tail.read(0, 3)) == (100, 103, b"def", None)


def test_descriptors_are_bounded(tmp_path: Path):
    filesystem = LocalFileSystem()
    files = OpenFiles(filesystem, 4)
    for name in "abcdefgh":
        (tmp_path / name).write_text(name)
    for name in "abcdefghabc":
        assert filesystem.pread(files.get(tmp_path / name), 1, 0).decode() == name
        assert len(files) <= 4
    files.close()


def test_bytes_after_the_end_are_zeroed(tmp_path: Path):
    files = OpenFiles(LocalFileSystem(), 4)
    segments = Segments(LocalFileSystem(), files, tmp_path / "run", 100)
    segments.ensure(0)
    segments.ensure(250)
    for start in (0, 100, 200):
        segments.write(start, b"x" * 100)
    segments.zero_after(130)
    assert segments.starts == [0, 100]
    assert segments.read(100, 100) == b"x" * 30 + bytes(70)
    again = Segments(LocalFileSystem(), files, tmp_path / "run", 100)
    again.load(clean=True)
    assert again.starts == [0, 100]
    segments.zero_after(100)
    assert segments.read(100, 100) == bytes(100)
    files.close()


class FewDescriptors(LocalFileSystem):
    """A process that may have only a few files open."""

    def __init__(self, left: int) -> None:
        self.left = left

    def open(self, path: Path, *, write: bool = False, create: bool = False) -> int:
        def take() -> int:
            if not self.left:
                raise OSError(errno.EMFILE, "Too many open files", str(path))
            self.left -= 1
            return LocalFileSystem.open(self, path, write=write, create=create)

        return self._with_room(take)

    def close(self, file: int) -> None:
        self.left += 1
        super().close(file)


def test_pinned_files_stay_open(tmp_path: Path):
    paths = [tmp_path / str(number) for number in range(6)]
    for path in paths:
        path.touch()
    filesystem = FewDescriptors(4)
    files = OpenFiles(filesystem, 100)
    held = files.hold(paths[:2])
    for path in paths[2:] * 2:  # The process has two more for these four.
        files.get(path)
    assert (files.hold(paths[1:2]), files.get(paths[0])) == (held[1:], held[0])
    with pytest.raises(OSError, match="Too many"):
        files.hold(paths)
    assert files.get(paths[1]) == held[1]
    files.close()
    assert filesystem.left == 4


def test_the_checkpoint_is_five_numbers_in_a_page(tmp_path: Path):
    filesystem = LocalFileSystem()
    path = tmp_path / "checkpoint"
    assert read_checkpoint(filesystem, path) == Checkpoint()
    written = Checkpoint(10_000, 9_000, 3, 4, 5)
    write_checkpoint(filesystem, path, written, sync=True)
    assert path.read_bytes()[:24] == (10_000).to_bytes(8) + (9_000).to_bytes(8) + (3).to_bytes(8)
    assert path.stat().st_size == 4096
    assert read_checkpoint(filesystem, path) == written
    assert written.safe_timestamp_ms == 6_000
    path.write_bytes(b"short")
    assert read_checkpoint(filesystem, path) == Checkpoint()


@pytest.mark.parametrize(
    ("topic", "properties", "code"),
    [
        ("T", b"TAGS\x01TagA\x02", 2598919),
        ("T", b"KEYS\x01TAGS\x02TAGS\x01order-created\x02", -392709271),
        ("T", b"KEYS\x01k\x02", 0),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x013\x02TAGS\x01TagA\x02", 1_000 + 10_000),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x0199\x02", 1_000 + 7_200_000),
        ("SCHEDULE_TOPIC_XXXX", b"DELAY\x010\x02TAGS\x01a", 97),
    ],
)
def test_the_tag_code_of_a_stored_record(topic: str, properties: bytes, code: int):
    data = encode_record(
        topic=topic, queue_id=0, queue_offset=0, physical_offset=0, body=b"", properties=properties,
        store_timestamp_ms=1_000,
    )  # fmt: skip
    head = peek_record(data)
    assert head is not None
    assert unit_tag_code(head) == code


def test_delay_levels_are_parsed():
    assert [delay_ms(level) for level in (1, 3, 5, 18, 19)] == [1_000, 10_000, 60_000, 7_200_000, 7_200_000]


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "/a", "a\\b", "a\0", "ä" * 128, "\ud800"])
def test_names_that_could_leave_the_directory_are_refused(name: str):
    with pytest.raises(InvalidName):
        safe_child(Path("/data"), name)


def test_proper_names_stay_in_the_directory():
    for name in ("T", "%RETRY%g", "a..b", "...", "x" * 255, "a b"):
        assert safe_child(Path("/data"), name).parent == Path("/data")


@given(st.integers(0, 5), st.integers(0, 8), st.integers(-50, 1500), st.integers(-50, 1500))
def test_the_files_between_two_offsets(first: int, count: int, start: int, end: int):
    """They are found without looking at each file: a log may have thousands, and each flush needs them."""
    segments = Segments(LocalFileSystem(), OpenFiles(LocalFileSystem(), 4), Path("/nowhere"), 100)
    segments.starts = [100 * number for number in range(first, first + count)]
    wanted = [segments.path(each) for each in segments.starts if each < end and start < each + 100]
    assert segments.paths_between(start, end) == wanted
