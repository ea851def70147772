"""Data files: a table's rows as Parquet files, partition by partition, with statistics for each file.

date=2026-05-01/shop=Harbour/part-….parquet         by Spark's writer, or by Python tasks with pyarrow
"""

import json
import pickle
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import quote, unquote

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from pyarrow.parquet import FileMetaData
    from pyspark.sql import DataFrame, SparkSession

File = TypeVar("File")
#: Ours: a task buffers this much before it writes one file for each partition.
BUFFER_BYTES: Final = 128 << 20
NO_VALUE: Final = "__HIVE_DEFAULT_PARTITION__"  # Hive's name for null in a directory name.
_OF_PATTERNS: Final = re.compile(r"[\[\]{}*?\\]")


@dataclass(frozen=True, slots=True)
class DataFile:
    """A written file. place: its path in the table. statistics: JSON, as in Delta's log.

    partition: the rows' partition values as text, by column.
    """

    place: str
    size: int
    partition: Mapping[str, str | None]
    row_count: int
    statistics: str

    @classmethod
    def of(
        cls, place: str, size: int, partition: Mapping[str, str | None], metadata: "FileMetaData"
    ) -> "DataFile":
        """Return a file with the row count and statistics from its Parquet footer."""
        return cls(place, size, partition, metadata.num_rows, json.dumps(statistics(metadata)))


def files_of_tasks(
    rows: "DataFrame", write: Callable[[Iterable[pa.RecordBatch]], Iterator[File]]
) -> list[File]:
    """Have Spark's tasks write rows; return the files that `write` yielded in the tasks that succeeded."""

    def task(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for file in write(batches):
            yield pa.record_batch({"file": [pickle.dumps(file)]})

    return [pickle.loads(bytes(row["file"])) for row in rows.mapInArrow(task, "file binary").collect()]


def partition_of(place: str) -> dict[str, str | None]:
    """Return the partition values in a file's Hive-style path."""
    values = dict[str, str | None]()
    for directory in PurePosixPath(place).parts[:-1]:
        name, _, value = directory.partition("=")
        values[unquote(name)] = None if value == NO_VALUE else unquote(value)
    return values


def rows_in(spark: "SparkSession", files: Sequence[str]) -> "DataFrame | None":
    """Return the rows of files or directories, escaping names for Spark's globs; None if there are none."""
    return spark.read.parquet(*(_OF_PATTERNS.sub(r"\\\g<0>", each) for each in files)) if files else None


def directories_of(partition: Mapping[str, str | None], *, escapes: bool = True) -> str:
    """Return the Hive-style directories of a partition, each with a trailing slash.

    Without `escapes`, directories whose names would need escaping are left out.
    """
    parts = {
        f"{name}={value}": f"{quote(name, safe='')}={quote(value, safe='')}/"
        for name, value in ((name, NO_VALUE if value is None else value) for name, value in partition.items())
    }
    return "".join(part for plain, part in parts.items() if escapes or part == f"{plain}/")


def as_texts(values: Mapping[str, Any]) -> dict[str, str | None]:
    """Return partition values as Hive and Delta write them: both treat an empty string as null."""
    return {name: _as_text(value) for name, value in values.items()}


def _as_text(value: object) -> str | None:
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def column_names(names: str | Sequence[str]) -> list[str]:
    """Return the names as a list, whether one or several are given."""
    return [names] if isinstance(names, str) else list(names)


def by_partition(
    tables: Iterable[pa.Table], partitioned_by: Sequence[str]
) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
    """Yield a partition's values and a table of its rows, buffering at most about BUFFER_BYTES."""
    buffered, size = list[pa.Table](), 0
    for table in tables:
        if table.num_rows:
            buffered.append(table)
            size += table.nbytes
        if size >= BUFFER_BYTES:
            yield from _partitions(pa.concat_tables(buffered), partitioned_by)
            buffered, size = [], 0
    if buffered:
        yield from _partitions(pa.concat_tables(buffered), partitioned_by)


def _partitions(rows: pa.Table, names: Sequence[str]) -> Iterator[tuple[Mapping[str, Any], pa.Table]]:
    if not names:
        yield {}, rows
        return
    for values in rows.group_by(list(names)).aggregate([]).to_pylist():
        chosen = pa.scalar(True)
        for name, value in values.items():
            is_it = pc.is_null(rows[name]) if value is None else pc.equal(rows[name], value)
            chosen = pc.and_(chosen, pc.fill_null(is_it, False))
        yield values, rows.filter(chosen)


def statistics(metadata: "FileMetaData") -> dict[str, Any]:
    """Return a file's row and null counts and its bounds of numbers and times, by which readers skip it."""
    found: dict[str, Any] = {
        "numRecords": metadata.num_rows, "minValues": {}, "maxValues": {}, "nullCount": {}
    }  # fmt: skip
    for index in range(metadata.num_columns):
        name = metadata.schema.column(index).path
        groups = [metadata.row_group(group).column(index) for group in range(metadata.num_row_groups)]
        bounds = [group.statistics for group in groups if group.is_stats_set]
        if "." in name or len(bounds) < len(groups) or not bounds:
            continue
        if all(each.has_null_count for each in bounds):  # Spark omits it for large values.
            found["nullCount"][name] = sum(each.null_count for each in bounds)
        try:
            limits = [(each.min, each.max) for each in bounds if each.has_min_max]
        except OverflowError:  # Python's datetime ends with the year 9999.
            continue
        if len(limits) == len(bounds) and all(isinstance(low, int | datetime) for low, _ in limits):
            found["minValues"][name] = _bound(min(low for low, _ in limits))
            found["maxValues"][name] = _bound(max(high for _, high in limits))
    return found


def _bound(value: int | datetime) -> int | str:
    if isinstance(value, datetime):
        return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
    return value
