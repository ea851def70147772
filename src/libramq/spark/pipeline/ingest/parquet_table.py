"""A Parquet table with each batch once, for readers that know nothing of Spark.

    TABLE/batch=7/date=2026-05-01/part-….parquet

A batch is written elsewhere and put in its place by one rename, so a reader sees all of it or nothing; an
existing batch is not written again. It needs a file system with a rename: a local disk, or one shared by
driver and workers.
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
        """Add a batch; return its number of rows."""
        shutil.rmtree(self._draft, ignore_errors=True)
        writer = rows.write.mode("overwrite").partitionBy("date")
        writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(self._draft))
        self._draft.mkdir(exist_ok=True)  # A batch of duplicates only: it still counts as done.
        self.path.mkdir(parents=True, exist_ok=True)
        count: int = sum(read_metadata(file).num_rows for file in self._draft.rglob("*.parquet"))
        self._draft.rename(self._place(batch))
        return count

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days; None if there are none."""
        days = [
            str(path)
            for path in sorted(self.path.glob("batch=*/date=*"))
            if first.isoformat() <= path.name.removeprefix("date=") <= last.isoformat()
        ]
        return spark.read.parquet(*days) if days else None

    def _place(self, batch: int) -> Path:
        return self.path / f"batch={batch}"
