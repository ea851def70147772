"""Lag samples: the offsets of groups at one moment, one small file per sample.

DIRECTORY/samples/at=1777629600000.parquet      written elsewhere, then renamed: complete or absent
"""

import os
from collections.abc import Iterable, Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from libramq.clock import WallMs
from libramq.errors import BrokerError, ConfigError, RouteNotFound
from libramq.filesystem import LocalFileSystem
from libramq.message.names import RETRY_PREFIX
from libramq.message.queue import MessageQueue
from libramq.remoting.body.consumers import OffsetWrapper
from libramq.spark.pipeline.small_table import replace_table

if TYPE_CHECKING:
    import pyarrow as pa


Sample = dict[str, Any]


class GroupOffsets(Protocol):
    """The admin client that is queried: libramq.sync.Admin."""

    def groups(self) -> list[str]: ...
    def consume_stats(self, group: str, topic: str | None = None) -> dict[MessageQueue, OffsetWrapper]: ...


def groups_to_sample(admin: GroupOffsets, wanted: Sequence[str]) -> list[str]:
    """Return the existing groups, by name; ConfigError for a wanted one that does not exist."""
    there = admin.groups()
    for group in wanted:
        if group not in there:
            raise ConfigError(f"no broker knows group {group}; there are: {', '.join(there) or 'none'}")
    return sorted(wanted) if wanted else there


def sample(admin: GroupOffsets, groups: Iterable[str], topics: Sequence[str], at_ms: int) -> list[Sample]:
    """Return the groups' current offsets, in all topics except retries, or in some.

    Queues are left out of which nobody knows from where on a group reads.
    """
    at = datetime.fromtimestamp(at_ms / 1000, UTC)
    rows = []
    for group in groups:
        try:
            stats = admin.consume_stats(group)
        except (BrokerError, RouteNotFound):
            continue  # It never committed, or is being deleted.
        for queue, ends in sorted(stats.items()):
            is_chosen = queue.topic in topics if topics else not queue.topic.startswith(RETRY_PREFIX)
            if is_chosen and not ends.is_unknown:
                rows.append(
                    {
                        "group": group,
                        "topic": queue.topic,
                        "broker": queue.broker_name,
                        "queueId": queue.queue_id,
                        "at": at,
                        "broker_offset": ends.broker_offset,
                        "consumer_offset": ends.consumer_offset,
                    }
                )
    return rows


def write_sample(directory: Path, rows: Sequence[Sample], at_ms: int, schema: "pa.Schema") -> None:
    """Add one sample."""
    import pyarrow as pa

    directory.mkdir(parents=True, exist_ok=True)
    replace_table(directory / f"at={at_ms}.parquet", pa.Table.from_pylist(list(rows), schema))


DAY: Final = "day="
SAMPLE: Final = "at="
SUFFIX: Final = ".parquet"
LOCK: Final = ".compaction"  # Spark ignores names that begin with a dot.


def compact_days(directory: Path, wall_ms: WallMs) -> list[Path]:
    """Merge the samples of each day before today (UTC) into its file; return the files that were written.

    Does nothing while another process is doing this.

    DIRECTORY/samples/at=1777629600000.parquet … ─► DIRECTORY/samples/day=2026-05-01.parquet

    A day's file appears by a rename with all the samples it replaces, and only then their files are removed.
    A run killed between the two leaves both: readers count a duplicate sample once (`lag_tables`), and the
    next run continues.
    """
    if not directory.is_dir():
        return []
    # Two concurrent ones could lose samples.
    lock = LocalFileSystem().lock(directory / LOCK)
    if lock is None:
        return []
    try:
        today = _day(int(wall_ms))
        days: dict[date, list[Path]] = {}
        for path in directory.glob(f"{SAMPLE}*{SUFFIX}"):
            day = _day(int(path.name.removeprefix(SAMPLE).removesuffix(SUFFIX)))
            if day < today:
                days.setdefault(day, []).append(path)
        return [_compact(directory, day, samples) for day, samples in sorted(days.items())]
    finally:
        os.close(lock)


def _compact(directory: Path, day: date, samples: list[Path]) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = directory / f"{DAY}{day.isoformat()}{SUFFIX}"
    earlier = [path] if path.exists() else []
    rows = pa.concat_tables(pq.read_table(file, partitioning=None) for file in [*earlier, *samples])
    columns = rows.column_names
    once = (
        rows.group_by(columns, use_threads=False)
        .aggregate([])
        .sort_by([(name, "ascending") for name in columns])
    )
    draft = directory / f".{path.name}.draft"
    pq.write_table(once.cast(rows.schema), draft)
    _to_disk(draft)
    draft.replace(path)
    _to_disk(directory)
    for sample in samples:
        sample.unlink()
    return path


def _day(at_ms: int) -> date:
    return datetime.fromtimestamp(at_ms / 1000, UTC).date()


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
