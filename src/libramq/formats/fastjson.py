"""The JSON dialect of RocketMQ's bodies and config files (fastjson 1.2): unquoted keys, objects as keys,
references; and limits of depth and size.

Integer keys of maps are unquoted ({0:"10.0.0.1:10911"}), maps keyed by MessageQueue have whole objects as
keys ({{"brokerName":"b","queueId":0,"topic":"t"}:5}), null members are omitted, members are sorted by name,
repeated references may be written {"$ref":"…"}.

Standard JSON is a subset of the dialect and is decoded fast. Upstream: RemotingSerializable.java.
"""

import functools
import json
import re
from typing import Any, Final, NamedTuple

import msgspec

from libramq.errors import RemoteProtocolError
from libramq.message.queue import MessageQueue

#: Ours: no RocketMQ document is nested deeper than a dozen levels.
DEPTH_MAX: Final = 64
#: Ours: the most values that references may add, because a few references could otherwise multiply endlessly.
REFERENCED_VALUES_MAX: Final = 100_000
#: Ours: a path has at most DEPTH_MAX names, and RocketMQ's member names have some ten characters.
REFERENCE_CHARACTERS_MAX: Final = 1024

_SPACE = re.compile(r"[ \t\r\n]*")
_NUMBER = re.compile(r"-?\d+(\.\d+)?([eE][+-]?\d+)?")
_LITERAL = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")
_LITERALS: Final[dict[str, Any]] = {"true": True, "false": False, "null": None}
_QUEUE_MEMBERS: Final = {"brokerName", "queueId", "topic"}
#: Created once: `json.dumps` would create an encoder for every call with options.
_scalar: Final = json.JSONEncoder(ensure_ascii=False).encode
_text: Final = json.encoder.encode_basestring
_PLAIN: Final = {quote: re.compile(rf"[^{quote}\\\\]*") for quote in "'\""}
#: Ours: counting this many bytes takes 0.1 ms.
_COUNTED_BYTES: Final = 64 * 1024
#: The only ASCII character without a short escape that Python escapes but other encoders do not.
_DELETE: Final = b"\x7f"
_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "v": "\v", "0": "\0"}


class Bounds(NamedTuple):
    """The limits of an untrusted text, in marks: commas, colons and opening brackets.

    Marks are counted before decoding. A value has at least one mark, a member of an object two; marks in
    strings also count. loose_marks, loose_bytes: the limits for text that is not standard JSON, whose
    decoding takes fifty times as long.
    """

    marks: int
    loose_marks: int
    loose_bytes: int


def count_marks(data: bytes, most: int) -> int:
    """Return the number of commas, colons and opening brackets in a text; stop early above `most`.

    Counts in parts: 4 MiB in one call would block the event loop's thread for 10 ms.
    """
    marks = 0
    for start in range(0, len(data), _COUNTED_BYTES):
        part = data[start : start + _COUNTED_BYTES]
        marks += len(part) - len(part.translate(None, b",:[{"))
        if marks > most:
            break
    return marks


def is_standard(data: bytes) -> bool:
    """Return whether a text is standard JSON, which is decoded fast."""
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False
    return True


def loads(data: bytes | str, bounds: Bounds | None = None) -> Any:
    """Decode a value. Integer keys become int; keys that are message queues become MessageQueue.

    Raises RemoteProtocolError for text that is not JSON in either dialect or exceeds the bounds.
    """
    marks = 0
    if bounds is not None and isinstance(data, bytes):
        marks = count_marks(data, bounds.marks)
        if marks > bounds.marks:
            raise RemoteProtocolError(f"JSON body with over {bounds.marks} commas, colons and brackets")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        pass  # The dialect's reader reports the error.
    if bounds is not None and (marks > bounds.loose_marks or len(data) > bounds.loose_bytes):
        raise RemoteProtocolError(
            f"JSON body of {len(data)} bytes with {marks} commas, colons and brackets that is not standard"
            f" JSON; {bounds.loose_bytes} and {bounds.loose_marks} are allowed"
        )
    try:
        text = data.decode() if isinstance(data, bytes) else data
        return _Reader(text).read_document()
    except UnicodeDecodeError as error:
        raise RemoteProtocolError(f"JSON body: {error}") from None
    except IndexError:
        raise RemoteProtocolError("JSON body: it ends within a string") from None


