"""The consume queue by itself: what a power cut leaves of its files."""

from pathlib import Path

import pytest

from libramq.filesystem import LocalFileSystem
from libramq.store.consume_queue import UNIT, UNIT_BYTES, ConsumeQueue
from libramq.store.open_files import OpenFiles
from libramq.store.segments import Segments

FILE_UNITS = 100


def queue_on(root: Path) -> ConsumeQueue:
    filesystem = LocalFileSystem()
    segments = Segments(filesystem, OpenFiles(filesystem, 4), root, FILE_UNITS * UNIT_BYTES)
    return ConsumeQueue("T", 0, segments)


@pytest.mark.parametrize("hole", [0, 169, 250, 461])
def test_units_that_a_power_cut_took_are_missed_however_many_files_are_behind_them(tmp_path: Path, hole: int):
    """More than three small files may be unsynced; recovery gives units to all behind the first hole."""
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
