"""A Delta table with each batch once: its transaction log records its batches.

Spark's tasks write the files, and the driver commits them: whatever is in a batch, the driver has a row for
each file.

The number of a batch is committed with its rows, as the application transaction (query id, batch); a batch in
the log is not written again. It uses the library `deltalake` (delta-rs): there is no Delta for Spark 4.3.
"""

import json
import time
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote, unquote

from pyarrow.parquet import read_metadata

from libramq.errors import ConfigError
from libramq.spark.pipeline.parquet_table import column_names, write_files

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable as Delta
    from deltalake.transaction import AddAction
    from pyarrow.parquet import FileMetaData
    from pyspark.sql import DataFrame, SparkSession

    from libramq.spark.pipeline.batches import Batch


#: Ours: how often a commit is tried that loses races to other writers; delta-rs repeats harmless ones.
COMMITS_MAX: Final = 10
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  # Hive's, in the name of a directory.


class DeltaTable:
    """One table. partitioned_by: a column, or columns, by whose values its files are apart."""

    def __init__(self, path: Path, *, partitioned_by: str | Sequence[str] = ()) -> None:
        try:
            import deltalake
        except ModuleNotFoundError:
            raise ConfigError(
                "Delta tables need the library deltalake: pip install 'libramq[delta]'"
            ) from None
        self.path = path
        self._library = deltalake
        self._draft = path.with_name(f".{path.name}.draft")
        self._partitioned_by = column_names(partitioned_by)

    def has_rows(self) -> bool:
        """Return whether the table exists."""
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
        from pyspark.sql.pandas.types import to_arrow_schema

        if self.has_batch(batch):
            return 0
        schema = to_arrow_schema(rows.schema, timezone="UTC")
        files = write_files(rows, self._draft, self._partitioned_by)
        self._library.DeltaTable.create(
            str(self.path), schema, mode="ignore", partition_by=self._partitioned_by
        )
        added = [self._added(file) for file in files]
        done = self._library.Transaction(batch.query, batch.number)
        properties = self._library.CommitProperties(app_transactions=[done])
        for attempt in range(1, COMMITS_MAX + 1):
            table = self._library.DeltaTable(str(self.path))
            if self._has(table, batch):
                for action, _ in added:
                    (self.path / action.path).unlink()
                return 0
            try:
                self._add_columns(table, schema)
                table.create_write_transaction(
                    [action for action, _ in added],
                    "append",
                    schema,
                    self._partitioned_by,
                    commit_properties=properties,
                )
                break
            except CommitFailedError:
                if attempt == COMMITS_MAX:
                    raise
        return sum(count for _, count in added)

    def _added(self, file: Path) -> "tuple[AddAction, int]":
        """Move a file into the table; return what a commit says of it, and its number of rows."""
        from deltalake.transaction import AddAction

        metadata, place = read_metadata(file), file.relative_to(self._draft)
        (self.path / place).parent.mkdir(parents=True, exist_ok=True)
        size, values = file.stat().st_size, dict[str, str | None]()
        for part in place.parts[:-1]:
            name, _, value = part.partition("=")
            values[name] = None if value == NO_VALUE else unquote(value)
        file.rename(self.path / place)
        stats, now_ms = json.dumps(_statistics(metadata)), time.time_ns() // 1_000_000
        return AddAction(quote(str(place), safe="/="), size, values, now_ms, True, stats), metadata.num_rows

    def _add_columns(self, table: "Delta", schema: "pa.Schema") -> None:
        known = {field.name for field in table.schema().fields}
        new = [field for field in self._library.Schema.from_arrow(schema).fields if field.name not in known]
        if new:
            table.alter.add_columns(new)

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
        files = table.file_uris(file_pruning_predicate=days)
        return spark.read.parquet(*files) if files else None

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
        if not self._library.DeltaTable.is_deltatable(str(self.path)):
            return None
        return self._library.DeltaTable(str(self.path))


def _statistics(metadata: "FileMetaData") -> dict[str, Any]:
    """Return how many rows and nulls a file has, and bounds of numbers and times: readers skip it by them."""
    found: dict[str, Any] = {
        "numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}
    }  # fmt: skip
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        groups = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        bounds = [group.statistics for group in groups if group.is_stats_set]
        if "." in name or len(bounds) < len(groups) or not bounds:
            continue
        if all(each.has_null_count for each in bounds):  # Spark leaves it out where a value is large.
            found["nullCount"][name] = sum(each.null_count for each in bounds)
        try:
            limits = [(each.min, each.max) for each in bounds if each.has_min_max]
        except OverflowError:  # Python's times end with the year 9999.
            continue
        if len(limits) == len(bounds) and all(isinstance(low, int | datetime) for low, _ in limits):
            found["minValues"][name] = _bound(min(low for low, _ in limits))
            found["maxValues"][name] = _bound(max(high for _, high in limits))
    return found


def _bound(value: int | datetime) -> int | str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
