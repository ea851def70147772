"""Lag days: the samples of a past day, in one file instead of one per sample.

DIRECTORY/samples/at=1777629600000.parquet …  ─►  DIRECTORY/samples/day=2026-05-01.parquet

A day's file appears by a rename with all the samples it replaces, and only then their files are removed. A
run killed between the two leaves both: readers count a duplicate sample once (`lag_tables`), and the next run
continues.
"""

import os
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Final

from libramq.clock import WallMs
from libramq.filesystem import LocalFileSystem

DAY: Final = "day="
SAMPLE: Final = "at="
SUFFIX: Final = ".parquet"
LOCK: Final = ".compaction"  # Spark ignores names that begin with a dot.


def compact_days(directory: Path, wall_ms: WallMs) -> list[Path]:
    """Merge the samples of each day before today (UTC) into its file; return the files that were written.

    Does nothing while another process is doing this.
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
