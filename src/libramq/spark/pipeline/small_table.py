"""A table that is one Parquet file and is replaced whole."""

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pyarrow as pa


def replace_table(path: Path, rows: "pa.Table") -> None:
    """Write the file anew; a reader sees the old rows or the new ones."""
    import pyarrow.parquet as pq

    draft = path.with_name(f".{path.name}.draft")
    pq.write_table(rows, draft)
    draft.replace(path)
