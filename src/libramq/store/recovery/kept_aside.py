"""Data kept aside: copies of ends cut off the commit log, and the limit of their number.

    damaged/<physical offset, 20 digits>.<number>

Each file of the log yields one copy with its data after the cut, without the zeroes at the end.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from libramq.filesystem import FileSystem, make_directory, opened
from libramq.store.log.log_scan import LogFiles
from libramq.store.log.segments import NAME_DIGITS, Segments

DIRECTORY: Final = "damaged"
#: Ours: at most this many torn ends of power cuts are kept, the newest; an operator's cuts are never removed.
TORN_FILES_MAX: Final = 32
#: Ours: a torn end is taken to be over after this many zeroes; reading a whole file takes seconds.
ZEROES_MAX: Final = 16 << 20
_CHUNK_BYTES: Final = 1 << 20
_TORN: Final = ".torn"


def keep_aside(
    filesystem: FileSystem, root: Path, segments: Segments, offset: int, *, is_torn: bool
) -> tuple[int, Path | None]:
    """Copy everything after an offset of the log; return its size and the first copy (None if empty).

    is_torn: the data was never known to be on the disk, so old copies of such ends may be removed.
    """
    directory = root / DIRECTORY
    target: Path | None = None
    total = 0
    for start in segments.starts:
        first = max(offset, start)
        if first >= start + segments.file_size:
            continue
        size = written_size(segments, first, start + segments.file_size, ZEROES_MAX if is_torn else None)
        if not size:
            continue
        if not filesystem.exists(directory):
            make_directory(filesystem, directory)
        path = _free_name(filesystem, directory, first, _TORN if is_torn else "")
        _copy(filesystem, segments, first, size, path)
        total += size
        target = target or path
    if target is not None:
        if is_torn:
            torn = [name for name in filesystem.listdir(directory) if name.endswith(_TORN)]
            for name in torn[: max(0, len(torn) - TORN_FILES_MAX)]:
                filesystem.unlink(directory / name)
        filesystem.sync_directory(directory)
    return total, target


def _chunks(segments: LogFiles, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    while start < end:
        data = segments.read(start, min(_CHUNK_BYTES, end - start))
        if not data:
            return
        yield start, data
        start += len(data)


def written_size(segments: LogFiles, start: int, end: int, zeroes_max: int | None) -> int:
    """Return the size without the final zeroes; a run of `zeroes_max` zeroes counts as final."""
    size = 0
    for offset, data in _chunks(segments, start, end):
        if zeroes_max is not None and offset - start - size >= zeroes_max:
            break
        if written := len(data.rstrip(b"\0")):
            size = offset - start + written
    return size


def _copy(filesystem: FileSystem, segments: Segments, start: int, size: int, path: Path) -> None:
    with opened(filesystem, path, write=True, create=True) as file:
        for offset, data in _chunks(segments, start, start + size):
            if data.strip(b"\0"):
                filesystem.pwrite(file, data, offset - start)
        filesystem.truncate(file, size)
        filesystem.fsync(file)


def _free_name(filesystem: FileSystem, directory: Path, offset: int, suffix: str) -> Path:
    number = 0
    while True:
        path = directory / f"{offset:0{NAME_DIGITS}d}.{number}{suffix}"
        if not filesystem.exists(path):
            return path
        number += 1
