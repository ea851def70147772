"""An Iceberg table contains each batch once, even with concurrent commits, and other engines read it."""

import os
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any, TypeAlias

import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, Transaction
from pyspark.sql.pandas.types import from_arrow_schema

from libramq.errors import ConfigError
from libramq.spark.pipeline.batches import Batch
from libramq.spark.pipeline.iceberg_table import IcebergTable

DAY = date(2026, 5, 1)
Task: TypeAlias = Callable[[Iterable[pa.RecordBatch]], Iterable[pa.RecordBatch]]


class Rows:
    """A Spark batch. `meanwhile` is what another run does while the tasks write."""

    def __init__(self, meanwhile: Callable[[], object] = lambda: None, **columns: Any) -> None:
        self._rows = pa.table({**(columns or {"offset": [1, 2]})})
        if "date" not in columns:
            self._rows = self._rows.append_column("date", pa.array([DAY] * self._rows.num_rows, pa.date32()))
        self._meanwhile = meanwhile
        self.schema = from_arrow_schema(self._rows.schema)

    def mapInArrow(self, task: Task, _: str) -> "Rows":
        written = [row for batch in task(self._rows.to_batches()) for row in batch.to_pylist()]
        self._meanwhile()
        self.collect = lambda: written
        return self


@pytest.fixture
def catalog(tmp_path: Path) -> dict[str, str]:
    return {"uri": f"sqlite:///{tmp_path}/catalog.db", "warehouse": str(tmp_path / "warehouse")}


@pytest.fixture
def write(catalog: dict[str, str]) -> Callable[..., int]:
    def write(rows: Rows, batch: int, query: str = "q") -> int:
        return iceberg(catalog).write_once(rows, Batch(query, batch))  # type: ignore[arg-type]

    return write


def iceberg(catalog: dict[str, str]) -> IcebergTable:
    return IcebergTable("shop.orders", catalog, partitioned_by=["date"])


def opened(catalog: dict[str, str]) -> Catalog:
    return load_catalog("default", **{**catalog, "warehouse": f"file://{catalog['warehouse']}"})


def table_of(catalog: dict[str, str]) -> Table:
    return opened(catalog).load_table("shop.orders")


def offsets(catalog: dict[str, str]) -> list[int]:
    return sorted(table_of(catalog).scan().to_arrow()["offset"].to_pylist())


def data_files(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "warehouse").rglob("*.parquet"))


@pytest.mark.filterwarnings("ignore:Iceberg scan planning")
def test_another_engine_reads_the_rows(catalog: dict[str, str], write: Callable[..., int]):
    at = datetime(2026, 5, 1, 12, tzinfo=UTC)
    properties = pa.array([[("KEYS", "k")], None], pa.map_(pa.string(), pa.string()))
    day = pa.array([DAY, None], pa.date32())
    columns = {"offset": [1, 2], "key": ["k", None], "timestamp": [at, at], "properties": properties}
    assert write(Rows(**columns, date=day), 0) == 2
    found = polars.scan_iceberg(table_of(catalog), reader_override="native").sort("offset").collect()
    assert found["key"].to_list() == ["k", None]
    assert found["timestamp"].to_list() == [at, at]
    assert found["date"].to_list() == [DAY, None]
    ours = polars.scan_iceberg(table_of(catalog)).filter(polars.col("date") == DAY).collect()
    assert ours["offset"].to_list() == [1]
    (file,) = [task.file.file_path for task in table_of(catalog).scan("offset = 1").plan_files()]
    ids = [field.metadata[b"PARQUET:field_id"] for field in pq.read_schema(file.removeprefix("file://"))]
    assert ids == [b"1", b"2", b"3", b"4", b"5"]


def test_a_batch_that_another_run_has_added_meanwhile_is_not_added_again(
    catalog: dict[str, str], write: Callable[..., int], tmp_path: Path
):
    for batch in (0, 1):
        assert write(Rows(lambda: write(Rows(), batch)), batch) == 0  # noqa: B023
        assert len(offsets(catalog)) == 2 * (batch + 1)
    assert len(data_files(tmp_path)) == 2


@pytest.mark.parametrize(("other", "count"), [("q", 4), ("someone else", 6)])
def test_a_commit_that_lost_a_race_looks_again(
    catalog: dict[str, str],
    write: Callable[..., int],
    monkeypatch: pytest.MonkeyPatch,
    other: str,
    count: int,
):
    """The other commit happens after this run has checked and before it commits."""
    write(Rows(), 0)
    really, others = Transaction.commit_transaction, [other]

    def raced(self: Transaction) -> Table:
        if others:
            write(Rows(), 1, others.pop())
        return really(self)

    monkeypatch.setattr(Transaction, "commit_transaction", raced)
    assert write(Rows(), 1) == count - 4
    assert len(offsets(catalog)) == count