def dumps(value: Any, *, indent: bool = False) -> bytes:
    """Encode a value in the dialect; with `indent`, as in the config files."""
    parts: list[str] = []
    _write(value, parts, 0 if indent else -1)
    return "".join(parts).encode()


def dumps_standard(value: Any) -> bytes:
    """Encode a value as standard JSON: quoted and sorted keys, ASCII only (ClientRequestProcessor.java)."""
    plain = msgspec.to_builtins(value, str_keys=True)
    if (data := encode_plain(plain, type(value))) is not None and data.isascii() and _DELETE not in data:
        return data
    return json.dumps(
        _without_nulls(plain), sort_keys=True, separators=(",", ":"), ensure_ascii=True
    ).encode()


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_nulls(element) for element in value]
    return value


def _write(value: Any, parts: list[str], depth: int) -> None:
    # Most values are strings, integers and booleans, handled first: an encoder takes 9 µs for each.
    if type(value) is str:
        parts.append(_text(value))
    elif type(value) is int:
        parts.append(repr(value))
    elif type(value) is bool:
        parts.append("true" if value else "false")
    elif isinstance(value, dict):
        items = [(key, member) for key, member in value.items() if member is not None]
        if len(items) > 1 and all(isinstance(key, str) for key, _ in items):
            items.sort()
        _write_items(items, parts, depth)
    elif isinstance(value, msgspec.Struct):
        _write_struct(value, parts, depth)
    elif isinstance(value, MessageQueue):
        _write(_queue_members(value), parts, depth)
    elif isinstance(value, list | tuple | set | frozenset):
        parts.append("[")
        for index, element in enumerate(value):
            if index:
                parts.append(",")
            _write(element, parts, depth)
        parts.append("]")
    else:
        parts.append(_scalar(value))


def _write_items(items: list[tuple[Any, Any]], parts: list[str], depth: int) -> None:
    inner = depth + 1 if depth >= 0 else -1
    parts.append("{")
    for index, (key, member) in enumerate(items):
        if index:
            parts.append(",")
        if depth >= 0:
            parts.append("\n" + "\t" * inner)
        if isinstance(key, MessageQueue):
            _write(_queue_members(key), parts, -1)
        else:
            parts.append(_text(key) if type(key) is str else _scalar(key))
        parts.append(":")
        _write(member, parts, inner)
    if depth >= 0 and items:
        parts.append("\n" + "\t" * depth)
    parts.append("}")


def _write_struct(value: msgspec.Struct, parts: list[str], depth: int) -> None:
    """Encode a typed value in the same way as `_write_items`; most written values are typed."""
    inner = depth + 1 if depth >= 0 else -1
    before = "{" if depth < 0 else "{\n" + "\t" * inner
    between = "," if depth < 0 else ",\n" + "\t" * inner
    is_empty = True
    for name, field in _members(type(value)):
        member = getattr(value, field)
        if member is None:
            continue
        parts.append(before)
        parts.append(name)
        if type(member) is str:
            parts.append(_text(member))
        elif type(member) is int:
            parts.append(repr(member))
        else:
            _write(member, parts, inner)
        before, is_empty = between, False
    if is_empty:
        parts.append("{")
    elif depth >= 0:
        parts.append("\n" + "\t" * depth)
    parts.append("}")


