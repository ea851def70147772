"""Protocol Buffers bodies: messages of a known type, decoded by Google's own library.

    bool int32 sint32 sfixed32            boolean int int int
    int64 sint64 sfixed64 uint32 fixed32  bigint
    uint64 fixed64                        decimal(20,0)
    float double string bytes             float double string binary
    enum                                  string: its name, or the number if it has none
    message repeated map                  struct array map
    google.protobuf.Timestamp             timestamp

Fields with presence (optional, oneof, messages) are null if missing; others have their default.
"""

import datetime
from collections.abc import Callable, Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Final

from pyspark.sql import types as t

from libramq.errors import ConfigError, needs_extra
from libramq.spark.bodies.decoded import BodyDecoder

_TIMESTAMP: Final = "google.protobuf.Timestamp"
# FieldDescriptor.TYPE_… by number.
_TYPES: Final[Mapping[int, t.DataType]] = {
    1: t.DoubleType(), 2: t.FloatType(), 3: t.LongType(), 4: t.DecimalType(20, 0), 5: t.IntegerType(),
    6: t.DecimalType(20, 0), 7: t.LongType(), 8: t.BooleanType(), 9: t.StringType(), 12: t.BinaryType(),
    13: t.LongType(), 14: t.StringType(), 15: t.IntegerType(), 16: t.LongType(), 17: t.IntegerType(),
    18: t.LongType(),
}  # fmt: skip
_UNSIGNED_64: Final = (4, 6)
_ENUM: Final = 14
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)

Convert = Callable[[Any], Any]


class ProtobufBodies(BodyDecoder):
    """Decodes messages of one type."""

    def __init__(self, descriptors: bytes, message: str) -> None:
        with needs_extra("Protocol Buffers", "formats"):
            import google.protobuf  # noqa: F401
        self._descriptors = descriptors
        self._message = message
        super().__init__(_type(self._class.DESCRIPTOR, ()))

    @cached_property
    def _class(self) -> Any:
        from google.protobuf import descriptor_pb2, descriptor_pool, message, message_factory

        pool = descriptor_pool.DescriptorPool()
        try:
            for file in descriptor_pb2.FileDescriptorSet.FromString(self._descriptors).file:
                pool.Add(file)
            return message_factory.GetMessageClass(pool.FindMessageTypeByName(self._message))
        except (message.DecodeError, TypeError) as error:
            raise ConfigError(
                f"from_message: no descriptor set (protoc --include_imports -o): {error}"
            ) from None
        except KeyError:
            raise ConfigError(f"from_message: the descriptor set has no message {self._message}") from None

    @cached_property
    def _convert(self) -> Convert:
        return _message_converter(self._class.DESCRIPTOR)

    def __getstate__(self) -> dict[str, Any]:
        return {name: self.__dict__[name] for name in ("_descriptors", "_message", "value_type")}

    def decode(self, body: bytes) -> Any:
        return self._convert(self._class.FromString(body))


def _type(descriptor: Any, outer: tuple[str, ...]) -> t.StructType:
    if descriptor.full_name in outer:
        raise ConfigError(f"from_message: {descriptor.full_name} contains itself, which a column cannot")
    within = (*outer, descriptor.full_name)
    return t.StructType(
        [t.StructField(field.name, _field_type(field, within)) for field in descriptor.fields]
    )


def _field_type(field: Any, outer: tuple[str, ...]) -> t.DataType:
    if _is_map(field):
        key, value = field.message_type.fields_by_name["key"], field.message_type.fields_by_name["value"]
        return t.MapType(_value_type(key, outer), _value_type(value, outer))
    kind = _value_type(field, outer)
    return t.ArrayType(kind) if field.is_repeated else kind


def _value_type(field: Any, outer: tuple[str, ...]) -> t.DataType:
    if field.message_type is None:
        return _TYPES[field.type]
    if field.message_type.full_name == _TIMESTAMP:
        return t.TimestampType()
    return _type(field.message_type, outer)


def _is_map(field: Any) -> bool:
    return field.message_type is not None and field.message_type.GetOptions().map_entry


def _message_converter(descriptor: Any) -> Convert:
    fields = [(field.name, field.has_presence, _field_converter(field)) for field in descriptor.fields]

    def convert(message: Any) -> dict[str, Any]:
        return {
            name: None if has_presence and not message.HasField(name) else read(getattr(message, name))
            for name, has_presence, read in fields
        }

    return convert


def _field_converter(field: Any) -> Convert:
    if _is_map(field):
        key = _value_converter(field.message_type.fields_by_name["key"])
        value = _value_converter(field.message_type.fields_by_name["value"])
        return lambda entries: [(key(name), value(entries[name])) for name in entries]
    convert = _value_converter(field)
    return (lambda values: [convert(value) for value in values]) if field.is_repeated else convert


def _value_converter(field: Any) -> Convert:
    if field.message_type is not None:
        if field.message_type.full_name == _TIMESTAMP:
            return lambda at: _EPOCH + datetime.timedelta(seconds=at.seconds, microseconds=at.nanos // 1000)
        return _message_converter(field.message_type)
    if field.type == _ENUM:
        names = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda number: names.get(number, str(number))
    return Decimal if field.type in _UNSIGNED_64 else lambda value: value
