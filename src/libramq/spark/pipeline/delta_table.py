"""A Delta table that holds each batch once: commits batches, skips those already committed, and adds columns.

Spark's tasks write the files, and the driver commits them. The driver gets only one row per file of a batch.

A batch's number is committed with its rows as the application transaction (query id, batch); a batch in the
log is not written again. Uses the library `deltalake` (delta-rs), because there is no Delta for Spark 4.3.
"""

import re
import time
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow.parquet import read_metadata

from libramq.errors import ConfigError, needs_extra
from libramq.spark.pipeline.data_files import DataFile, column_names, partition_of, rows_in
from libramq.spark.pipeline.object_store import stored_directory
from libramq.spark.pipeline.parquet_table import write_files
from libramq.spark.pipeline.table_columns import gained_columns

if TYPE_CHECKING:
    from deltalake import DeltaTable as Delta
    from deltalake import Field, Schema
    from pyspark.sql import DataFrame, SparkSession

    from libramq.spark.pipeline.batches import Batch


#: Ours: attempts to commit when other writers keep winning the race; delta-rs itself retries harmless
#: conflicts.
COMMITS_MAX: Final = 10
#: Characters that delta-rs changes in a directory's path: %20 becomes a space, and a backslash a slash.
_NOT_IN_PATHS: Final = re.compile(r"[%\\\x00-\x1f]")


class DeltaTable:
    """One table. partitioned_by: the partition column or columns.

    path: a directory, or s3://BUCKET/PATH. storage: endpoint and region of S3; the environment has the rest.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        partitioned_by: str | Sequence[str] = (),
        storage: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        with needs_extra("a Delta table", "delta"):
            import deltalake
        self._library = deltalake
        self._objects = stored_directory(path, storage)
        self._path = Path(path)
        if self._objects is None and (marks := _NOT_IN_PATHS.findall(str(path))):
            raise ConfigError(
                f"table={str(path)!r}: delta-rs does not take {marks[0]!r} as it is; give another directory"
            )
        self._url = str(path) if self._objects is None else self._objects.url
        self._options = None if self._objects is None else self._objects.store.delta_options()
        self._draft = self._path.with_name(f".{self._path.name}.draft")
        self._partitioned_by = column_names(partitioned_by)

    def has_rows(self) -> bool:
        """Return whether the table exists."""
        if self._objects is None:
            return self._open() is not None
        with self._objects.store.errors_named():
            return self._open() is not None

    def has_batch(self, batch: "Batch") -> bool:
        """Return whether a batch is in the table."""
        table = self._open()
        return table is not None and self._has(table, batch)

    def write_once(self, rows: "DataFrame", batch: "Batch") -> int:
        """Add a batch and return its number of rows; 0 if the table already has it.

        Spark's tasks write the files. The driver commits them on top of the version it read; the library
        refuses the commit if another run has committed the batch since.
        """
        from deltalake.exceptions import CommitFailedError
        from deltalake.transaction import AddAction, RemoveAction
        from pyspark.sql.pandas.types import to_arrow_schema

        if self.has_batch(batch):
            return 0
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        if (there := self._open()) is not None:
            self._new_columns(there, schema)
        files = self._written(rows)
        self._library.DeltaTable.create(
            self._url,
            schema,
            mode="ignore",
            partition_by=self._partitioned_by,
            storage_options=self._options,
        )
        now_ms = time.time_ns() // 1_000_000
        actions: list[AddAction | RemoveAction] = [
            AddAction(file.place, file.size, dict(file.partition), now_ms, True, file.statistics)
            for file in files
        ]
        done = self._library.Transaction(batch.query, batch.number)
        properties = self._library.CommitProperties(app_transactions=[done])
        for attempt in range(1, COMMITS_MAX + 1):
            table = self._library.DeltaTable(self._url, storage_options=self._options)
            if self._has(table, batch):
                self._leave(files)
                return 0
            try:
                if new := self._new_columns(table, schema):
                    table.alter.add_columns(new)
                table.create_write_transaction(
                    actions, "append", schema, self._partitioned_by, commit_properties=properties
                )
                break
            except CommitFailedError:
                if attempt == COMMITS_MAX:
                    raise
        return sum(file.row_count for file in files)

    def _written(self, rows: "DataFrame") -> list[DataFile]:
        """Have Spark's tasks write the files, and move them into the table; return them."""
        if self._objects is not None:
            # The log has the partition values. delta-rs and Polars do not find files with escaped names.
            return self._objects.write(rows, self._partitioned_by, escapes=False)
        written = list[DataFile]()
        for file in write_files(rows, self._draft, self._partitioned_by):
            place = str(file.relative_to(self._draft))
            size = file.stat().st_size
            written.append(DataFile.of(place, size, partition_of(place), read_metadata(file)))
            (self._path / place).parent.mkdir(parents=True, exist_ok=True)
            file.rename(self._path / place)
        return written

    def _leave(self, files: list[DataFile]) -> None:
        """Delete this run's files for a batch that is already committed.

        Keeps them in an object store: if the response to a commit was lost, that commit may be this run's
        own. `compact` deletes files that no version refers to.
        """
        if self._objects is None:
            for file in files:
                (self._path / file.place).unlink()

    def _new_columns(self, table: "Delta", schema: pa.Schema) -> "list[Field]":
        """Return new columns and columns with new fields; ConfigError if other columns differ.

        The log accepts files with any columns, but then the table cannot be read.
        """

        def arrow(of: "Schema") -> pa.Schema:
            return pa.schema(of.to_arrow())

        # Convert both through the library: it may map one Delta type to several Arrow types.
        new = self._library.Schema.from_arrow(schema)
        gained = {each.name for each in gained_columns(self._url, arrow(table.schema()), arrow(new))}
        return [field for field in new.fields if field.name in gained]

    def _has(self, table: "Delta", batch: "Batch") -> bool:
        last = table.transaction_version(batch.query)
        return last is not None and last >= batch.number

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days, without the column `date` by which the table is partitioned.

        Returns None if there are none.
        """
        table = self._open()
        if table is None:
            return None
        days = [("date", ">=", first.isoformat()), ("date", "<=", last.isoformat())]
        # delta-rs escapes the table's directory; the path inside the table, a date, needs no escaping.
        files = [unquote(uri) for uri in table.file_uris(file_pruning_predicate=days)]
        return rows_in(spark, files)

    def compact(self) -> int:
        """Merge small files; return how many were replaced. Older versions stay readable for a week.

        Deletes files that no version of the last week refers to, including those of killed runs.
        """
        table = self._open()
        if table is None:
            return 0
        count = int(table.optimize.compact()["numFilesRemoved"])
        table.vacuum(dry_run=False, full=True)
        return count

    def _open(self) -> "Delta | None":
        if not self._library.DeltaTable.is_deltatable(self._url, storage_options=self._options):
            return None
        return self._library.DeltaTable(self._url, storage_options=self._options)
