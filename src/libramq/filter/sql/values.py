"""Values of SQL92 filters: how a text is read as a number (as Java does), how numbers are compared, and what
a text that is none leads to.

A property is a text. It is read as the type of the number that it is compared with: beside `3` as an Integer,
which `2.5` and `3000000000` are not; beside `3.0` as a Double. A text that is no such number makes the whole
filter false, as it raises an exception in Apache's broker.

Upstream: ComparisonExpression.__compare; Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from libramq.filter.sql.tree import Type

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
#: Any number of fewer digits is an Integer.
_SHORT_LENGTH: Final = 10
_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = b"0123456789."
#: Without alternatives that overlap: matching takes time in proportion to the length.
_DOUBLE: Final = re.compile(
    rb"[\0-\x20]*([+-]?(?:NaN|Infinity|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?[\0-\x20]*"
)


def java_integer(text: bytes) -> int:
    """Return the Integer that a text is; raises ValueError."""
    if len(text) < _SHORT_LENGTH and text.isdigit():  # Nearly all of them.
        return int(text)
    return _whole(text, INT32_MAX)


def java_long(text: bytes) -> int:
    """Return the Long that a text is; raises ValueError."""
    if len(text) < _SHORT_LENGTH and text.isdigit():
        return int(text)
    return _whole(text, INT64_MAX)


def _whole(text: bytes, largest: int) -> int:
    characters = text.decode()
    if _WHOLE.fullmatch(characters) is None:  # Python's int also takes blanks and underscores.
        raise ValueError("not a whole number")
    number = int(characters)
    if not -largest - 1 <= number <= largest:
        raise ValueError("too large")
    return number


def java_double(text: bytes) -> float:
    """Return the Double that a text is; raises ValueError."""
    if not text.translate(None, _DECIMAL):  # Nearly all of them, in a third of the time.
        return float(text)
    match = _DOUBLE.fullmatch(text)  # Python's float also takes underscores and other names of infinity.
    if match is None:
        raise ValueError("not a number")
    return float(match[1])


def java_boolean(text: bytes) -> bool:
    """Return the Boolean that a text is: true, in any case, or false."""
    return text.lower() == b"true"


READ: Final[Mapping[Type, Callable[[bytes], int | float | bool]]] = {
    Type.INTEGER: java_integer,
    Type.LONG: java_long,
    Type.DOUBLE: java_double,
    Type.BOOLEAN: java_boolean,
}


def compare_doubles(left: float, right: float) -> int:
    """Return a number below, equal to or above 0. By Java's order, -0.0 < 0.0 and NaN is the largest."""
    if left < right:
        return -1
    if left > right:
        return 1
    return _rank(left) - _rank(right) if left == 0 or left != right else 0


def _rank(number: float) -> int:
    if number != number:
        return 2
    return 0 if number or math.copysign(1, number) > 0 else -1


def compare_numbers(left: float, right: float) -> int:
    """Compare two numbers: whole ones exactly, others as Doubles."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return compare_doubles(float(left), float(right))


def as_int32_or_int64(digits: str) -> tuple[int, Type] | None:
    """Return a whole number with its type; None if it is beyond a Long."""
    if len(digits) > len(str(INT64_MAX)):
        return None
    number = int(digits)
    if number > INT64_MAX:
        return None
    return number, Type.INTEGER if number <= INT32_MAX else Type.LONG