def test_a_commit_that_went_through_although_it_seems_lost_keeps_its_files(
    catalog: dict[str, str], write: Callable[..., int], monkeypatch: pytest.MonkeyPatch
):
    """If a proxy resends a commit, the second attempt loses against the first."""
    write(Rows(), 0)
    really = Transaction.commit_transaction

    def sent_twice(self: Transaction) -> Table:
        really(self)
        raise CommitFailedException

    monkeypatch.setattr(Transaction, "commit_transaction", sent_twice)
    assert write(Rows(offset=[3]), 1) == 1
    assert offsets(catalog) == [1, 2, 3]


def test_a_table_gains_fields_of_its_columns(catalog: dict[str, str], write: Callable[..., int]):
    write(Rows(line=[{"a": 1}]), 0)
    write(Rows(line=[{"a": 2, "b": "x"}]), 1)
    found = table_of(catalog).scan().to_arrow()["line"].to_pylist()
    assert sorted(found, key=str) == [{"a": 1, "b": None}, {"a": 2, "b": "x"}]


def test_a_column_that_differs_in_case_alone_is_refused(catalog: dict[str, str], write: Callable[..., int]):
    write(Rows(), 0)
    with pytest.raises(ConfigError, match="has a column offset, from which Offset differs in case alone"):
        write(Rows(Offset=[1]), 1)


@pytest.mark.parametrize(("name", "warehouse"), [("a.b#c", "w"), ("a.b", "w#1"), ("a.b", "w?")])
def test_a_name_that_would_be_cut_off_is_refused(name: str, warehouse: str):
    with pytest.raises(ConfigError, match=r"'[abw.]+[#?].?': . has a meaning in URLs"):
        IcebergTable(name, {"uri": "sqlite:///c.db", "warehouse": warehouse})


def test_a_run_killed_before_its_commit_or_after_it_adds_its_batch_once(
    catalog: dict[str, str], write: Callable[..., int]
):
    def killed() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(Rows(killed), 0)
    assert not iceberg(catalog).has_batch(Batch("q", 0))
    assert write(Rows(), 0) == 2
    assert write(Rows(), 0) == 0  # Spark's checkpoint did not record it.
    assert offsets(catalog) == [1, 2]


def test_a_batch_is_known_after_its_snapshot_has_expired(catalog: dict[str, str], write: Callable[..., int]):
    write(Rows(), 0)
    table = table_of(catalog)
    table.append(table.scan().to_arrow())  # Another program, and the table's maintenance.
    table.maintenance.expire_snapshots().by_id(table.snapshots()[0].snapshot_id).commit()
    assert all("libramq-batch" not in str(each.summary) for each in table_of(catalog).snapshots())
    assert write(Rows(), 0) == 0
    with table_of(catalog).transaction() as transaction:
        transaction.remove_properties("libramq-batch.q")
    write(Rows(), 1)
    with table_of(catalog).transaction() as transaction:
        transaction.remove_properties("libramq-batch.q")
    assert write(Rows(), 1) == 0  # Identified by its snapshot.


def test_a_batch_of_duplicates_only_is_recorded(catalog: dict[str, str], write: Callable[..., int]):
    assert write(Rows(offset=pa.array([], pa.int64())), 0) == 0
    assert iceberg(catalog).has_batch(Batch("q", 0))


def test_times_beyond_those_of_python_are_written_without_bounds(
    catalog: dict[str, str], write: Callable[..., int], tmp_path: Path
):
    """Seconds are expected, but a producer sends milliseconds, inside a list: the pipeline stopped."""
    lines = pa.array([[1_700_000_000_000_000_000], [0]], pa.list_(pa.timestamp("us", "UTC")))
    assert write(Rows(offset=[1, 2], lines=lines), 0) == 2
    assert offsets(catalog) == [1, 2]
    assert len(data_files(tmp_path)) == 1


def test_a_table_gains_columns_and_keeps_those_that_are_no_longer_written(
    catalog: dict[str, str], write: Callable[..., int]
):
    write(Rows(), 0)
    write(Rows(offset=[3], corrupt=[b"x"]), 1)
    write(Rows(offset=[4]), 2)
    found = table_of(catalog).scan().to_arrow().sort_by("offset")
    assert found["corrupt"].to_pylist() == [None, None, b"x", None]


