"""The disk space: the level from which sends are refused, so that consumers, journals and tables have room.

Upstream: DefaultMessageStore.CleanCommitLogService, diskSpaceWarningLevelRatio.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

from libramq.clock import MonotonicMs
from libramq.filesystem import FileSystem
from libramq.logs import get_logger

log = get_logger(__name__)


#: Ours: how old a measurement may be; CleanCommitLogService looks every 10 s.
LOOK_MS: Final = 1_000


class DiskSpace:
    """Measures the fullest disk when asked, but not too often. disks: a directory on each."""

    def __init__(self, filesystem: FileSystem, disks: Sequence[Path], warning_percent: int) -> None:
        self._refusal: str | None = None
        self._looked_ms: MonotonicMs | None = None
        self._filesystem = filesystem
        self._disks = disks
        self._warning_percent = warning_percent

    def refusal(self, now_ms: MonotonicMs) -> str | None:
        """Return the refusal for producers; None while there is room."""
        if self._looked_ms is None or now_ms - self._looked_ms >= LOOK_MS:
            self._looked_ms = now_ms
            self._look()
        return self._refusal

    def _look(self) -> None:
        try:
            used, fullest = max((self._filesystem.used_percent(disk), disk) for disk in self._disks)
        except OSError as error:
            log.warning(
                "free disk space cannot be determined", paths=list(map(str, self._disks)), reason=str(error)
            )
            return
        was_refused = self._refusal is not None
        if used <= self._warning_percent:
            self._refusal = None
            if was_refused:
                log.warning("sends are accepted again: the disk has free space", used_percent=f"{used:.1f}")
            return
        self._refusal = (
            f"the disk with {fullest} is {used:.1f} % full: sends are refused from"
            f" {self._warning_percent} % on (diskSpaceWarningLevelRatio); consumers are served; free space"
        )
        if not was_refused:
            log.error("sends are refused: the disk is full", used_percent=f"{used:.1f}")
