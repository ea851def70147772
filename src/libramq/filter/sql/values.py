"""Values of SQL92 filters: how a text is read as a number (as in Java), how numbers are compared, and what
happens if a text is not a number.

A property is a text. It is read as the type of the number it is compared with: as an Integer if compared with
`3`, which `2.5` and `3000000000` are not; as a Double if compared with `3.0`. A text that is no such number
makes the whole filter false, because it raises an exception in Apache's broker.

Upstream: ComparisonExpression.__compare; Integer.valueOf, Long.valueOf, Double.valueOf, Double.compareTo.
"""

import math
import re
from collections.abc import Callable, Mapping
from typing import Final

from libramq.filter.sql.tree import Type

INT32_MAX: Final = (1 << 31) - 1
INT64_MAX: Final = (1 << 63) - 1
#: Any number with fewer digits is an Integer.
_SHORT_LENGTH: Final = 10
_WHOLE: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = b"0123456789."
#: Its alternatives do not overlap, so that matching takes time proportional to the length.
_DOUBLE: Final = re.compile(
    rb"[\0-\x20]*([+-]?(?:NaN|Infinity|(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][+-]?\d+)?))[fFdD]?[\0-\x20]*"
)


def java_integer(text: bytes) -> int:
    """Parse an Integer; raises ValueError."""
    if len(text) < _SHORT_LENGTH and text.isdigit():  # Nearly all texts.
        return int(text)
    return _whole(text, INT32_MAX)


def java_long(text: bytes) -> int:
    """Parse a Long; raises ValueError."""
    if len(text) < _SHORT_LENGTH and text.isdigit():
        return int(text)
    return _whole(text, INT64_MAX)


def _whole(text: bytes, largest: int) -> int:
    characters = text.decode()
    if _WHOLE.fullmatch(characters) is None:  # Python's int also accepts blanks and underscores.
        raise ValueError("not a whole number")
    number = int(characters)
    if not -largest - 1 <= number <= largest:
        raise ValueError("too large")
    return number


def java_double(text: bytes) -> float:
    """Parse a Double; raises ValueError."""
    if not text.translate(None, _DECIMAL):  # Nearly all texts, in a third of the time.
        return float(text)
    match = _DOUBLE.fullmatch(text)  # Python's float also accepts underscores and other names of infinity.
    if match is None:
        raise ValueError("not a number")
    return float(match[1])


def java_boolean(text: bytes) -> bool:
    """Parse a Boolean: `true` in any case is true, everything else is false."""
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
    """Compare two numbers: whole numbers exactly, others as Doubles."""
    if isinstance(left, int) and isinstance(right, int):
        return left - right
    return compare_doubles(float(left), float(right))


def as_int32_or_int64(digits: str) -> tuple[int, Type] | None:
    """Return a whole number with its type, or None if it exceeds a Long."""
    if len(digits) > len(str(INT64_MAX)):
        return None
    number = int(digits)
    if number > INT64_MAX:
        return None
    return number, Type.INTEGER if number <= INT32_MAX else Type.LONG
