"""The simulated disk after a power cut."""

import random
from pathlib import Path

from libramq.testing.machine.disk import MemoryDisk
from libramq.testing.machine.virtual_time import VirtualTime


def test_a_removed_directory_is_back_with_its_files_when_the_power_took_its_removal():
    """Otherwise its files would exist only for callers that know their names."""
    disk = MemoryDisk(VirtualTime(), random.Random(1))
    path = Path("/store/queue/0")
    disk.makedirs(path.parent)
    file = disk.open(path, write=True, create=True)
    disk.fsync(file)
    disk.sync_directory(path.parent)
    for _ in range(20):  # Each removal reaches the platter, or it does not.
        disk.remove_tree(path.parent)
        assert not disk.exists(path.parent)
        disk.power_cut()
        assert disk.is_directory(path.parent) == disk.exists(path)
        if not disk.exists(path):
            return
        assert disk.listdir(Path("/store")) == ["queue"]
