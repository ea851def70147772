"""The timers' directory: the files in which a broker keeps its timer messages.

timerlog/            units that lead to messages        `timer_log.py`
timerwheel           slots that lead to units           `timer_wheel.py`
config/timercheck    how far both go                    `timer_checkpoint.py`
config/timermetrics  how many messages wait, by topic   `metrics.py`
"""

from pathlib import Path
from typing import Final

from libramq.filesystem import FileSystem
from libramq.timers.timer_checkpoint import (
    FILE_NAME,
    OwnCheckpoint,
    TimerCheckpoint,
    read_timer_checkpoint,
    write_timer_checkpoint,
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
        self.found = read_timer_checkpoint(filesystem, self.checkpoint)

    def write_checkpoint(self, checkpoint: TimerCheckpoint, own: OwnCheckpoint) -> None:
        """Write the checkpoint and flush it. Raises OSError."""
        write_timer_checkpoint(self.filesystem, self.checkpoint, checkpoint, own)
