"""A Delta table with each batch once: its transaction log records its batches.

The number of a batch is committed with its rows, as the application transaction (query id, batch); a batch in
the log is not written again. It uses the library `deltalake` (delta-rs): there is no Delta for Spark 4.3.
"""

from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

from libramq.errors import ConfigError

if TYPE_CHECKING:
    from deltalake import DeltaTable as Delta
    from pyspark.sql import DataFrame, SparkSession


#: Ours: how often a commit is tried that loses races to other writers; delta-rs repeats harmless ones.
COMMITS_MAX: Final = 10


class DeltaTable:
    """One table. query_id: used when a batch is written; it names the counter of batches."""

    def __init__(self, path: Path, *, query_id: str = "") -> None:
        try:
            import deltalake
        except ModuleNotFoundError:
            raise ConfigError(
                "format = \"delta\" needs the library deltalake: pip install 'libramq[delta]'"
            ) from None
        self.path = path
        self._library = deltalake
        self._query_id = query_id

    def has_rows(self) -> bool:
        """Return whether the table exists."""
        return self._open() is not None

    def has_batch(self, batch: int) -> bool:
        """Return whether a batch is in the table."""
        table = self._open()
        return table is not None and self._has(table, batch)

    def write(self, rows: "DataFrame", batch: int) -> int:
        """Add a batch and return its number of rows, 0 if another run has added it meanwhile.

        They pass through the driver's memory. The commit is made to the version that was looked at: the
        library refuses it if the batch has been committed since.
        """
        from deltalake.exceptions import CommitFailedError

        data = rows.toArrow()
        self._library.DeltaTable.create(str(self.path), data.schema, mode="ignore", partition_by=["date"])
        done = self._library.Transaction(self._query_id, batch)
        properties = self._library.CommitProperties(app_transactions=[done])
        for attempt in range(1, COMMITS_MAX + 1):
            table = self._library.DeltaTable(str(self.path))
            if self._has(table, batch):
                return 0
            try:
                self._library.write_deltalake(
                    table, data, mode="append", schema_mode="merge", commit_properties=properties
                )
                break
            except CommitFailedError:
                if attempt == COMMITS_MAX:
                    raise
        return int(data.num_rows)

    def _has(self, table: "Delta", batch: int) -> bool:
        last = table.transaction_version(self._query_id)
        return last is not None and last >= batch

    def rows_of(self, spark: "SparkSession", first: date, last: date) -> "DataFrame | None":
        """Return the rows of some days, without the column date; None if there are none."""
        table = self._open()
        if table is None:
            return None
        days = [("date", ">=", first.isoformat()), ("date", "<=", last.isoformat())]
        files = table.file_uris(file_pruning_predicate=days)
        return spark.read.parquet(*files) if files else None

    def compact(self) -> int:
        """Merge small files; return how many were replaced. Readers of older versions keep theirs."""
        table = self._open()
        return 0 if table is None else int(table.optimize.compact()["numFilesRemoved"])

    def _open(self) -> "Delta | None":
        if not self._library.DeltaTable.is_deltatable(str(self.path)):
            return None
        return self._library.DeltaTable(str(self.path))
