"""The syntax tree of an SQL92 filter: its conditions and values, and what "unknown" (SQL's NULL) means in it.

    Condition    And · Or · Not · Truth · Comparison · IsNull · In · TextTest      True, False or unknown
    Value        Property · Literal · Negated, and every condition

Unknown is what SQL calls NULL, and Python None. Two notations have no nodes of their own:
`a BETWEEN 1 AND 2` is `a >= 1 AND a <= 2`, and `a <> 1` is `NOT (a = 1)`.

Upstream: filter/expression.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum


class Type(Enum):
    """The type of a value: Java's, because it decides how a text is compared with it."""

    TEXT = "String"
    INTEGER = "Integer"
    LONG = "Long"
    DOUBLE = "Double"
    BOOLEAN = "Boolean"
    NULL = "null"


NUMBERS = frozenset({Type.INTEGER, Type.LONG, Type.DOUBLE})


class Order(Enum):
    """A comparison operator."""

    EQUAL = "="
    LESS = "<"
    LESS_OR_EQUAL = "<="
    GREATER = ">"
    GREATER_OR_EQUAL = ">="


class Part(Enum):
    """The place where a text must occur in another."""

    CONTAINS = "CONTAINS"
    STARTSWITH = "STARTSWITH"
    ENDSWITH = "ENDSWITH"


@dataclass(frozen=True, slots=True)
class Property:
    """A message's property: a text, or unknown if it is missing."""

    name: str


@dataclass(frozen=True, slots=True)
class Literal:
    """A value in the expression itself."""

    value: str | int | float | bool | None
    type: Type


@dataclass(frozen=True, slots=True)
class Negated:
    """A negated number; unknown for anything else. Properties are texts, so `-a` is unknown as well."""

    value: "Value"


@dataclass(frozen=True, slots=True)
class Truth:
    """A property used as a condition: it is a text and therefore false, or unknown."""

    property: Property


@dataclass(frozen=True, slots=True)
class Not:
    """The negation of a condition; unknown for unknown."""

    condition: "Condition"


@dataclass(frozen=True, slots=True)
class And:
    """Conditions that must all be true."""

    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Or:
    """Conditions at least one of which must be true."""

    conditions: tuple["Condition", ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two values."""

    order: Order
    left: "Value"
    right: "Value"


@dataclass(frozen=True, slots=True)
class IsNull:
    """The test whether a value is unknown; never unknown itself."""

    value: "Value"


@dataclass(frozen=True, slots=True)
class In:
    """A test whether a property equals one of several texts; unknown if it is missing."""

    property: Property
    texts: tuple[str, ...]
    is_negated: bool


@dataclass(frozen=True, slots=True)
class TextTest:
    """The test whether a text has a part; false without a text or with an empty part, negated or not."""

    part: Part
    value: "Value"
    text: str
    is_negated: bool


Condition = And | Or | Not | Truth | Comparison | IsNull | In | TextTest | Literal
Value = Property | Negated | Condition


def names_in(value: Value) -> Iterator[str]:
    """Yield the name of each property lookup, repeated ones included."""
    match value:
        case Property(name):
            yield name
        case And(parts) | Or(parts):
            for part in parts:
                yield from names_in(part)
        case Comparison(_, left, right):
            yield from names_in(left)
            yield from names_in(right)
        case Not(inner) | Negated(inner) | Truth(inner) | IsNull(inner) | In(inner) | TextTest(_, inner):
            yield from names_in(inner)
        case Literal():
            return
