"""The timers' directory: the paths of the wheel, the log, the checkpoint and the metrics; what is found there
at a start.

timerlog/            units that lead to messages        `timer_log.py`
timerwheel           slots that lead to units           `timer_wheel.py`
config/timercheck    how far both go                    `timer_checkpoint.py`
config/timermetrics  how many messages wait, by topic   `timers.py`
"""

from pathlib import Path
from typing import Final

from libramq.filesystem import FileSystem, opened
from libramq.store.config import PAGE_BYTES
from libramq.timers.timer_checkpoint import (
    FILE_BYTES,
    FILE_NAME,
    FoundCheckpoint,
    OwnCheckpoint,
    TimerCheckpoint,
    decode_checkpoint_file,
    encode_checkpoint_file,
)
from libramq.timers.timer_wheel import SLOTS

WHEEL_NAME: Final = "timerwheel"
METRICS_NAME: Final = "timermetrics"
#: MessageStoreConfig.mappedFileSizeTimerLog.
LOG_FILE_BYTES: Final = 100 << 20


class TimerDirectory:
    """The paths of the files, and the checkpoint that was found. slots: of the wheel's file."""

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
        self.found = self._find()

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

    def _find(self) -> FoundCheckpoint | None:
        if not self.filesystem.exists(self.checkpoint):
            return None
        with opened(self.filesystem, self.checkpoint) as file:
            return decode_checkpoint_file(self.filesystem.pread(file, FILE_BYTES, 0))
