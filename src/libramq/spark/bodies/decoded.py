"""Decoded bodies as an Arrow array of `value` and `corrupt`, for decoders written in Python."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
from pyspark.sql.types import BinaryType, DataType, StructField, StructType


def decoded_type(value: DataType) -> StructType:
    """Return the Spark type of a decoded body."""
    return StructType([StructField("value", value), StructField("corrupt", BinaryType())])


def decoded(bodies: pa.Array, decode: Callable[[bytes], Any], kind: pa.DataType) -> pa.Array:
    """Decode each body; if that fails, or the value does not match, the body itself is in `corrupt`."""
    encoded = bodies.to_pylist()
    values = [None if body is None else _try(decode, body) for body in encoded]
    try:
        column = pa.array(values, kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        values = [value if _fits(value, kind) else None for value in values]
        column = pa.array(values, kind)
    corrupt = [body if value is None else None for body, value in zip(encoded, values, strict=True)]
    return pa.StructArray.from_arrays(
        [column, pa.array(corrupt, pa.binary())],
        fields=[pa.field("value", kind), pa.field("corrupt", pa.binary())],
        mask=pa.array([body is None for body in encoded]),
    )


def _try(decode: Callable[[bytes], Any], body: bytes) -> Any:
    try:
        return decode(body)
    except Exception:  # A decoder may raise anything for invalid bytes.
        return None


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):
        return False
    return True
