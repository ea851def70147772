"""Small tables: computed in the driver's memory, each one Parquet file that is replaced as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def replace_table(path: Path, rows: "pa.Table") -> None:
    """Replace the file; a reader sees the old rows or the new ones."""
    import pyarrow.parquet as pq

    draft = path.with_name(f".{path.name}.draft")
    pq.write_table(rows, draft)
    draft.replace(path)


def computed(shared: "DataFrame", tables: "Mapping[str, DataFrame]") -> "dict[str, pa.Table]":
    """Return the rows of tables computed from a shared one, which is computed once.

    The cache is dropped afterwards: the session would use it again when the files have changed.
    """
    shared.persist()
    try:
        return {name: table.toArrow() for name, table in tables.items()}
    finally:
        shared.unpersist()
