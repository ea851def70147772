"""Each past day becomes one file; a kill between any two steps neither loses nor duplicates anything."""

import os
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from libramq.filesystem import LocalFileSystem
from libramq.spark.pipeline.lag_report import LOCK, Sample, compact_days, write_sample

NOON = datetime(2026, 5, 3, 12, tzinfo=UTC)
SCHEMA = pa.schema(
    [
        ("group", pa.string()),
        ("topic", pa.string()),
        ("broker", pa.string()),
        ("queueId", pa.int32()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("broker_offset", pa.int64()),
        ("consumer_offset", pa.int64()),
    ]
)


def millis(at: datetime) -> int:
    return int(at.timestamp() * 1000)


def rows_at(at: datetime, end: int) -> list[Sample]:
    """Return rows of two queues."""
    return [
        {"group": "G", "topic": "T", "broker": "a", "queueId": queue, "at": at}
        | {"broker_offset": end, "consumer_offset": 0}
        for queue in range(2)
    ]


def rows_of(directory: Path) -> list[tuple[object, ...]]:
    """Return the rows that a reader of the directory finds, sorted."""
    files = [path for path in directory.iterdir() if not path.name.startswith(".")]
    rows = [
        row for path in files for row in pq.read_table(path, schema=SCHEMA, partitioning=None).to_pylist()
    ]
    return sorted(tuple(row.values()) for row in rows)


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir() if path.name != LOCK)


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """Return three samples each of the day before yesterday, yesterday and today."""
    directory = tmp_path / "samples"
    for days in (2, 1, 0):
        for minute in range(3):
            at = NOON - timedelta(days=days) + timedelta(minutes=minute)
            write_sample(directory, rows_at(at, 10 * days + minute), millis(at), SCHEMA)
    return directory


def test_each_day_becomes_one_file_and_today_stays(samples: Path):
    before = rows_of(samples)
    written = compact_days(samples, millis(NOON))
    assert [path.name for path in written] == ["day=2026-05-01.parquet", "day=2026-05-02.parquet"]
    today = [f"at={millis(NOON + timedelta(minutes=minute))}.parquet" for minute in range(3)]
    assert names(samples) == sorted([*today, *(path.name for path in written)])
    assert rows_of(samples) == before
    assert len(before) == 18
    assert pq.read_schema(written[0]).equals(SCHEMA)
    assert compact_days(samples, millis(NOON)) == []


def test_a_kill_before_the_samples_are_removed_loses_nothing(samples: Path, tmp_path: Path):
    """Samples and the day's file both exist then; the next run counts each sample once."""
    before = rows_of(samples)
    kept = shutil.copytree(samples, tmp_path / "kept")
    compact_days(samples, millis(NOON))
    compacted = names(samples)
    for path in list(kept.glob("at=*"))[::2]:
        shutil.copy(path, samples)
    assert set(rows_of(samples)) == set(before)
    compact_days(samples, millis(NOON))
    assert names(samples) == compacted
    assert rows_of(samples) == before


def test_a_kill_while_the_file_is_written_loses_nothing(samples: Path):
    before = rows_of(samples)
    (samples / ".day=2026-05-01.parquet.draft").write_bytes(b"PAR1 half of it")
    compact_days(samples, millis(NOON))
    assert rows_of(samples) == before
    assert not list(samples.glob(".*.draft"))


def test_a_late_sample_joins_its_day(samples: Path):
    compact_days(samples, millis(NOON))
    late = NOON - timedelta(days=1, hours=1)
    write_sample(samples, rows_at(late, 99), millis(late), SCHEMA)
    before = rows_of(samples)
    assert [path.name for path in compact_days(samples, millis(NOON))] == ["day=2026-05-02.parquet"]
    assert rows_of(samples) == before
    assert len(before) == 20


def test_only_one_process_compacts_at_a_time(samples: Path):
    before = names(samples)
    held = LocalFileSystem().lock(samples / LOCK)
    assert held is not None
    assert compact_days(samples, millis(NOON)) == []
    assert names(samples) == before
    os.close(held)
    assert len(compact_days(samples, millis(NOON))) == 2


def test_a_directory_without_samples_is_valid(tmp_path: Path):
    assert compact_days(tmp_path / "samples", millis(NOON)) == []
