"""The consume queue by itself: the state of its files after a power cut."""

from pathlib import Path

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.store.log.segments import Segments
from libramq.store.open_files import OpenFiles
from libramq.store.queues.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from tests.fakes import OwnFiles
from tests.store.stores import Disk

FILE_UNITS = 100


def queue_on(
    root: Path, file_units: int = FILE_UNITS, filesystem: LocalFileSystem | None = None
) -> ConsumeQueue:
    filesystem = filesystem or OwnFiles()
    segments = Segments(filesystem, OpenFiles(filesystem, 4), root, file_units * UNIT_BYTES)
    return ConsumeQueue("T", 0, segments)


@pytest.mark.parametrize("hole", [0, 169, 250, 461])
def test_units_lost_in_a_power_cut_are_detected_however_many_files_follow(tmp_path: Path, hole: int):
    """More than three small files may be unsynced; recovery restores all units after the first hole."""
    queue = queue_on(tmp_path)
    for number in range(462):
        queue.append(UNIT.pack(number * 100, 100, 0), number + 1, number * 100 + 100)
    queue.write_out()
    path = tmp_path / f"{hole // FILE_UNITS * FILE_UNITS * UNIT_BYTES:020d}"
    data = bytearray(path.read_bytes())
    at = hole % FILE_UNITS * UNIT_BYTES
    data[at : at + UNIT_BYTES] = bytes(UNIT_BYTES)
    path.write_bytes(data)
    again = queue_on(tmp_path)
    again.load(clean=False)
    assert (again.max_offset, again.last_physical_end) == (hole, hole * 100)


@pytest.mark.parametrize("file_units", [100, 204, 1_000])
@pytest.mark.parametrize("count", [1, 99, 100, 101, 203, 204, 205, 407, 408, 409, 612, 999, 1_000])
def test_the_end_after_a_clean_stop_is_found_wherever_it_is(tmp_path: Path, count: int, file_units: int):
    queue = queue_on(tmp_path, file_units)
    for number in range(count):
        queue.append(UNIT.pack(number * 100, 100, 0), number + 1, number * 100 + 100)
    queue.write_out()
    again = queue_on(tmp_path, file_units)
    again.load(clean=True)
    assert (again.max_offset, again.last_physical_end) == (count, count * 100)


def test_the_end_of_a_short_queue_is_found_by_one_read(tmp_path: Path):
    """Reading the 300,000 units of a file one by one took 19 reads: 2 s of the start with 10,000 queues."""
    queue = queue_on(tmp_path, 300_000)
    queue.append(UNIT.pack(0, 100, 0), 1, 100)
    queue.write_out()
    disk = Disk()
    again = queue_on(tmp_path, 300_000, disk)
    again.load(clean=True)
    assert again.max_offset == 1
    assert len(disk.reads) == 2, "one for the end, one for the last unit"


def test_the_age_of_a_queue_takes_one_read_until_its_first_message_changes(tmp_path: Path):
    """A member that joins asks for each of its queues, and must not wait for the disk."""
    disk = Disk()
    queue = queue_on(tmp_path, filesystem=disk)
    assert queue.is_young(1_000), "nothing can be missed"
    queue.append(UNIT.pack(500, 100, 0), 1, 600)
    queue.write_out()
    queue.visible_max = 1
    disk.reads.clear()
    assert [queue.is_young(physical) for physical in (500, 501, -1)] == [True, False, True]
    assert len(disk.reads) == 1
    queue.truncate(0)
    queue.append(UNIT.pack(700, 100, 0), 1, 800)
    queue.visible_max = 1
    assert queue.is_young(700)
    queue.min_offset = 1
    assert not queue.is_young(0), "message 0 is gone"
