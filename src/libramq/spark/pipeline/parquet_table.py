"""A Parquet table that holds each batch once: a batch's files appear atomically, and existing batches are
skipped.

    TABLE/batch=7/date=2026-05-01/part-….parquet          with partitioned_by="date"

A batch is written elsewhere and moved into place by one rename, so a reader sees all of it or nothing; an
existing batch is not written again. This needs a file system with atomic rename: a local disk, or one shared
by driver and workers.

    s3://BUCKET/PATH/TABLE/batch=7/_SUCCESS               the batch is whole

An object store cannot rename: there the store copies the files of a batch into place one by one, and
`_SUCCESS` follows. A batch without `_SUCCESS` was left by a killed run and is written again.
"""

import shutil
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from pyarrow.parquet import read_metadata

from libramq.spark.pipeline.data_files import column_names, rows_in
from libramq.spark.pipeline.object_store import StoredDirectory, stored_directory

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from libramq.spark.pipeline.batches import Batch

IS_WHOLE: Final = "_SUCCESS"  # The marker's name in Spark and Hadoop.


class ParquetTable:
    """One directory with a subdirectory for each batch of one checkpoint.

    path: a directory, or s3://BUCKET/PATH. storage: endpoint and region of S3; the environment has the rest.
    partitioned_by: the partition column or columns.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        partitioned_by: str | Sequence[str] = (),
        storage: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self._objects = stored_directory(path, storage)
        self._path = Path(path)
        self._partitioned_by = column_names(partitioned_by)
        self._draft = self._path.with_name(f".{self._path.name}.draft")

    def has_rows(self) -> bool:
        """Return whether the table already has anything."""
        if self._objects is None:
            return self._path.is_dir() and any(self._path.iterdir())
        with self._objects.store.errors_named():
            return self._objects.has_any()

    def has_batch(self, batch: "Batch") -> bool:
        """Return whether a batch is in the table."""
        if self._objects is None:
            return (self._path / _directory(batch)).is_dir()
        return self._objects.below(_directory(batch)).has(IS_WHOLE)

    def write_once(self, rows: "DataFrame", batch: "Batch") -> int:
        """Add a batch and return its number of rows; 0 if the table already has it."""
        if self.has_batch(batch):
            return 0
        if self._objects is not None:
            return self._put(
                rows, self._objects.below(_directory(batch)), self._objects.beside(self._draft.name)
            )
        files = write_files(rows, self._draft, self._partitioned_by)
        self._path.mkdir(parents=True, exist_ok=True)
        count: int = sum(read_metadata(file).num_rows for file in files)
        self._draft.rename(self._path / _directory(batch))
        return count

    def _put(self, rows: "DataFrame", place: StoredDirectory, draft: StoredDirectory) -> int:
        """Write a batch to its directory in an object store; return its number of rows."""
        draft.delete()
        files = draft.write(rows, self._partitioned_by)
        place.delete()  # Left by a run killed while copying.
        place.copy(draft, [file.place for file in files])
        place.put(IS_WHOLE)
        draft.delete()
        return sum(file.row_count for file in files)

    def compact(self) -> int:
        """Merge nothing: each batch must keep its directory, which shows that it is written."""
        return 0

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days of a table partitioned by date; None if there are none."""
        days = [
            str(path)
            for path in sorted(self._path.glob("batch=*/date=*"))
            if first.isoformat() <= path.name.removeprefix("date=") <= last.isoformat()
        ]
        return rows_in(spark, days)


def _directory(batch: "Batch") -> str:
    return f"batch={batch.number}"


def write_files(rows: "DataFrame", directory: Path, partitioned_by: Sequence[str]) -> list[Path]:
    """Have Spark's tasks write rows to a directory, replacing it; return the files."""
    shutil.rmtree(directory, ignore_errors=True)
    # Spark's default predates Parquet's timestamp types and has no statistics. This sets only the query's own
    # session.
    rows.sparkSession.conf.set("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
    writer = rows.write.mode("overwrite")
    if partitioned_by:
        writer = writer.partitionBy(*partitioned_by)
    writer.option("mapreduce.fileoutputcommitter.marksuccessfuljobs", "false").parquet(str(directory))
    directory.mkdir(exist_ok=True)  # A batch with only duplicates still counts as done.
    return sorted(directory.rglob("*.parquet"))
