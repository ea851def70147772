"""The retention: which files of the commit log are deleted, oldest first, and why.

        in an hour of deleteWhen, or above diskMaxUsedSpaceRatio   files older than fileReservedTime
        above diskSpaceCleanForciblyRatio                          the oldest of any age, as many as necessary

A file's age counts from its last write. Upstream always deletes ten files:
DefaultMessageStore.CleanCommitLogService, MappedFileQueue.deleteExpiredFileByTime.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Final, NamedTuple

from libramq.clock import WallMs
from libramq.filesystem import DiskUsage

NEVER_PERCENT: Final = 100
_HOUR_MS: Final = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Retention:
    """Limits of how long messages are kept; ratios are percentages of the disk, and 100 means never."""

    file_reserved_hours: int = 72
    delete_hours: frozenset[int] = frozenset({4})
    disk_max_used_percent: int = 75
    clean_forcibly_percent: int = 85
    #: MessageStoreConfig.deleteFileBatchMax.
    files_per_round_max: int = 10


class OldFile(NamedTuple):
    """A file of the log that is no longer written."""

    start: int
    size: int
    modified_ms: WallMs


class Expired(NamedTuple):
    """The number of files to delete, and of those among them before their time."""

    file_count: int
    early_count: int


def expired_files(
    files: Sequence[OldFile], space: DiskUsage, retention: Retention, *, now_ms: WallMs, hour: int
) -> Expired:
    """Return how many of the files to delete, oldest first. hour: of the broker's day, 0 to 23."""
    all_bytes = space.used_bytes + space.available_bytes
    is_time = hour in retention.delete_hours
    old_count = early_count = 0
    if is_time or space.used_bytes * 100 > retention.disk_max_used_percent * all_bytes:
        oldest_ms = now_ms - retention.file_reserved_hours * _HOUR_MS
        old_count = sum(1 for _ in takewhile(lambda file: file.modified_ms <= oldest_ms, files))
    excess_bytes = space.used_bytes - retention.clean_forcibly_percent * all_bytes // 100
    if files and excess_bytes > 0:
        early_count = max(0, -(-excess_bytes // files[0].size) - old_count)
    count = min(old_count + early_count, len(files), retention.files_per_round_max)
    return Expired(count, max(0, count - old_count))
