"""A direct evaluator of syntax trees, and random trees as text: the reference for compiled filters.

It works on a dict of strings, follows Apache's classes one by one, and favours plainness over speed.
"""

from hypothesis import strategies as st

from libramq.filter.sql.tree import (
    And,
    Comparison,
    In,
    IsNull,
    Literal,
    Negated,
    Not,
    Or,
    Order,
    Part,
    Property,
    TextTest,
    Truth,
    Type,
)


class Raised(Exception):
    """Apache's broker would have raised an exception."""


JAVA_TYPES = {Type.INTEGER, Type.LONG, Type.DOUBLE}


def value_of(node, properties):
    """Return the value of a node with its Java type; None for null."""
    match node:
        case Property(name):
            text = properties.get(name)
            return None if text is None else (Type.TEXT, text)
        case Literal(value, kind):
            return None if value is None else (kind, value)
        case Negated(inner):
            value = value_of(inner, properties)
            return (value[0], -value[1]) if value is not None and value[0] in JAVA_TYPES else None
        case _:
            found = holds(node, properties)
            return None if found is None else (Type.BOOLEAN, found)


def holds(node, properties):
    """Return whether a condition holds: True, False or None."""
    match node:
        case Literal(value):
            return value
        case And(conditions):
            return _and(conditions, properties)
        case Or(conditions):
            return _or(conditions, properties)
        case Not(inner):
            found = holds(inner, properties)
            return None if found is None else not found
        case Truth(inner):
            return None if value_of(inner, properties) is None else False
        case IsNull(inner):
            return value_of(inner, properties) is None
        case In(inner, texts, is_negated):
            value = value_of(inner, properties)
            return None if value is None else (value[1] in texts) != is_negated
        case TextTest(part, inner, text, is_negated):
            if not text:
                return False
            value = value_of(inner, properties)
            if value is None or value[0] is not Type.TEXT:
                return False
            found = {
                Part.CONTAINS: text in value[1],
                Part.STARTSWITH: value[1].startswith(text),
                Part.ENDSWITH: value[1].endswith(text),
            }[part]
            return found != is_negated
        case Comparison(Order.EQUAL, left, right):
            return _equal(value_of(left, properties), value_of(right, properties))
        case Comparison(order, left, right):
            return _ordered(order, left, right, properties)


def _and(conditions, properties):
    result = True
    for condition in conditions:
        found = holds(condition, properties)
        if found is False:
            return False
        result = result if found else None
    return result


def _or(conditions, properties):
    result = False
    for condition in conditions:
        found = holds(condition, properties)
        if found:
            return True
        result = None if found is None else result
    return result


def _equal(left, right):
    if left is None or right is None:
        return True if left is right else None if left is None else False
    if left == right:
        return True
    return _difference(left, right) == 0


def _ordered(order, left_node, right_node, properties):
    left = value_of(left_node, properties)
    if left is None:
        return None
    right = value_of(right_node, properties)
    if right is None:
        return None
    if left[0] is right[0] is Type.TEXT:
        left, right = (Type.DOUBLE, _read(Type.DOUBLE, left[1])), (Type.DOUBLE, _read(Type.DOUBLE, right[1]))
    difference = _difference(left, right)
    return {
        Order.LESS: difference < 0,
        Order.LESS_OR_EQUAL: difference <= 0,
        Order.GREATER: difference > 0,
        Order.GREATER_OR_EQUAL: difference >= 0,
    }[order]


def _difference(left, right):
    (left_type, a), (right_type, b) = left, right
    if left_type is not right_type:
        if left_type is Type.TEXT:
            a = _read(right_type, a)
        elif left_type is Type.BOOLEAN:
            if right_type is Type.TEXT:
                raise Raised
            return -1
        elif right_type is Type.TEXT:
            b = _read(left_type, b)
        elif right_type is Type.BOOLEAN:
            return -1
    return (a > b) - (a < b)


def _read(kind, text):
    if kind is Type.BOOLEAN:
        return text.lower() == "true"
    try:
        number = float(text) if kind is Type.DOUBLE else int(text)
    except ValueError:
        raise Raised from None
    if "_" in text or (kind is not Type.DOUBLE and text != text.strip()):
        raise Raised
    bits = {Type.INTEGER: 31, Type.LONG: 63, Type.DOUBLE: 2000}[kind]
    if kind is not Type.DOUBLE and not -(1 << bits) <= number < 1 << bits:
        raise Raised
    return number


def matches(tree, properties):
    """Return whether a message matches a tree."""
    try:
        return holds(tree, properties) is True
    except Raised:
        return False


NAMES = st.sampled_from(["a", "b", "c", "TAGS"])
#: Strings that are numbers, nearly numbers, booleans, and others.
TEXTS = st.sampled_from([
    "3", "-3", "+3", "03", "3.5", "4", "2147483648", "-2147483649", "9223372036854775808", "true", "TRUE",
    "x", "false", "axb", "it's", " 3", "3 ", "1_0", "ü", "*",
])  # fmt: skip
STRINGS = st.one_of(TEXTS, st.just("")).map(lambda text: "'" + text.replace("'", "''") + "'")
NUMBERS = st.sampled_from(["0", "3", "4", "10", "2147483647", "2147483648", "3L", "3.0", "3.5", ".5", "1e3"])


def _values(conditions):
    return st.one_of(
        NAMES, NUMBERS, STRINGS, st.sampled_from(["TRUE", "FALSE", "NULL", "-3", "-a", "- -3.5", "+4"]),
        conditions.map("({})".format),
    )  # fmt: skip


def _tests(values, conditions):
    numbers = st.one_of(NAMES, NUMBERS, NUMBERS.map("-{}".format))
    words = st.sampled_from(["CONTAINS", "not contains", "STARTSWITH", "NOT STARTSWITH", "Endswith"])
    lists = st.lists(STRINGS, min_size=1, max_size=4).map(", ".join).map("({})".format)
    junctions = st.tuples(conditions, st.sampled_from(["AND", "OR"]), conditions).map(" ".join)
    between = st.sampled_from(["BETWEEN", "NOT BETWEEN"])
    return st.one_of(
        st.tuples(numbers, st.sampled_from(["<", "<=", ">", ">="]), numbers).map(" ".join),
        st.tuples(values, st.sampled_from(["=", "<>"]), values).map(" ".join),
        st.tuples(numbers, between, numbers, st.just("AND"), numbers).map(" ".join),
        st.tuples(values, st.sampled_from(["IS NULL", "IS NOT NULL"])).map(" ".join),
        st.tuples(NAMES, st.sampled_from(["IN", "NOT IN"]), lists).map(" ".join),
        st.tuples(values, words, STRINGS).map(" ".join),
        junctions,
        junctions.map("({})".format),
        conditions.map("NOT ({})".format),
    )


EXPRESSIONS = st.recursive(
    st.one_of(NAMES, st.sampled_from(["TRUE", "FALSE", "NULL", "a = 3", "b IS NULL"])),
    lambda conditions: _tests(_values(conditions), conditions),
    max_leaves=12,
)
PROPERTIES = st.dictionaries(NAMES, TEXTS, max_size=4)
