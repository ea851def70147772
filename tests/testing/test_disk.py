"""The simulated disk after a power cut."""

import random
from pathlib import Path

import pytest

from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime


def test_a_removed_directory_is_back_with_its_files_when_the_power_took_its_removal():
    """Otherwise its files would exist only for callers that know their names."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    path = Path("/store/queue/0")
    disk.makedirs(path.parent)
    file = disk.open(path, write=True, create=True)
    disk.fsync(file)
    for directory in path.parents:
        disk.sync_directory(directory)
    for _ in range(20):  # Each removal may or may not reach the platter.
        disk.remove_tree(path.parent)
        assert not disk.exists(path.parent)
        disk.power_cut()
        assert disk.exists(path) <= disk.is_directory(path.parent)
        if not disk.exists(path):
            return
        assert disk.listdir(Path("/store")) == ["queue"]


@pytest.mark.parametrize("unsynced", ["/", "/a", "/a/b"])
def test_a_file_is_lost_with_the_name_of_a_directory_above_it(unsynced: str):
    """A disk may keep synced data only as far as directory entries lead to it."""
    path, found = Path("/a/b/file"), []
    for seed in range(20):
        disk = MemoryDisk(VirtualTime(), random.Random(seed))
        disk.makedirs(path.parent)
        disk.fsync(disk.open(path, write=True, create=True))
        for directory in path.parents:
            if str(directory) != unsynced:
                disk.sync_directory(directory)
        disk.power_cut()
        found.append(disk.exists(path))
        assert disk.exists(path) <= disk.is_directory(path.parent)
    assert set(found) == {False, True}


def test_a_file_cannot_be_made_in_a_directory_that_is_not_there():
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    with pytest.raises(FileNotFoundError):
        disk.open(Path("/a/file"), write=True, create=True)


@pytest.mark.parametrize("seed", range(10))
def test_a_text_in_a_new_directory_survives_a_power_cut(seed: int):
    """The offsets of broadcasting members and a name server's configuration are written this way."""
    disk = MemoryDisk(VirtualTime(), random.Random(seed))
    disk.replace_text(Path("/home/user/offsets/offsets.json"), "{}")
    disk.power_cut()
    assert disk.read_text(Path("/home/user/offsets/offsets.json")) == "{}"
