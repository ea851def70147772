"""A Parquet table with each batch once, for readers that know nothing of Spark.

    TABLE/batch=7/date=2026-05-01/part-….parquet          with partitioned_by="date"

A batch is written elsewhere and put in its place by one rename, so a reader sees all of it or nothing; an
existing batch is not written again. It needs a file system with a rename: a local disk, or one shared by
driver and workers.
"""

import shutil
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.parquet import read_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from libramq.spark.pipeline.batches import Batch


class ParquetTable:
    """One directory with a subdirectory for each batch, whose rows come from one checkpoint.

    partitioned_by: a column, or columns, by whose values its files are apart.
    """

    def __init__(self, path: Path, *, partitioned_by: str | Sequence[str] = ()) -> None:
        self.path = path
        self._partitioned_by = column_names(partitioned_by)
        self._draft = path.with_name(f".{path.name}.draft")

    def has_rows(self) -> bool:
        """Return whether anything is there already."""
        return self.path.is_dir() and any(self.path.iterdir())

    def has_batch(self, batch: "Batch") -> bool:
        """Return whether a batch is in the table."""
        return self._place(batch).is_dir()

    def write_once(self, rows: "DataFrame", batch: "Batch") -> int:
        """Add a batch and return its number of rows; 0 if it is there already."""
        if self.has_batch(batch):
            return 0
        files = write_files(rows, self._draft, self._partitioned_by)
        self.path.mkdir(parents=True, exist_ok=True)
        count: int = sum(read_metadata(file).num_rows for file in files)
        self._draft.rename(self._place(batch))
        return count

    def compact(self) -> int:
        """Merge nothing: a batch is what can be written again."""
        return 0

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days of a table that is partitioned by date; None if there are none."""
        days = [
            str(path)
            for path in sorted(self.path.glob("batch=*/date=*"))
            if first.isoformat() <= path.name.removeprefix("date=") <= last.isoformat()
        ]
        return spark.read.parquet(*days) if days else None

    def _place(self, batch: "Batch") -> Path:
        return self.path / f"batch={batch.number}"


def column_names(names: str | Sequence[str]) -> list[str]:
    """Return the names of one column, or of several."""
    return [names] if isinstance(names, str) else list(names)


def write_files(rows: "DataFrame", directory: Path, partitioned_by: Sequence[str]) -> list[Path]:
    """Have Spark's tasks write rows below a directory, which is replaced; return the files."""
    shutil.rmtree(directory, ignore_errors=True)
    # Spark's default is of the time before Parquet had timestamps, and has no statistics. Of this session:
    # Spark gives each query one of its own.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.mode("overwrite")
    if partitioned_by:
        writer = writer.partitionBy(*partitioned_by)
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(directory))
    directory.mkdir(exist_ok=True)  # A batch of duplicates only: it still counts as done.
    return sorted(directory.rglob("*.parquet"))
