"""A Delta table contains each batch once, even with concurrent writers."""

import os
from collections.abc import Callable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from libramq.errors import ConfigError
from libramq.spark.pipeline.batches import Batch
from libramq.spark.pipeline.data_files import statistics
from libramq.spark.pipeline.delta_table import DeltaTable


class Rows:
    """A Spark batch. `meanwhile` is what another run does while the tasks write."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, **columns: list[Any]) -> None:
        columns = columns or {"offset": [1, 2]}
        count = len(next(iter(columns.values())))
        self._meanwhile = meanwhile
        self._rows = pa.table({**columns, "date": [date(2026, 5, 1)] * count})
        self.schema = from_arrow_schema(self._rows.schema)
        self.sparkSession = self.conf = self.write = self

    def set(self, _name: str, _value: str) -> None: ...

    def mode(self, _: str) -> "Rows":
        return self

    def partitionBy(self, _: str) -> "Rows":
        return self

    def option(self, _name: str, _value: str) -> "Rows":
        return self

    def parquet(self, directory: str) -> None:
        self._meanwhile()
        pq.write_to_dataset(self._rows, directory, partition_cols=["date"])


def rows_in(path: Path) -> int:
    return deltalake.DeltaTable(str(path)).to_pyarrow_table().num_rows


def write(path: Path, rows: Rows, batch: int, query: str = "q") -> int:
    return DeltaTable(path, partitioned_by="date").write_once(rows, Batch(query, batch))  # type: ignore[arg-type]


def test_a_batch_that_another_run_has_added_meanwhile_is_not_added_again(tmp_path: Path):
    """Overlapping cron runs wrote a whole batch twice, and both reported success."""
    path = tmp_path / "t"
    for batch in (0, 1):
        assert write(path, Rows(lambda: write(path, Rows(), batch)), batch) == 0  # noqa: B023
        assert rows_in(path) == 2 * (batch + 1)
        assert DeltaTable(path).has_batch(Batch("q", batch))


@pytest.mark.parametrize(("other", "count"), [("q", 4), ("someone else", 6)])
def test_a_commit_that_lost_a_race_looks_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str, count: int
):
    """The other commit happens after this run has checked and before it commits."""
    path = tmp_path / "t"
    write(path, Rows(), 0)
    really, others = deltalake.DeltaTable.create_write_transaction, [other]

    def raced(*arguments: Any, **options: Any) -> None:
        if others:
            write(path, Rows(), 1, others.pop())
        really(*arguments, **options)

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", raced)
    assert write(path, Rows(), 1) == count - 4
    assert rows_in(path) == count


def test_a_table_gains_columns(tmp_path: Path):
    write(tmp_path / "t", Rows(), 0)
    write(tmp_path / "t", Rows(offset=[3], corrupt=[b"x"]), 1)
    assert rows_in(tmp_path / "t") == 3


def test_a_table_gains_fields_of_its_columns(tmp_path: Path):
    write(tmp_path / "t", Rows(line=[{"a": 1}]), 0)
    write(tmp_path / "t", Rows(line=[{"a": 2, "b": "x"}]), 1)
    found = deltalake.DeltaTable(str(tmp_path / "t")).to_pyarrow_table()["line"].to_pylist()
    assert sorted(found, key=str) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_column_of_another_type_is_refused_before_anything_is_written(tmp_path: Path):
    """The log accepts such files, but the table would become unreadable."""
    write(tmp_path / "t", Rows(), 0)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(ConfigError, match="has a column offset int64, which is to be string; give another"):
        write(tmp_path / "t", Rows(offset=["many"]), 1)
    with pytest.raises(ConfigError, match="has a column offset, from which Offset differs in case alone"):
        write(tmp_path / "t", Rows(Offset=[1]), 1)
    assert sorted(tmp_path.rglob("*")) == before
    assert rows_in(tmp_path / "t") == 2


@pytest.mark.parametrize("name", ["a%20b", "a\\b", "a\nb"])
def test_a_directory_that_the_library_would_take_for_another_is_refused(tmp_path: Path, name: str):
    with pytest.raises(ConfigError, match=r"delta-rs does not take '.*' as it is; give another directory"):
        DeltaTable(tmp_path / name)


def test_a_batch_of_duplicates_only_is_recorded(tmp_path: Path):
    class Nothing(Rows):
        def parquet(self, directory: str) -> None: ...

    assert write(tmp_path / "t", Nothing(), 0) == 0
    assert DeltaTable(tmp_path / "t").has_batch(Batch("q", 0))


def test_files_have_bounds_by_which_readers_leave_them_out(tmp_path: Path):
    write(tmp_path / "t", Rows(offset=[3, None, 9]), 0)
    table = deltalake.DeltaTable(str(tmp_path / "t"))
    (file,) = pa.table(table.get_add_actions(flatten=True)).to_pylist()
    assert (file["num_records"], file["min.offset"], file["max.offset"], file["null_count.offset"]) == (
        3, 3, 9, 1,
    )  # fmt: skip
    assert str(file["partition.date"]) == "2026-05-01"


def test_a_file_without_counts_and_with_times_beyond_those_of_python_has_no_bounds(tmp_path: Path):
    """Spark counts no nulls for large values; a body of one megabyte stopped the pipeline for good."""
    file = tmp_path / "f.parquet"
    at = pa.array([1_700_000_000_000_000_000], pa.timestamp("us", "UTC"))
    pq.write_table(pa.table({"at": at, "offset": [1]}), file)
    found = statistics(pq.read_metadata(file))
    assert (found["nullCount"], found["minValues"]) == ({"at": 0, "offset": 0}, {"offset": 1})
    without_counts = SimpleNamespace(is_stats_set=True, has_null_count=False, has_min_max=False)
    column = SimpleNamespace(path="body", is_stats_set=True, statistics=without_counts)
    metadata: Any = SimpleNamespace(num_rows=1, num_columns=1, num_row_groups=1)
    metadata.schema = SimpleNamespace(column=lambda _: column)
    metadata.row_group = lambda _: metadata.schema
    assert statistics(metadata)["nullCount"] == {}


def test_files_of_lost_and_killed_runs_are_removed(tmp_path: Path):
    """Files that another run is about to commit stay: they are less than a week old."""
    path = tmp_path / "t"
    write(path, Rows(), 0)
    assert write(path, Rows(lambda: write(path, Rows(), 1)), 1) == 0
    assert len(list(path.rglob("*.parquet"))) == 2
    old, new = path / "date=2026-05-01" / "old.parquet", path / "date=2026-05-01" / "new.parquet"
    for file in (old, new):
        pq.write_table(pa.table({"offset": [1]}), file)
    os.utime(old, (0, 0))
    assert DeltaTable(path).compact() == 2
    assert (old.exists(), new.exists()) == (False, True)
    assert rows_in(path) == 4
