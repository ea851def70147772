"""Plain JSON: documents whose members are texts, whole numbers and truth values, encoded in C.

In these the dialect of `fastjson` and standard JSON are the same: members sorted by name, null members
omitted. It takes a tenth of the time; whatever is not plain is left to the writer of the dialect.
"""

import functools
from typing import Any, Final

import msgspec

_encode: Final = msgspec.json.Encoder(order="sorted").encode
#: The end of a member that is null, or, after a backslash, of something within a text.
_NULL: Final = b'":null'
_COMMA: Final = ord(",")


def encode_plain(value: Any, made_of: type[Any] | None = None) -> bytes | None:
    """Return a typed value as JSON; None if its type has other than plain members.

    made_of: the type of which `msgspec.to_builtins` made the value.
    """
    kind, key = (type(value), str) if made_of is None else (made_of, int)
    if not issubclass(kind, msgspec.Struct) or not _is_plain(kind, key):
        return None
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None  # The other writer takes it, or reports it.
    return _without_nulls(data) if _NULL in data else data


def _without_nulls(data: bytes) -> bytes | None:
    """Leave out null members; None if a name is not of ASCII letters, or the match is within a text.

    Within a text a quote has a backslash before it.
    """
    parts, start, end = [], 0, data.find(_NULL)
    while end >= 0:
        name = data.rfind(b'"', start, end)
        if name < 1 or data[name - 1] not in b"{," or not data[name + 1 : end].isalpha():
            return None
        after = end + len(_NULL)
        if name > start and data[name - 1] == _COMMA:
            name -= 1
        elif data[after] == _COMMA:  # It is the first member that is left.
            after += 1
        parts.append(data[start:name])
        start, end = after, data.find(_NULL, after)
    parts.append(data[start:])
    return b"".join(parts)


@functools.cache
def _is_plain(kind: type[Any], key: type[Any]) -> bool:
    """Return whether a type has plain members only. key: of its maps; int: as builtins."""
    from msgspec import inspect

    keys = (inspect.StrType, inspect.IntType) if key is int else (inspect.StrType,)
    seen: set[type[Any]] = set()

    def is_plain(info: inspect.Type) -> bool:
        match info:
            case inspect.StrType() | inspect.IntType() | inspect.BoolType() | inspect.NoneType():
                return True
            case inspect.AnyType():  # Of builtins; at worst a fraction's exponent is written in another way.
                return key is int
            case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item):
                return is_plain(item)
            case inspect.UnionType(types=types):
                return all(is_plain(each) for each in types)
            case inspect.DictType(key_type=name, value_type=member):
                return isinstance(name, keys) and is_plain(member)
            case inspect.StructType(cls=struct, fields=fields, tag=None, array_like=False):
                known = struct in seen
                seen.add(struct)
                return known or all(is_plain(field.type) for field in fields)
        return False

    return is_plain(inspect.type_info(kind))
