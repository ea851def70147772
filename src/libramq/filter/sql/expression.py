"""The SQL92 filter: a condition compiled to functions of a message's properties; the cache of parsed filters.

    a > 3 AND (region IN ('eu', 'us') OR vip IS NOT NULL) AND name NOT CONTAINS 'test'

The tree becomes nested functions of a message's stored properties. The types of values are resolved once, at
compile time; the functions that run for each message only read, convert and compare. The properties come with
a separator (0x02) before and after them, so that one search finds a name and one the end of its value. Values
stay bytes: their UTF-8 is equal, or contained, exactly if their text is.

A test returns None for unknown, and raises ValueError where Apache's would raise: the filter is then false.

Upstream: filter/SqlFilter.java.
"""

import math
import operator
from collections.abc import Callable, Sequence
from threading import Lock
from typing import Any, Final

from libramq.errors import ConfigError
from libramq.filter.sql import tree
from libramq.filter.sql.parser import SqlFault, parse
from libramq.filter.sql.values import READ, compare_doubles, compare_numbers, java_double

#: ExpressionType.SQL92.
SQL92: Final = "SQL92"
#: SelectorParser.PARSE_CACHE; faulty expressions are cached as well.
PARSED_MAX: Final = 100
#: Ours: a lookup in 32 KB of properties takes 25 µs, and an expression may have 256. For more than a few
#: lookups in long properties, these are first reduced to the ones that it names, in 400 µs at most.
FEW_LOOKUPS: Final = 8
LONG_BYTES: Final = 1024

#: The last expressions, with their filters or faults. Threads parse as well.
_PARSED: Final[dict[str, "SqlFilter | str"]] = {}
_LOCK: Final = Lock()

Test = Callable[[bytes], bool | None]
#: Reads a value from properties: bytes for a text, otherwise a Python value.
Get = Callable[[bytes], Any]
Compare = Callable[[Any, Any], bool]

_OPERATORS: Final[dict[tree.Order, Compare]] = {
    tree.Order.EQUAL: operator.eq,
    tree.Order.LESS: operator.lt,
    tree.Order.LESS_OR_EQUAL: operator.le,
    tree.Order.GREATER: operator.gt,
    tree.Order.GREATER_OR_EQUAL: operator.ge,
}
_PARTS: Final[dict[tree.Part, Callable[[bytes, bytes], bool]]] = {
    tree.Part.CONTAINS: operator.contains,
    tree.Part.STARTSWITH: bytes.startswith,
    tree.Part.ENDSWITH: bytes.endswith,
}


