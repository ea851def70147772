"""A Delta table with each batch once: how a batch is committed, when it is skipped, and how columns are
added.

Spark's tasks write the files, and the driver commits them: whatever is in a batch, the driver has a row for
each file.

The number of a batch is committed with its rows, as the application transaction (query id, batch); a batch in
the log is not written again. It uses the library `deltalake` (delta-rs): there is no Delta for Spark 4.3.
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


#: Ours: how often a commit is tried that loses races to other writers; delta-rs repeats harmless ones.
COMMITS_MAX: Final = 10
#: In the path of a directory: delta-rs takes %20 for a space, and a backslash for a slash.
_NOT_IN_PATHS: Final = re.compile(r"[%\\\x00-\x1f]")


class DeltaTable:
    """One table. partitioned_by: a column, or columns, by whose values its files are apart.

    path: a directory, or s3://BUCKET/PATH. storage: endpoint and region of S3; others are in the environment.
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
        """Add a batch and return its number of rows; 0 if it is there already.

        Spark's tasks write the files, and the driver commits them, to the version that was looked at: the
        library refuses that if the batch has been committed since.
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
        """Have Spark's tasks write the files; return them, in their places in the table."""
        if self._objects is not None:
            # The log has the values. Where a name is escaped, delta-rs and Polars look for another one.
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
        """Delete the files of a batch that another run has added.

        Not in an object store: an answer may be lost there, and the commit that came first be this one.
        `compact` deletes what no version has.
        """
        if self._objects is None:
            for file in files:
                (self._path / file.place).unlink()

    def _new_columns(self, table: "Delta", schema: pa.Schema) -> "list[Field]":
        """Return the columns that the table lacks, or of which it lacks fields; ConfigError if others differ.

        The log takes files of any columns, and then nobody can read the table.
        """

        def arrow(of: "Schema") -> pa.Schema:
            return pa.schema(of.to_arrow())

        # Both as the library has them: it may have other types of Arrow for one of Delta.
        new = self._library.Schema.from_arrow(schema)
        gained = {each.name for each in gained_columns(self._url, arrow(table.schema()), arrow(new))}
        return [field for field in new.fields if field.name in gained]

    def _has(self, table: "Delta", batch: "Batch") -> bool:
        last = table.transaction_version(batch.query)
        return last is not None and last >= batch.number

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days of a table that is partitioned by date; None if there are none.

        They lack that column.
        """
        table = self._open()
        if table is None:
            return None
        days = [("date", ">=", first.isoformat()), ("date", "<=", last.isoformat())]
        # delta-rs escapes the directory, and a place by its day has nothing to escape.
        files = [unquote(uri) for uri in table.file_uris(file_pruning_predicate=days)]
        return rows_in(spark, files)

    def compact(self) -> int:
        """Merge small files; return how many were replaced. Readers of older versions keep theirs for a week.

        Files that no version of that time has are deleted, those of runs that were killed among them.
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
