"""The offset journal: the format of its records, the recovery of damaged files, and the files themselves.

    crc (4) | size of the rest (2) | kind (1) | queue id (4) | offset (8) | topic@group

A journal is written once per turn of the event loop, before the commits of that turn are answered, and folded
into consumerOffset.json every few seconds. Each record holds a new value, not a difference, so replaying it
twice changes nothing. Unreadable data is skipped if a valid record follows soon; otherwise it is the torn
end.

Upstream has no journal: a killed Apache broker loses up to 5 s of commits.
"""

import contextlib
import struct
import zlib
from collections.abc import Iterable, Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from libramq.errors import LocalProtocolError
from libramq.filesystem import FileSystem, read_bytes
from libramq.journal_files import JournalFiles
from libramq.logs import get_logger

log = get_logger(__name__)

_HEAD: Final = struct.Struct(">IH")
_BODY: Final = struct.Struct(">Biq")
KEY_BYTES_MAX: Final = 1024  # Far more than a topic of 255, "@" and a group of 120.
_BODY_BYTES_MAX: Final = _BODY.size + KEY_BYTES_MAX
#: Ours: the next record is searched for within this distance; a disk loses a few pages in one place.
DAMAGE_BYTES_MAX: Final = 64 * 1024
_NAME: Final = "consumerOffset.journal"


class RecordKind(IntEnum):
    """The content of a record."""

    COMMIT = 1  # The group has read the queue up to the offset.
    REMOVE = 2  # The group's offsets in the topic are removed.
    RESET = 3  # As COMMIT; later commits are ignored until a consumer reads from it.
    RESET_TAKEN = 4  # A consumer has read from it.


class OffsetRecord(NamedTuple):
    """One change; key is "topic@group"."""

    kind: RecordKind
    key: str
    queue_id: int = 0
    offset: int = 0


def encode_offset_record(record: OffsetRecord) -> bytes:
    """Return the bytes of one record."""
    key = record.key.encode()
    if len(key) > KEY_BYTES_MAX:
        raise LocalProtocolError(f"an offset key of {len(key)} bytes")
    body = _BODY.pack(record.kind, record.queue_id, record.offset) + key
    return _HEAD.pack(zlib.crc32(body), len(body)) + body


def decode_offset_record(data: bytes, start: int) -> tuple[OffsetRecord, int] | None:
    """Read one record; return None if there is no complete, valid one."""
    if len(data) - start < _HEAD.size:
        return None
    crc, size = _HEAD.unpack_from(data, start)
    if not _BODY.size <= size <= _BODY_BYTES_MAX:
        return None  # Checked before copying, because damage is searched byte by byte.
    body_start = start + _HEAD.size
    body = data[body_start : body_start + size]
    if len(body) < size or zlib.crc32(body) != crc:
        return None
    kind, queue_id, offset = _BODY.unpack_from(body)
    try:
        record = OffsetRecord(RecordKind(kind), body[_BODY.size :].decode(), queue_id, offset)
    except ValueError:  # A later version's kind, or invalid UTF-8.
        return None
    return record, body_start + size


def _next_record(data: bytes, damaged_at: int) -> int | None:
    """Return the start of the next record after damage; None at a torn end."""
    places = range(damaged_at + 1, min(damaged_at + DAMAGE_BYTES_MAX + 1, len(data)))
    return next((at for at in places if decode_offset_record(data, at) is not None), None)


class OffsetJournal(JournalFiles):
    """The journal files of a directory."""

    def __init__(self, filesystem: FileSystem, directory: Path) -> None:
        super().__init__(filesystem, directory, _NAME)
        #: The files that `replay` found empty.
        self._empty: list[int] = []

    def replay(self) -> Iterator[OffsetRecord]:
        """Yield the records of all files, the oldest first."""
        for number in self.numbers:
            data = read_bytes(self._filesystem, self.path_of(number))
            if not data:  # A fold began it; killed before the next commit.
                self._empty.append(number)
            start: int | None = 0
            damages: list[int] = []
            while start is not None:
                decoded = decode_offset_record(data, start)
                if decoded is not None:
                    yield decoded[0]
                    start = decoded[1]
                    continue
                damaged_at, start = start, _next_record(data, start)
                if start is not None:
                    damages.append(damaged_at)
            if damages:
                log.warning(
                    "a commit in a journal cannot be read and is lost",
                    path=str(self.path_of(number)),
                    at=damages[0],
                    places=len(damages),
                )

    def append(self, records: Iterable[OffsetRecord]) -> None:
        """Write records with one write; afterwards they outlive the process."""
        data = b"".join([encode_offset_record(record) for record in records])
        if data:
            self.write(data)

    def finish(self) -> None:
        """Close the newest file, and remove empty ones."""
        if self.is_open and not self.end:
            self._empty.append(self.numbers[-1])
        self.close()
        with contextlib.suppress(OSError):  # Empty files do no harm.
            for number in set(self._empty).intersection(self.numbers):
                self.remove(number)
