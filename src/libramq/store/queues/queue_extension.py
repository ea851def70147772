"""The extension of a consume queue (enableConsumeQueueExt), in which Apache's broker may store tag codes.

    unit size (2) | tag code (8) | store time (8) | size of the bit map (2) | bit map        20 bytes or more

Instead of a tag code, a unit of the queue then holds the position of its extension unit plus Long.MIN_VALUE,
which is less than any code. Extension units differ in size, and none crosses files: a size of -1 ends a file
early. The bit map tells which groups' SQL filters may match, which saves Apache's broker the evaluation;
LibraMQ evaluates filters.

LibraMQ reads extensions but never writes them, because its units contain their codes. Upstream calls the
extension "weakly reliable", so a position without a valid unit is no damage; the message matches every tag,
and the client compares the tags.

Upstream: store/ConsumeQueueExt.java; its files are in consumequeue_ext/<topic>/<queue id>.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple, Self

from libramq.filesystem import FileSystem
from libramq.store.config import UNIT_BYTES
from libramq.store.log.segments import NAME_DIGITS, FileRange, Segments
from libramq.store.open_files import OpenFiles

#: The directory of the extensions in a store of Apache's broker.
EXTENSIONS: Final = "consumequeue_ext"
#: Lower values are positions in an extension, not tag codes.
TAG_CODE_MIN: Final = -(1 << 31)  # ConsumeQueueExt.MAX_ADDR is one less.
_PLACE_0: Final = -(1 << 63)
_HEAD: Final = struct.Struct(">hqqh")
_CODE_AT: Final = UNIT_BYTES - 8
_CODE: Final = struct.Struct(">q")
#: Ours: bytes read at once: the extension units of 800 messages, as many as a filtered read examines.
_BLOCK_BYTES: Final = 24 * 1024


class ExtensionUnit(NamedTuple):
    """The extension of a message."""

    tag_code: int
    stored_ms: int
    bit_map_bytes: int


def decode_unit(data: bytes, start: int = 0) -> ExtensionUnit | None:
    """Read one unit; None if there is none."""
    if len(data) - start < _HEAD.size:
        return None
    size, tag_code, stored_ms, bit_map_bytes = _HEAD.unpack_from(data, start)
    if bit_map_bytes < 0 or size != _HEAD.size + bit_map_bytes:
        return None
    return ExtensionUnit(tag_code, stored_ms, bit_map_bytes)


def place_of(code: int) -> int | None:
    """Return the position in the extension that a unit has in place of a tag code; None if it has a code."""
    return code - _PLACE_0 if code < TAG_CODE_MIN else None


class QueueExtension:
    """The extension of one queue."""

    def __init__(self, segments: Segments) -> None:
        self.segments = segments

    @classmethod
    def find(cls, filesystem: FileSystem, files: OpenFiles, directory: Path) -> Self | None:
        """Return the extension in a directory; None if it has no files or their sizes differ."""
        found = filesystem.listdir(directory)
        names = [name for name in found if len(name) == NAME_DIGITS and name.isdecimal()]
        sizes = {filesystem.size(directory / name) for name in names}
        size = sizes.pop() if sizes else 0
        if sizes or size < _HEAD.size:
            return None
        segments = Segments(filesystem, files, directory, size)
        segments.starts = [int(name) for name in names]
        return cls(segments)

    def with_codes(self, units: bytes, *, may_wait: bool) -> bytes | FileRange:
        """Return a queue's units with codes in place of positions, or the range to warm first.

        A position without a valid extension unit is left as it is.
        """
        coded: bytearray | None = None
        block, start = b"", 0
        for at in range(_CODE_AT, len(units), UNIT_BYTES):
            place = place_of(_CODE.unpack_from(units, at)[0])
            if place is None or self.segments.start_of(place) not in self.segments.starts:
                continue
            if not start <= place <= start + len(block) - _HEAD.size:
                found = self._block(place, may_wait=may_wait)
                if isinstance(found, FileRange):
                    return found
                block, start = found, place
            unit = decode_unit(block, place - start)
            if unit is not None:
                coded = coded or bytearray(units)
                _CODE.pack_into(coded, at, unit.tag_code)
        return units if coded is None else bytes(coded)

    def drop_before(self, unit: bytes) -> list[Path]:
        """Forget the files before the position in a queue's first unit, but never the last; return them."""
        place = place_of(_CODE.unpack_from(unit, _CODE_AT)[0])
        return [] if place is None else self.segments.drop_before(place)

    def _block(self, place: int, *, may_wait: bool) -> bytes | FileRange:
        segments = self.segments
        size = min(_BLOCK_BYTES, segments.start_of(place) + segments.file_size - place)
        return segments.read(place, size) if may_wait else segments.read_nowait(place, size)
