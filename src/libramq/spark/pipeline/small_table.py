"""Small tables: computed in the driver's memory and stored as one Parquet file, replaced as a whole."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


def replace_table(path: Path, rows: "pa.Table") -> None:
    """Replace the file atomically: a reader sees either the old rows or the new ones."""
    import pyarrow.parquet as pq

    draft = path.with_name(f".{path.name}.draft")
    pq.write_table(rows, draft)
    draft.replace(path)


def computed(shared: "DataFrame", tables: "Mapping[str, DataFrame]") -> "dict[str, pa.Table]":
    """Return the rows of tables derived from a shared one, which is computed only once.

    The cache is dropped afterwards, or the session would reuse it after the files have changed.
    """
    shared.persist()
    try:
        return {name: table.toArrow() for name, table in tables.items()}
    finally:
        shared.unpersist()
