"""Small tables: computed into the driver's memory, each one Parquet file that is replaced whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def replace_table(path: Path, rows: "pa.Table") -> None:
    """Write the file anew; a reader sees the old rows or the new ones."""
    import pyarrow.parquet as pq

    draft = path.with_name(f".{path.name}.draft")
    pq.write_table(rows, draft)
    draft.replace(path)


def table_ddl(columns: Mapping[str, str]) -> str:
    """The schema as Spark reads it."""
    return ", ".join(f"`{name}` {kind}" for name, kind in columns.items())


def computed(shared: "DataFrame", tables: "Mapping[str, DataFrame]") -> "dict[str, pa.Table]":
    """The rows of tables that are made from a shared one, which is computed once.

    It is let go afterwards: the session would answer from it again when its files have changed.
    """
    shared.persist()
    try:
        return {name: table.toArrow() for name, table in tables.items()}
    finally:
        shared.unpersist()
