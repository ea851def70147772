"""Columns of a table: which rows it accepts and which new columns it gains.

A batch with other types would break the table for every reader, so it is refused before anything is written.
"""

from collections.abc import Iterable, Mapping

import pyarrow as pa

from libramq.errors import ConfigError
from libramq.spark.schema import ddl


def arrow_schema(columns: Mapping[str, str]) -> pa.Schema:
    """Return the Arrow schema of columns with Spark types; parsing nested types needs a Spark session."""
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StructType

    fields = StructType.fromDDL(ddl(columns)) if columns else StructType()
    assert isinstance(fields, StructType), "a DDL text is one"
    return to_arrow_schema(fields, timezone="UTC")


def gained_columns(table: str, known: pa.Schema, new: pa.Schema, *, promotes: bool = False) -> list[pa.Field]:
    """Return new columns and columns with new fields.

    Raises ConfigError for a column of another type. promotes: whether a column accepts narrower number types.
    """
    there = {field.name: field for field in known}
    check_case(table, there, new.names)
    for field in new:
        if field.name in there and not holds(there[field.name].type, field.type, promotes=promotes):
            raise other_type(table, field.name, str(there[field.name].type), str(field.type))
    return [
        field
        for field in new
        if field.name not in there or _fields(field.type) - _fields(there[field.name].type)
    ]


def check_kinds(table: str, known: Mapping[str, str], new: Mapping[str, str]) -> None:
    """Raise ConfigError for a column of another Spark type; structs may gain fields."""
    check_case(table, known, new)
    for name, kind in new.items():
        there = known.get(name, kind)
        if there != kind and ("<" not in kind or there.partition("<")[0] != kind.partition("<")[0]):
            raise other_type(table, name, there, kind)


def check_case(table: str, known: Iterable[str], new: Iterable[str]) -> None:
    """Raise ConfigError for a new column whose name differs in case alone; Spark and others ignore case."""
    there = {name.lower(): name for name in known}
    for name in new:
        if there.get(name.lower(), name) != name:
            raise ConfigError(
                f"the table {table} has a column {there[name.lower()]}, from which {name} differs in case "
                "alone; give it that name"
            )


def other_type(table: str, name: str, known: str, new: str) -> ConfigError:
    """Return the error of a column whose type has changed."""
    return ConfigError(
        f"the table {table} has a column {name} {known}, which is to be {new}; give another table, or take "
        "the change back"
    )


def holds(known: pa.DataType, new: pa.DataType, *, promotes: bool) -> bool:
    """Return whether a column can hold another type's values; structs may gain fields."""
    if pa.types.is_struct(known) and pa.types.is_struct(new):
        there = {field.name.lower(): field for field in known}  # Spark and Delta ignore case.
        return all(
            same.name == field.name and holds(same.type, field.type, promotes=promotes)
            for field in new
            if (same := there.get(field.name.lower())) is not None
        )
    if _is_list(known) and _is_list(new):
        return holds(known.value_type, new.value_type, promotes=promotes)
    if pa.types.is_map(known) and pa.types.is_map(new):
        return holds(known.key_type, new.key_type, promotes=promotes) and holds(
            known.item_type, new.item_type, promotes=promotes
        )
    small = {pa.large_string(): pa.string(), pa.large_binary(): pa.binary()}
    wider = {(pa.int64(), pa.int32()), (pa.float64(), pa.float32())}
    return small.get(known, known) == small.get(new, new) or (promotes and (known, new) in wider)


def _is_list(kind: pa.DataType) -> bool:
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _fields(kind: pa.DataType, path: tuple[str, ...] = ()) -> set[tuple[str, ...]]:
    """Return the paths of a type's fields at all depths."""
    if pa.types.is_struct(kind):
        inner = {field.name: field.type for field in kind}
        own = {(*path, name) for name in inner}
    elif _is_list(kind):
        inner, own = {"[]": kind.value_type}, set()
    elif pa.types.is_map(kind):
        inner, own = {"{}": kind.item_type}, set()
    else:
        return set()
    return own.union(*(_fields(each, (*path, name)) for name, each in inner.items()))