class SqlFilter:
    """A parsed expression. Equal expressions share one filter while it is in the cache."""

    __slots__ = ("_names", "_test", "expression", "weight")

    def __init__(self, expression: str, test: Test, names: Sequence[str]) -> None:
        self.expression = expression
        self._test = test
        self._names = frozenset(name.encode() for name in names)
        self.weight = len(names)

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these stored properties matches; unknown and errors do not."""
        if self.weight > FEW_LOOKUPS and len(properties) > LONG_BYTES:
            properties = self._named_in(properties)
        try:
            return self._test(b"\x02%b\x02" % properties) is True
        except ValueError:  # A number was compared with a text that is not one.
            return False

    def _named_in(self, properties: bytes) -> bytes:
        """Return the properties that the expression names, in order, as the first of a name counts."""
        names = self._names
        return b"\x02".join([
            pair for pair in properties.split(b"\x02") if pair.partition(b"\x01")[0] in names
        ])  # fmt: skip


def parse_sql(expression: str) -> SqlFilter:
    """Parse an expression; raises ConfigError, naming the column of the fault."""
    if not isinstance(expression, str):
        raise ConfigError(f"an SQL92 expression is a text such as 'a > 3', not {expression!r}")
    with _LOCK:
        parsed = _PARSED.pop(expression, None)
    if parsed is None:
        parsed = _parse(expression)
    with _LOCK:
        _PARSED[expression] = parsed
        if len(_PARSED) > PARSED_MAX:
            del _PARSED[next(iter(_PARSED))]
    if isinstance(parsed, str):
        raise SqlFault(parsed)
    return parsed


def is_parsed(expression: str) -> bool:
    """Return whether an expression is in the cache."""
    return expression in _PARSED


def _parse(expression: str) -> SqlFilter | str:
    try:
        condition = parse(expression)
    except SqlFault as fault:
        return str(fault)
    return SqlFilter(expression, compile_condition(condition), tuple(tree.names_in(condition)))


def compile_condition(condition: tree.Condition) -> Test:
    """Compile a condition to a function."""
    match condition:
        case tree.And(conditions):
            return _all([compile_condition(part) for part in conditions])
        case tree.Or(conditions):
            return _any([compile_condition(part) for part in conditions])
        case tree.Not(inner):
            return _not(compile_condition(inner))
        case tree.Truth(property_):
            get = _property(property_.name)
            return lambda data: None if get(data) is None else False
        case tree.Comparison():
            return _comparison(condition)
        case tree.IsNull(value):
            get = _getter(value)
            return lambda data: get(data) is None
        case tree.In():
            return _in(condition)
        case tree.TextTest():
            return _text_test(condition)
        case tree.Literal(value):
            constant = value if value is None else value is True
            return lambda _: constant


def _all(tests: list[Test]) -> Test:
    def all_are_true(data: bytes) -> bool | None:
        result: bool | None = True
        for test in tests:
            found = test(data)
            if found is False:
                return False
            if found is None:
                result = None
        return result

    return all_are_true


def _any(tests: list[Test]) -> Test:
    def one_is_true(data: bytes) -> bool | None:
        result: bool | None = False
        for test in tests:
            found = test(data)
            if found:
                return True
            if found is None:
                result = None
        return result

    return one_is_true


def _not(test: Test) -> Test:
    def is_not(data: bytes) -> bool | None:
        found = test(data)
        return None if found is None else not found

    return is_not


def _comparison(comparison: tree.Comparison) -> Test:
    order, left, right = comparison.order, comparison.left, comparison.right
    types = type_of(left), type_of(right)
    compare = _compare(order, *types)
    if isinstance(left, tree.Property) and isinstance(right, tree.Literal):  # Nearly all comparisons.
        return _property_and_literal(left.name, _constant(right), order, types[1], compare)
    get_left, get_right = _getter(left), _getter(right)
    is_equality = order is tree.Order.EQUAL

    def compared(data: bytes) -> bool | None:
        left_value = get_left(data)
        if left_value is None and not is_equality:
            return None
        right_value = get_right(data)
        if left_value is None:  # Upstream: two unknowns are equal, and a known value differs from an unknown.
            return True if right_value is None else None
        if right_value is None:
            return False if is_equality else None
        return compare(left_value, right_value)

    return compared


def _property_and_literal(
    name: str, constant: Any, order: tree.Order, type_: tree.Type, compare: Compare
) -> Test:
    """Return the test of a property against a non-null value."""
    key = _key(name)
    size = len(key)
    if type_ in (tree.Type.INTEGER, tree.Type.LONG):
        read, compare = READ[type_], _OPERATORS[order]

        def number_compared(data: bytes) -> bool | None:
            at = data.find(key) + size
            if at < size:
                return None
            text = data[at : data.find(b"\x02", at)]
            return compare(read(text), constant) if text else None

        return number_compared

    if type_ is tree.Type.DOUBLE and constant:  # Zeros are ordered differently.
        compare = _OPERATORS[order]

        def fraction_compared(data: bytes) -> bool | None:
            at = data.find(key) + size
            if at < size:
                return None
            text = data[at : data.find(b"\x02", at)]
            if not text:
                return None
            number = java_double(text)  # In Java, NaN is the largest number.
            return compare(number if number == number else math.inf, constant)

        return fraction_compared

    def compared(data: bytes) -> bool | None:
        at = data.find(key) + size
        if at < size:
            return None
        text = data[at : data.find(b"\x02", at)]
        return compare(text, constant) if text else None

    return compared


def _in(test: tree.In) -> Test:
    get = _property(test.property.name)
    texts = frozenset(map(_encode, test.texts))
    is_negated = test.is_negated

    def is_in(data: bytes) -> bool | None:
        text = get(data)
        return None if text is None else (text in texts) is not is_negated

    return is_in


def _text_test(test: tree.TextTest) -> Test:
    part, is_negated = _encode(test.text), test.is_negated
    if not part:
        return lambda _: False
    get = _getter(test.value)
    if type_of(test.value) is not tree.Type.TEXT:

        def is_no_text(data: bytes) -> bool:
            get(data)  # It may raise.
            return False

        return is_no_text
    has = _PARTS[test.part]

    def has_part(data: bytes) -> bool:
        text = get(data)
        return text is not None and has(text, part) is not is_negated

    return has_part


# Values.


def type_of(value: tree.Value) -> tree.Type:
    """Return the type that a value always has unless it is unknown."""
    match value:
        case tree.Property():
            return tree.Type.TEXT
        case tree.Literal():
            return value.type
        case tree.Negated(inner):
            type_ = type_of(inner)
            return type_ if type_ in tree.NUMBERS else tree.Type.NULL
        case _:
            return tree.Type.BOOLEAN


def _getter(value: tree.Value) -> Get:
    match value:
        case tree.Property(name):
            return _property(name)
        case tree.Literal():
            constant = _constant(value)
            return lambda _: constant
        case tree.Negated(inner):
            return _negated(inner)
        case _:
            return compile_condition(value)


def _negated(value: tree.Value) -> Get:
    get = _getter(value)
    if type_of(value) not in tree.NUMBERS:

        def unknown(data: bytes) -> None:
            get(data)  # It may raise.

        return unknown
    constant = -get(b"")  # Numbers occur only in literals.
    return lambda _: constant


def _property(name: str) -> Callable[[bytes], bytes | None]:
    key = _key(name)
    size = len(key)

    def get(data: bytes) -> bytes | None:
        at = data.find(key) + size
        if at < size:
            return None
        return data[at : data.find(b"\x02", at)] or None

    return get


def _key(name: str) -> bytes:
    return b"\x02%b\x01" % name.encode()


def _constant(literal: tree.Literal) -> Any:
    return _encode(literal.value) if isinstance(literal.value, str) else literal.value


def _encode(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _compare(order: tree.Order, left: tree.Type, right: tree.Type) -> Compare:
    """Return the comparison of two known values of these types."""
    test = _OPERATORS[order]
    if left is tree.Type.TEXT and right is tree.Type.TEXT:
        if order is tree.Order.EQUAL:
            return test
        return lambda text, other: test(compare_doubles(java_double(text), java_double(other)), 0)
    if left is tree.Type.TEXT and right in READ:
        read_left = READ[right]
        return lambda text, value: test(compare_numbers(read_left(text), value), 0)
    if left in tree.NUMBERS and right is tree.Type.TEXT:
        read_right = READ[left]
        return lambda value, text: test(compare_numbers(value, read_right(text)), 0)
    if left is tree.Type.BOOLEAN and right is tree.Type.TEXT:
        return _incomparable
    if left is right is tree.Type.BOOLEAN or (left in tree.NUMBERS and right in tree.NUMBERS):
        return lambda value, other: test(compare_numbers(value, other), 0)
    return lambda _value, _other: False  # A number and a Boolean.


def _incomparable(_left: Any, _right: Any) -> bool:
    raise ValueError("a condition on the left of a text")
