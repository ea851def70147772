"""Bodies decoded in Python, as an Arrow array of `value` and `corrupt`."""

from typing import Any

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import BinaryType, DataType, StructField, StructType


class BodyDecoder:
    """Decodes a binary array; a plain value that can be sent to workers."""

    def __init__(self, value_type: DataType) -> None:
        self.value_type = value_type

    @property
    def spark_type(self) -> StructType:
        """Return the Spark type of a decoded body."""
        return StructType([StructField("value", self.value_type), StructField("corrupt", BinaryType())])

    def decode(self, body: bytes) -> Any:
        """Return the value of a body; invalid bytes may raise any exception."""
        raise NotImplementedError

    def __call__(self, bodies: pa.Array) -> pa.Array:
        """Decode each body; one that fails to decode or does not match the type is returned in `corrupt`."""
        encoded, kind = bodies.to_pylist(), to_arrow_type(self.value_type, timezone="UTC")
        values = [None if body is None else self._try(body) for body in encoded]
        try:
            column = pa.array(values, kind)
        except _MISFITS:
            values = [value if _fits(value, kind) else None for value in values]
            column = pa.array(values, kind)
        corrupt = [body if value is None else None for body, value in zip(encoded, values, strict=True)]
        return pa.StructArray.from_arrays(
            [column, pa.array(corrupt, pa.binary())],
            fields=[pa.field("value", kind), pa.field("corrupt", pa.binary())],
            mask=pa.array([body is None for body in encoded]),
        )

    def _try(self, body: bytes) -> Any:
        try:
            return self.decode(body)
        except Exception:  # A decoder may raise anything for invalid bytes.
            return None


_MISFITS = (pa.ArrowException, TypeError, ValueError, OverflowError)


def _fits(value: Any, kind: pa.DataType) -> bool:
    try:
        pa.array([value], kind)
    except _MISFITS:
        return False
    return True
