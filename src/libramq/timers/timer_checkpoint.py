"""The timer checkpoint (config/timercheck): the progress of collecting and delivering timer messages and of
reading POP's journal; the timers' directory, which contains it.

    read time (8) | end of the timer log (8) | queue offset (8) | the master's queue offset (8)
    version: state (8), time (8), counter (8)                                      Apache's: 56 bytes
    magic (8) | a copy of Apache's 56 bytes | our queue offset (8) | POP's place (8) | the wheel's sum (8)
    collected again up to this queue offset (8), from this time on (8)
    zeroes up to 4096

Apache's broker writes its own part only. So if the copy differs, that broker has run since we wrote the file.
Upstream: store/timer/TimerCheckpoint.java; config/timercheck.
"""

import struct
from pathlib import Path
from typing import Final, NamedTuple

from libramq.errors import RemoteProtocolError
from libramq.filesystem import FileSystem, opened
from libramq.store.config import PAGE_BYTES
from libramq.timers.timer_wheel import SLOTS

FILE_NAME: Final = "timercheck"
_APACHE: Final = struct.Struct(">7q")
_OURS: Final = struct.Struct(f">8s{_APACHE.size}s5q")
_MAGIC: Final = b"LIBRATIM"
#: The size of both parts.
FILE_BYTES: Final = _APACHE.size + _OURS.size


class TimerCheckpoint(NamedTuple):
    """Apache's part of the file.

    read_ms: slots before it have been delivered. log_end: the end of the timer log's part on disk.
    queue_offset: the first message of the timers' topic that Apache's broker has to collect; a slave has its
    own, and next to it the master's.
    """

    read_ms: int = 0
    log_end: int = 0
    queue_offset: int = 0
    master_queue_offset: int = 0
    state_version: int = 0
    version_ms: int = 0
    counter: int = 0

    def encode(self) -> bytes:
        """Return its 56 bytes, which are also the answer to GET_TIMER_CHECK_POINT."""
        return _APACHE.pack(*self)


def decode_timer_checkpoint(body: bytes) -> TimerCheckpoint:
    """Decode the answer to GET_TIMER_CHECK_POINT."""
    if len(body) < _APACHE.size:
        raise RemoteProtocolError(f"a timer checkpoint of {len(body)} bytes; it has {_APACHE.size}")
    return TimerCheckpoint(*_APACHE.unpack_from(body))


class OwnCheckpoint(NamedTuple):
    """Our part. queue_offset: the next message to collect. pop_place: where POP's journal begins.

    wheel_sum: the wheel's (`TimerWheel.sum`). again_until: messages before this queue offset are collected
    again; of these, the ones for a time before `again_from_ms` were delivered.
    """

    queue_offset: int
    pop_place: int
    wheel_sum: int
    again_until: int = 0
    again_from_ms: int = 0


class FoundCheckpoint(NamedTuple):
    """A file's content. own: None if Apache's broker wrote it last."""

    apache: TimerCheckpoint = TimerCheckpoint()
    own: OwnCheckpoint | None = None

    @property
    def collected(self) -> int:
        """Return the first message of the timers' topic that is not in the timer log."""
        if self.own is not None:
            return self.own.queue_offset
        return min(self.apache.queue_offset, self.apache.master_queue_offset)


def encode_checkpoint_file(apache: TimerCheckpoint, own: OwnCheckpoint) -> bytes:
    """Return the file's content without its zeroes. It lies within one sector, so it is never torn."""
    part = apache.encode()
    return part + _OURS.pack(_MAGIC, part, *own)


def decode_checkpoint_file(data: bytes) -> FoundCheckpoint | None:
    """Decode the file's content; None if it is truncated."""
    if len(data) < _APACHE.size:
        return None
    data = data.ljust(FILE_BYTES, b"\0")
    magic, copy, *numbers = _OURS.unpack_from(data, _APACHE.size)
    is_ours = magic == _MAGIC and copy == data[: _APACHE.size]
    own = OwnCheckpoint(*numbers) if is_ours else None
    return FoundCheckpoint(TimerCheckpoint(*_APACHE.unpack_from(data)), own)


WHEEL_NAME: Final = "timerwheel"
METRICS_NAME: Final = "timermetrics"
#: MessageStoreConfig.mappedFileSizeTimerLog.
LOG_FILE_BYTES: Final = 100 << 20


class TimerDirectory:
    """The paths of the timers' files, and the checkpoint found. slots: their number in the wheel's file.

    timerlog/            units that refer to messages       `timer_log.py`
    timerwheel           slots that refer to units          `timer_wheel.py`
    config/timercheck    the progress of both
    config/timermetrics  waiting messages by topic          `timers.py`
    """

    def __init__(
        self, filesystem: FileSystem, root: Path, log_file_bytes: int = LOG_FILE_BYTES, slots: int = SLOTS
    ) -> None:
        self.filesystem = filesystem
        self.root = root
        self.log_file_bytes = log_file_bytes
        self.slots = slots
        self.wheel = root / WHEEL_NAME
        self.checkpoint = root / "config" / FILE_NAME
        self.metrics = root / "config" / METRICS_NAME
        #: None if the file is missing or truncated.
        self.found: FoundCheckpoint | None = None
        if filesystem.exists(self.checkpoint):
            with opened(filesystem, self.checkpoint) as file:
                self.found = decode_checkpoint_file(filesystem.pread(file, FILE_BYTES, 0))

    def write_checkpoint(self, checkpoint: TimerCheckpoint, own: OwnCheckpoint) -> None:
        """Write the checkpoint and flush it. Raises OSError."""
        filesystem, path = self.filesystem, self.checkpoint
        filesystem.makedirs(path.parent)
        with opened(filesystem, path, write=True, create=True) as file:
            is_new = filesystem.file_size(file) < PAGE_BYTES
            if is_new:
                filesystem.truncate(file, PAGE_BYTES)
            filesystem.pwrite(file, encode_checkpoint_file(checkpoint, own), 0)
            filesystem.fsync(file)
        if is_new:
            filesystem.sync_directory(path.parent)
