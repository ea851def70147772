"""File sync: a file that need not be open is flushed to the disk, by its path."""

from pathlib import Path

from libramq.filesystem import FileSystem


def sync_file(filesystem: FileSystem, path: Path) -> None:
    """Flush a file to the disk; raises OSError."""
    file = filesystem.open(path, write=True)
    try:
        filesystem.fsync(file)
    finally:
        filesystem.close(file)