def test_small_files_become_one_and_old_snapshots_and_files_go(
    catalog: dict[str, str], write: Callable[..., int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for batch in range(4):
        write(Rows(offset=[batch, batch + 10]), batch)
    rows = offsets(catalog)
    with table_of(catalog).transaction() as transaction:
        transaction.set_properties({"history.expire.max-snapshot-age-ms": "0"})
    old = data_files(tmp_path)
    assert iceberg(catalog).compact() == 4
    assert offsets(catalog) == rows
    assert len(list(table_of(catalog).scan().plan_files())) == 1
    assert len(table_of(catalog).snapshots()) == 1
    assert all(file.exists() for file in old)  # Readers may have the files open.
    theirs = old[0].with_name("of-another-program.parquet")
    theirs.touch()
    for file in [*data_files(tmp_path)]:
        os.utime(file, (0, 0))
    assert iceberg(catalog).compact() == 0
    assert theirs.exists()
    assert len(data_files(tmp_path)) == 2
    assert offsets(catalog) == rows
    assert write(Rows(), 3) == 0


def test_a_merge_that_lost_a_race_changes_nothing(
    catalog: dict[str, str], write: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    write(Rows(), 0)
    write(Rows(), 1)
    really, others = Transaction.commit_transaction, [2]

    def raced(self: Transaction) -> Table:
        if others:
            write(Rows(), others.pop())
        return really(self)

    monkeypatch.setattr(Transaction, "commit_transaction", raced)
    assert iceberg(catalog).compact() == 0
    assert len(data_files(tmp_path)) == 3
    assert len(offsets(catalog)) == 6
    assert iceberg(catalog).compact() == 3
    assert len(offsets(catalog)) == 6


def test_mistakes_are_named(
    catalog: dict[str, str], write: Callable[..., int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    with pytest.raises(ConfigError, match=r"the catalog default cannot be opened: URI missing.* give "):
        IcebergTable("shop.orders", {"warehouse": "w"}).has_rows()
    with pytest.raises(ConfigError, match="cannot be opened: Could not infer the catalog type"):
        IcebergTable("shop.orders", {"uri": "mysql://h/d"}).has_rows()
    with pytest.raises(ConfigError, match=r"cannot be opened: .*Connection refused"):
        IcebergTable("shop.orders", {"uri": "http://127.0.0.1:9"}).has_rows()
    for name in ("orders", ".orders", "shop.", "shop..orders", "../shop.orders"):
        with pytest.raises(
            ConfigError, match=f"table='{name}': give a namespace and a name, like shop.orders"
        ):
            IcebergTable(name, catalog)
    with pytest.raises(ConfigError, match=r"no warehouse for the new table shop\.orders; give a dir"):
        iceberg({"uri": catalog["uri"], "wharehouse": "w"}).check({})
    with pytest.raises(
        ConfigError, match=r"the warehouse file:///.*\.py in \[catalog\] is a file; give a dir"
    ):
        iceberg({**catalog, "warehouse": __file__}).check({})
    assert not iceberg(catalog).has_rows()
    assert list(tmp_path.iterdir()) == []  # A dry run.
    write(Rows(), 0)
    with pytest.raises(ConfigError, match="a column offset int64, which is to be string; give another"):
        iceberg(catalog).check({"offset": "string"})
    with pytest.raises(ConfigError, match="is partitioned by date, not by the values of shop; give"):
        IcebergTable("shop.orders", catalog, partitioned_by=["shop"]).check({"offset": "bigint"})
    iceberg(catalog).check({"offset": "int", "new": "string", "date": "date"})
    monkeypatch.setitem(sys.modules, "pyiceberg.catalog", None)
    with pytest.raises(ConfigError, match=r"Iceberg table needs pyiceberg: pip install 'libramq\[iceberg\]'"):
        iceberg(catalog)


def test_a_new_table_has_one_owner(catalog: dict[str, str]):
    """One of two concurrent first runs owns it; a run killed before its first batch
    recognizes its own table.
    """
    schema = Rows()._rows.schema
    iceberg(catalog).create(schema, "one")
    iceberg(catalog).create(schema, "one")
    with pytest.raises(ConfigError, match=r"another run has made the table shop\.orders just now"):
        iceberg(catalog).create(schema.append(pa.field("others", pa.int32())), "other")
    assert "others" not in table_of(catalog).schema().column_names
    assert not iceberg(catalog).has_rows("one")
    assert iceberg(catalog).has_rows("other")
    iceberg(catalog).write_once(Rows(), Batch("q", 0))  # type: ignore[arg-type]
    assert iceberg(catalog).has_rows("one")
