"""Rows that would make a table unreadable are refused; columns and nested fields may be added."""

import pyarrow as pa
import pytest

from libramq.errors import ConfigError
from libramq.spark.pipeline.table_columns import check_kinds, gained_columns

INNER = pa.struct([("a", pa.int32())])
WIDER = pa.struct([("a", pa.int32()), ("b", pa.string())])
KNOWN = pa.schema(
    {"cents": pa.int64(), "line": INNER, "lines": pa.large_list(INNER), "map": pa.map_(pa.string(), INNER)}
)


@pytest.mark.parametrize(
    ("name", "kind", "is_gained"),
    [
        ("cents", pa.int64(), False),
        ("line", INNER, False),
        ("line", WIDER, True),
        ("line", pa.struct([("b", pa.string())]), True),
        ("line", pa.struct([]), False),
        ("lines", pa.list_(INNER), False),
        ("lines", pa.list_(WIDER), True),
        ("map", pa.map_(pa.string(), INNER), False),
        ("map", pa.map_(pa.string(), WIDER), True),
        ("new", pa.int32(), True),
    ],
)
def test_columns_and_fields_are_gained(name: str, kind: pa.DataType, is_gained: bool):
    field = pa.field(name, kind)
    assert gained_columns("t", KNOWN, pa.schema([field])) == [field] * is_gained


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("cents", pa.string()),
        ("cents", pa.int32()),
        ("line", pa.struct([("a", pa.string())])),
        ("line", pa.struct([("A", pa.int32())])),
        ("lines", pa.list_(pa.int32())),
        ("map", pa.map_(pa.int32(), INNER)),
    ],
)
def test_another_type_is_refused(name: str, kind: pa.DataType):
    with pytest.raises(
        ConfigError, match=f"the table t has a column {name} .*, which is to be .*; give anot"
    ):
        gained_columns("t", KNOWN, pa.schema({name: kind}))


def test_a_small_number_fits_into_a_wider_column_where_the_format_promotes_it():
    assert gained_columns("t", KNOWN, pa.schema({"cents": pa.int32()}), promotes=True) == []


def test_spark_names_of_types_are_compared():
    known = {"cents": "int", "line": "struct<a:int>"}
    check_kinds("t", known, {"cents": "int", "line": "struct<a:int,b:string>", "new": "string"})
    with pytest.raises(ConfigError, match="a column cents int, which is to be string"):
        check_kinds("t", known, {"cents": "string"})
    with pytest.raises(ConfigError, match="a column line struct<a:int>, which is to be array<int>"):
        check_kinds("t", known, {"line": "array<int>"})
    with pytest.raises(
        ConfigError, match="a column cents, from which Cents differs in case alone; give it th"
    ):
        check_kinds("t", known, {"Cents": "int"})
