"""Ranges of a file that are read at once, without keeping what lies between them.

    file     ── a ──┈┈┈┈ between ┈┈┈┈── b ──┈┈┈┈── c ──
    buffers  joined[0:a]  _BETWEEN  joined[a:a+b]  …        one preadv

Kept, what lies between would be most of what is copied: 32 messages of 1 KiB in one of eight queues took
180 µs, most of it for new pages of memory; they take 20.
"""

import errno
import os
from collections.abc import Sequence
from typing import Final

#: Offsets and sizes; they do not overlap. Ascending, except in a damaged file.
Ranges = Sequence[tuple[int, int]]

#: Ours: at this distance, two reads with their overhead (5 µs) cost as much as copying the bytes between
#: them. Eight queues with messages of 1 KiB, filled in turn, have 8.6 KiB between two of one queue.
GAP_BYTES: Final = 16 * 1024
#: Ours: read at once; fits in the processor's cache.
STRETCH_BYTES: Final = 256 * 1024

#: IOV_MAX of Linux and macOS: the buffers of one read.
BUFFERS_MAX: Final = 1024
#: Memory that is written by any thread, and never read.
_BETWEEN: Final = memoryview(bytearray(GAP_BYTES))


def nearby(ranges: Ranges) -> list[Ranges]:
    """Return the ranges in groups; those of one are so near each other that they are read at once."""
    if len(ranges) == 1:
        return [ranges]
    groups: list[Ranges] = []
    group: list[tuple[int, int]] = []
    start = end = 0
    for each in ranges:
        offset, size = each
        if group and not (0 <= offset - end <= GAP_BYTES and offset + size - start <= STRETCH_BYTES):
            groups.append(group)
            group = []
        if not group:
            start = offset
        group.append(each)
        end = offset + size
    groups.append(group)
    return groups


def span(ranges: Ranges) -> tuple[int, int]:
    """Return where nearby ranges begin, and the size up to where they end."""
    start = ranges[0][0]
    last, size = ranges[-1]
    return start, last + size - start


def joined_ranges(data: bytes, start: int, ranges: Ranges) -> bytes:
    """Return the ranges of what was read from `start` on, joined; fewer bytes if less was read."""
    view = memoryview(data)
    return b"".join([view[offset - start : offset - start + size] for offset, size in ranges])


def buffers_of(ranges: Ranges, joined: memoryview) -> list[memoryview]:
    """Return the buffers of one read of nearby ranges: parts of `joined`, with memory for the gaps."""
    buffers = []
    at = begun = 0
    end = ranges[0][0]
    for offset, size in ranges:
        if offset != end:
            if at != begun:
                buffers.append(joined[begun:at])
                begun = at
            between = offset - end
            buffers.append(_BETWEEN[:between])
        at += size
        end = offset + size
    buffers.append(joined[begun:at])
    return buffers


def preadv_nowait(file: int, buffers: Sequence[bytearray | memoryview], offset: int) -> int | None:
    """Read from the page cache alone; return how many bytes it held, None if there are no such reads."""
    flag = getattr(os, "RWF_NOWAIT", None)
    if flag is None:
        return None
    try:
        return os.preadv(file, buffers, offset, flag)
    except BlockingIOError:
        return 0
    except OSError as failed:
        if failed.errno in (errno.EOPNOTSUPP, errno.EINVAL):
            return None
        raise
