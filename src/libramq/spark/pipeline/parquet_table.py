"""A Parquet table that holds each batch once, for readers who know nothing of Spark.

    TABLE/batch=7/date=2026-05-01/part-….parquet

A batch is written beside the table and put in its place by one rename, so that a reader sees all of it or
nothing; a batch that is there is not written again. Needs a file system with a rename: a local disk, or one
that driver and workers share.
"""

import shutil
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING

from pyarrow.parquet import read_metadata

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


class ParquetTable:
    """One directory with a subdirectory for each batch."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._draft = path.with_name(f".{path.name}.draft")

    def has_rows(self) -> bool:
        """Return whether anything is there already."""
        return self.path.is_dir() and any(self.path.iterdir())

    def has_batch(self, batch: int) -> bool:
        """Return whether a batch is in the table."""
        return self._place(batch).is_dir()

    def write(self, rows: "DataFrame", batch: int) -> int:
        """Add a batch; return how many rows it has."""
        shutil.rmtree(self._draft, ignore_errors=True)
        writer = rows.write.mode("overwrite").partitionBy("date")
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(self._draft))
        self._draft.mkdir(exist_ok=True)  # A batch of duplicates only: it is done all the same.
        self.path.mkdir(parents=True, exist_ok=True)
        count: int = sum(read_metadata(file).num_rows for file in self._draft.rglob("*.parquet"))
        self._draft.rename(self._place(batch))
        return count

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """The rows of some days; None where there are none."""
        days = [
            str(path)
            for path in sorted(self.path.glob("batch=*/date=*"))
            if first.isoformat() <= path.name.removeprefix("date=") <= last.isoformat()
        ]
        return spark.read.parquet(*days) if days else None

    def _place(self, batch: int) -> Path:
        return self.path / f"batch={batch}"