@functools.cache
def _members(kind: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    """Return the members of a type in order: (name and colon, field)."""
    names = zip(kind.__struct_encode_fields__, kind.__struct_fields__, strict=True)
    return tuple((f"{_text(name)}:", field) for name, field in sorted(names))


def _queue_members(queue: MessageQueue) -> dict[str, Any]:
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


class _Reader:
    """A reader of the dialect: numbers and objects as keys, single quotes, references."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._position = 0
        self._root: Any = None
        self._referenced_values = 0
        self._followed: dict[str, Any] = {}

    def read_document(self) -> Any:
        value = self._value(0)
        self._skip()
        if self._position != len(self._text):
            raise self._error("text after the end")
        if '"$ref"' not in self._text:
            return value
        self._root = value
        return self._resolve(value, 0, referenced=False)

    def _error(self, what: str) -> RemoteProtocolError:
        return RemoteProtocolError(f"JSON body: {what} at character {self._position}")

    def _skip(self) -> str:
        """Skip white space; return the next character, or '' at the end."""
        match = _SPACE.match(self._text, self._position)
        assert match is not None
        self._position = match.end()
        return self._text[self._position : self._position + 1]

    def _value(self, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise self._error(f"nested deeper than {DEPTH_MAX}")
        first = self._skip()
        if first == "{":
            return self._object(depth)
        if first == "[":
            return self._array(depth)
        if first in ("'", '"') and first:
            return self._string(first)
        if (match := _NUMBER.match(self._text, self._position)) is not None:
            return self._number(match)
        match = _LITERAL.match(self._text, self._position)
        if match is None or match.group() not in _LITERALS:
            raise self._error("no value")
        self._position = match.end()
        return _LITERALS[match.group()]

    def _number(self, match: re.Match[str]) -> int | float:
        self._position = match.end()
        try:
            return float(match.group()) if match.group(1) or match.group(2) else int(match.group())
        except ValueError:  # int() refuses more digits than sys.get_int_max_str_digits().
            raise self._error("a number too long") from None

    def _key(self, depth: int) -> Any:
        match = _LITERAL.match(self._text, self._position)
        if match is not None:
            self._position = match.end()
            return match.group()
        key = self._value(depth)
        if isinstance(key, dict):
            if key.keys() == _QUEUE_MEMBERS and isinstance(key["queueId"], int):
                return MessageQueue(str(key["topic"]), str(key["brokerName"]), key["queueId"])
            try:
                return json.dumps(key, sort_keys=True)
            except TypeError:  # Some nested keys have different types or are queues.
                raise self._error("an object as a key that has other keys than strings") from None
        if isinstance(key, list):
            raise self._error("an array as a key")
        return key

    def _object(self, depth: int) -> dict[Any, Any]:
        self._position += 1
        members: dict[Any, Any] = {}
        if self._skip() == "}":
            self._position += 1
            return members
        while True:
            self._skip()
            key = self._key(depth + 1)
            self._expect(":")
            members[key] = self._value(depth + 1)
            if self._expect(",}") == "}":
                return members

    def _array(self, depth: int) -> list[Any]:
        self._position += 1
        elements: list[Any] = []
        if self._skip() == "]":
            self._position += 1
            return elements
        while True:
            elements.append(self._value(depth + 1))
            if self._expect(",]") == "]":
                return elements

    def _expect(self, characters: str) -> str:
        found = self._skip()
        if not found or found not in characters:
            raise self._error(f"expected one of {characters!r}")
        self._position += 1
        return found

    def _string(self, quote: str) -> str:
        self._position += 1
        parts: list[str] = []
        while True:
            match = _PLAIN[quote].match(self._text, self._position)
            assert match is not None
            parts.append(match.group())
            self._position = match.end() + 1
            if self._text[match.end()] == quote:
                break
            parts.append(self._escape())
        # Java writes characters outside the basic plane as two escapes.
        return "".join(parts).encode("utf-16", "surrogatepass").decode("utf-16", "replace")

    def _escape(self) -> str:
        character = self._text[self._position]
        self._position += 1
        digits = {"u": 4, "x": 2}.get(character)
        if digits is None:
            return _ESCAPES.get(character, character)
        code = self._text[self._position : self._position + digits]
        self._position += digits
        try:
            return chr(int(code, 16))
        except ValueError:
            raise self._error(f"\\{character}{code} is no character") from None

    def _resolve(self, value: Any, depth: int, *, referenced: bool) -> Any:
        """Replace {"$ref":"$.a.b[0]"} with the value it refers to."""
        if depth > DEPTH_MAX:
            raise self._error("references in a circle")
        self._referenced_values += referenced
        if self._referenced_values > REFERENCED_VALUES_MAX:
            raise self._error(f"references to over {REFERENCED_VALUES_MAX} values")
        if isinstance(value, dict):
            if value.keys() == {"$ref"} and isinstance(value["$ref"], str):
                return self._resolve(self._follow(value["$ref"]), depth + 1, referenced=True)
            return {
                key: self._resolve(member, depth + 1, referenced=referenced) for key, member in value.items()
            }
        if isinstance(value, list):
            return [self._resolve(element, depth + 1, referenced=referenced) for element in value]
        return value

    def _follow(self, path: str) -> Any:
        if path in self._followed:  # Many references may share a long path.
            return self._followed[path]
        if len(path) > REFERENCE_CHARACTERS_MAX:
            raise self._error(f"a reference of over {REFERENCE_CHARACTERS_MAX} characters")
        value = self._root
        for name, index in re.findall(r"\.([A-Za-z0-9_$-]+)|\[(\d+)\]", path):
            try:
                value = value[name] if name else value[int(index)]
            except (KeyError, TypeError):
                raise self._error(f"reference {path} leads nowhere") from None
        self._followed[path] = value
        return value


_encode: Final = msgspec.json.Encoder(order="sorted").encode
#: The end of a null member's name and its value; after a backslash, part of a string.
_NULL: Final = b'":null'
_COMMA: Final = ord(",")


def encode_plain(value: Any, made_of: type[Any] | None = None) -> bytes | None:
    """Return a typed value as JSON, encoded in C; None if its type has members that are not plain.

    Plain members are strings, integers and booleans. For these, the dialect is standard JSON with members
    sorted by name and null members omitted. This takes a tenth of the time.

    made_of: the type from which `msgspec.to_builtins` made the value.
    """
    kind, key = (type(value), str) if made_of is None else (made_of, int)
    if not issubclass(kind, msgspec.Struct) or not _is_plain(kind, key):
        return None
    try:
        data = _encode(value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        return None  # The dialect's writer encodes it or reports the error.
    return _without_null_members(data) if _NULL in data else data


def _without_null_members(data: bytes) -> bytes | None:
    """Remove null members; None if a name has other than ASCII letters, or a match may be inside a string.

    Inside a string, a quote follows a backslash.
    """
    parts, start, end = [], 0, data.find(_NULL)
    while end >= 0:
        name = data.rfind(b'"', start, end)
        if name < 1 or data[name - 1] not in b"{," or not data[name + 1 : end].isalpha():
            return None
        after = end + len(_NULL)
        if name > start and data[name - 1] == _COMMA:
            name -= 1
        elif data[after] == _COMMA:  # It would be the first remaining member.
            after += 1
        parts.append(data[start:name])
        start, end = after, data.find(_NULL, after)
    parts.append(data[start:])
    return b"".join(parts)


@functools.cache
def _is_plain(kind: type[Any], key: type[Any]) -> bool:
    """Return whether a type has only plain members. key: the key type of its maps; int: also for builtins."""
    from msgspec import inspect

    keys = (inspect.StrType, inspect.IntType) if key is int else (inspect.StrType,)
    seen: set[type[Any]] = set()

    def is_plain(info: inspect.Type) -> bool:
        match info:
            case inspect.StrType() | inspect.IntType() | inspect.BoolType() | inspect.NoneType():
                return True
            case inspect.AnyType():  # Only for builtins; at worst, a float's exponent looks different.
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
