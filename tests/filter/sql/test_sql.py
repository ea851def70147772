"""SQL92 filters: matches, unknown results, and refused expressions."""

import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from libramq.errors import ConfigError
from libramq.filter.sql import parse_sql
from libramq.filter.sql.expression import FEW_LOOKUPS, LONG_BYTES
from libramq.filter.sql.parser import (
    DEPTH_MAX,
    EXPRESSION_LENGTH_MAX,
    LITERALS_MAX,
    TESTS_MAX,
    TOKENS_MAX,
    SqlFault,
    parse,
)
from libramq.filter.sql.values import compare_doubles
from libramq.message.properties import encode_properties
from tests.filter.sql.trees import EXPRESSIONS, PROPERTIES, matches

#: Conditions that are true, false and unknown, for messages without properties and with a = "3".
TRUE, FALSE, UNKNOWN = "n IS NULL", "n IS NOT NULL", "n = 1"

WHAT_MATCHES = [
    # The cases of ExpressionTest.java.
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "3", "b": "5", "c": "6", "d": "1"}, True),
    ("a=3 and b<>4 And c>5 AND d<=4", {"a": "4", "b": "5", "c": "6", "d": "1"}, False),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "3"}, True),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "6"}, True),
    ("a=3 or b<>4 Or c>5 OR d<=4", {"a": "4", "b": "4", "c": "4", "d": "5"}, False),
    ("a in ('3', '4', '5')", {"a": "3"}, True),
    ("a in ('3', '4', '5')", {"a": "6"}, False),
    ("a not in ('3', '4', '5')", {"a": "6"}, True),
    ("a between 2 and 10", {"a": "2"}, True),
    ("a between 2 and 10", {"a": "10"}, True),
    ("a between 2 and 10", {"a": "11"}, False),
    ("a not between 2 and 10", {"a": "1"}, True),
    ("a not between 2 and 10", {"a": "2"}, False),
    ("a is null", {}, True),
    ("a is not null", {"a": "x"}, True),
    ("a is not null and a='hello'", {"a": "hello"}, True),
    ("a=TRUE OR b=FALSE", {"a": "true", "b": "false"}, True),
    ("a=TRUE OR b=FALSE", {"a": "false", "b": "true"}, False),
    ("a is null OR a='hello'", {"a": "abc"}, False),
    ("TAGS is not null and TAGS='''''tag'''''", {"TAGS": "''tag''"}, True),
    ("a > 3.1E10", {"a": "3.1415E10"}, True),
    ("a > 3.14", {"a": "3.1415"}, True),
    ("a > b", {"a": "10", "b": "20"}, False),
    ("a > b", {"a": "20", "b": "10"}, True),
    ("a between up and low", {"a": "3.14", "up": "up", "low": "low"}, False),
    ("a between 0 and 100", {"a": "abc"}, False),
    ("a<>b", {"a": "3.14", "b": "3.141"}, True),
    ("value contains 'x'", {"value": "axb"}, True),
    ("value startswith 'ax'", {"value": "axb"}, True),
    ("value endswith 'xb'", {"value": "axb"}, True),
    ("value not contains 'x'", {"value": "axb"}, False),
    ("value not startswith 'x'", {"value": "axb"}, True),
    ("value not endswith 'x'", {"value": "axb"}, True),
    ("value contains ''", {"value": "axb"}, False),
    ("value not contains ''", {"value": "axb"}, False),
    ("value contains 'x'", {}, False),
    ("value not contains 'x'", {}, False),
    ("'axb' contains 'x'", {}, True),
    ("3 not contains 'x'", {}, False),
    ("'s' contains '\\'", {}, False),
    ("a not in ('4', '4', '5') and b between 3 and 10 and c not contains 'axbc'",
     {"a": "3", "b": "3", "c": "axbdc"}, True),
    # Types: a string is converted to the number's type, and one that is no number makes the filter false.
    ("a > 3", {"a": "3.5"}, False),
    ("a > 3.0", {"a": "3.5"}, True),
    ("a > 3.0", {"a": " 3.5f\t"}, True),
    ("a > 3.0", {"a": "Infinity"}, True),
    ("a > 3.0", {"a": "inf"}, False),
    ("a > 3.5", {"a": "NaN"}, True),
    ("a < 3.5", {"a": "NaN"}, False),
    ("a > 3.5", {"a": "1.2.3"}, False),
    ("a > 3.5", {"a": "."}, False),
    ("a >= 3.5", {"a": "3.50"}, True),
    ("a > 3.5", {"a": "-3.6"}, False),
    ("a < 3.5", {"a": "-3.6e0"}, True),
    ("a > 3", {"a": "2147483648"}, False),
    ("a > 2147483648", {"a": "2147483649"}, True),
    ("a > -2147483648", {"a": "-2147483647"}, True),
    ("a = 3", {"a": "+03"}, True),
    ("a = 10", {"a": "1_0"}, False),
    ("a = 3", {"a": " 3"}, False),
    ("a = '3'", {"a": "03"}, False),
    ("3 < a", {"a": "4"}, True),
    ("3.0 = a", {"a": "3"}, True),
    ("a > 3 OR b = 4", {"a": "x", "b": "4"}, False),
    ("b = 4 OR a > 3", {"a": "x", "b": "4"}, True),
    ("NOT (a > 3)", {"a": "x"}, False),
    ("a = TRUE", {"a": "tRuE"}, True),
    ("TRUE = a", {"a": "true"}, False),
    ("a <> 3", {"a": "x"}, False),
    ("3 = 3.0", {}, True),
    ("3 = TRUE", {}, False),
    ("(b = 1) = FALSE", {"b": "2"}, True),
    ("-a IS NULL", {"a": "3"}, True),
    ("a", {"a": "true"}, False),
    ("NOT a", {"a": "true"}, True),
    ("NOT a = 3", {"a": "3"}, False),
    # Unknown values: two of them are equal, and a known value differs from an unknown one on its right.
    ("a = b", {}, True),
    ("a <> b", {"a": "x"}, True),
    ("a <> b", {"b": "x"}, False),
    # Words, strings, comments.
    ("A = 1 and a = 2", {"a": "2", "A": "1"}, True),
    ("a = 3L", {"a": "3"}, True),
    ("a = 00.5", {"a": "0.5"}, True),
    ("a = 'it''s' and $b_1 = 'ü'", {"a": "it's", "$b_1": "ü"}, True),
    ("a /* one * of */ = -- two\n 1", {"a": "1"}, True),
    ("a = --1", {"a": "1"}, True),
    ("a\t=\r\n1\f", {"a": "1"}, True),
    ("a = 'x\x01y'", {"a": "z"}, False),
    ("TRUE", {}, True),
    ("NULL", {}, False),
    ("a = 1 and aa = 2", {"aa": "2", "a": "1"}, True),
]  # fmt: skip


def found(expression, **properties):
    """Return a condition's three-valued result as text, from its own truth and its negation's."""
    stored = encode_properties(properties)
    if parse_sql(expression).matches(stored):
        return "true"
    return "false" if parse_sql(f"NOT ({expression})").matches(stored) else "unknown"


@pytest.mark.parametrize(
    ("left", "right", "both", "either"),
    [
        (TRUE, TRUE, "true", "true"),
        (TRUE, FALSE, "false", "true"),
        (TRUE, UNKNOWN, "unknown", "true"),
        (FALSE, TRUE, "false", "true"),
        (FALSE, FALSE, "false", "false"),
        (FALSE, UNKNOWN, "false", "unknown"),
        (UNKNOWN, TRUE, "unknown", "true"),
        (UNKNOWN, FALSE, "false", "unknown"),
        (UNKNOWN, UNKNOWN, "unknown", "unknown"),
    ],
)
def test_three_valued_logic(left, right, both, either):
    assert found(f"{left} AND {right}") == both
    assert found(f"{left} OR {right}") == either
    assert found(f"{left} AND {right} AND {TRUE}") == both
    assert found(f"{left} OR {right} OR {FALSE}") == either


@pytest.mark.parametrize(("condition", "opposite"), [(TRUE, "false"), (FALSE, "true"), (UNKNOWN, "unknown")])
def test_not(condition, opposite):
    assert found(f"NOT ({condition})") == opposite


@pytest.mark.parametrize(("expression", "properties", "expected"), WHAT_MATCHES)
def test_what_matches(expression, properties, expected):
    assert parse_sql(expression).matches(encode_properties(properties)) is expected


@pytest.mark.parametrize(
    ("expression", "column", "reason"),
    [
        ("", 1, "the expression is empty"),
        (" -- x\n", None, "the expression is empty"),
        ("a >", 4, "a value is missing before the end"),
        ("a > 3 b < 4", 7, "unexpected 'b'"),
        ("a > 3)", 6, "unexpected ')'"),
        ("(a > 3", 7, "a closing parenthesis is missing"),
        ("a and between 2 and 10", 7, "a value is missing before 'BETWEEN'"),
        ("a is true", 6, "IS NULL or IS NOT NULL is meant, not 'TRUE'"),
        ("a = NULL", 5, "nothing equals NULL"),
        ("a > 'x'", 5, "only a property or a number"),
        ("'x' > a", 1, "only a property or a number"),
        ("(a = 1) > 2", 1, "only a property or a number"),
        ("a between 10 and 0", 11, "the lower bound of BETWEEN is above"),
        ("a between 1 or 2", 13, "BETWEEN … AND … is meant, not 'OR'"),
        ("a in (1, 2)", 7, "a string in single quotes is needed"),
        ("a in ()", 7, "a string in single quotes is needed"),
        ("'x' in ('x')", 1, "IN needs a property"),
        ("a contains b", 12, "a string in single quotes is needed"),
        ("a not = 3", 7, "is missing after NOT"),
        ("a = 'x", 5, "no closing quote"),
        ('a = "x"', 5, "'\"' has no meaning here"),
        ("a = 1 /* x", 7, "no end"),
        ("a == 1", 4, "a value is missing before '='"),
        ("a = 007", 5, "does not begin with 0"),
        ("a = 3.5L", 5, "only a whole number"),
        ("a = 9223372036854775808", 5, "a whole number beyond"),
        ("a = 1e999", 5, "a number beyond"),
        ("a + 1 > 2", 3, "unexpected '+'"),
        ("a like 'x%'", 3, "unexpected 'like'"),
        ("3", 1, "a condition is needed here"),
        ("'x' OR a = 1", 1, "a condition is needed here"),
        ("a = 1 OR 3", 10, "a condition is needed here"),
        ("NOT 3", 5, "a condition is needed here"),
        ("TRUE = 3", 8, "cannot be compared with this value"),
        ("(" * (DEPTH_MAX + 1) + "a", DEPTH_MAX + 1, "levels"),
        ("a = 1" + " = 1" * DEPTH_MAX, None, "levels"),
        (" OR ".join(["a = 1"] * (TESTS_MAX + 1)), None, "tests"),
        ("a IN (" + ",".join(["'x'"] * (LITERALS_MAX + 1)) + ")", None, "values"),
        ("a = '" + "x" * EXPRESSION_LENGTH_MAX + "'", None, "characters"),
    ],
)
def test_a_fault_is_named_with_its_column(expression, column, reason):
    with pytest.raises(ConfigError, match="SQL92") as caught:
        parse_sql(expression)
    assert reason in str(caught.value)
    if column is not None:
        assert f"column {column}:" in str(caught.value)


def test_a_fault_on_a_later_line_is_named_with_its_line():
    with pytest.raises(ConfigError, match="line 2, column 7: "):
        parse_sql("a = 1\n  AND OR b = 2")


def test_limits_are_reached_before_they_are_passed():
    parse_sql("(" * DEPTH_MAX + "a" + ")" * DEPTH_MAX)
    parse_sql(" OR ".join(["a = 1"] * TESTS_MAX))
    parse_sql("a IN (" + ",".join(["'x'"] * LITERALS_MAX) + ")")
    deep = "NOT " * DEPTH_MAX + "a"
    assert not parse_sql(deep).matches(b"a\x011\x02")


def test_equal_expressions_share_a_filter():
    assert parse_sql("a = 12345") is parse_sql("a = 12345")


@pytest.mark.parametrize(
    ("smaller", "larger"), [(-0.0, 0.0), (1.0, 2.0), (float("inf"), float("nan")), (-1.0, float("nan"))]
)
def test_doubles_have_javas_order(smaller, larger):
    assert compare_doubles(smaller, larger) < 0 < compare_doubles(larger, smaller)
    assert compare_doubles(smaller, smaller) == compare_doubles(larger, larger) == 0


@given(EXPRESSIONS, st.lists(PROPERTIES, min_size=1, max_size=4))
def test_a_compiled_filter_is_its_tree(expression, messages):
    """For random trees and messages the compiled functions agree with a direct evaluation of the tree."""
    try:
        tree = parse(expression)
    except ConfigError:  # A number where a condition is needed, and the like.
        assume(False)
    sql = parse_sql(expression)
    for properties in messages:
        assert sql.matches(encode_properties(properties)) is matches(tree, properties), properties


_PIECES = st.sampled_from([
    "a", "b1", "=", "<>", "<", ">=", "(", ")", ",", "+", "-", "'x'", "'", "''", "3", "3.", ".5", "1e", "0L",
    "00", "--", "/*", "*/", "*", "\n", "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "NULL", "IS", "CONTAINS",
    "ENDSWITH", "\0", "ü",
])  # fmt: skip


@given(st.one_of(st.text(max_size=200), st.lists(_PIECES, max_size=60).map(" ".join)))
def test_any_text_is_parsed_or_refused(expression):
    try:
        matches_nothing = parse_sql(expression).matches(b"")
    except ConfigError:
        pass
    else:
        assert matches_nothing in (True, False)


@pytest.mark.parametrize(
    "piece",
    [
        "(",
        "NOT ",
        "-",
        "a AND ",
        "'",
        "''",
        "/*",
        "/**",
        "--",
        "1",
        "0",
        ".",
        "a IN ('x') OR ",
        "1e",
        " ",
        "\n-",
    ],
)
def test_the_time_of_parsing_grows_with_the_length_only(piece):
    """The longest expressions take some milliseconds, so the parser never rereads its input."""
    expression = (piece * EXPRESSION_LENGTH_MAX)[:EXPRESSION_LENGTH_MAX]
    began = time.process_time()
    for _ in range(3):
        with pytest.raises(ConfigError):
            parse(expression)
    assert time.process_time() - began < 3


@pytest.mark.parametrize(
    "text", ["1" * 30_000 + "x", " " * 30_000 + "x", "1." + "1" * 30_000 + "x", "1e" + "1" * 30_000]
)
def test_a_long_text_is_no_number_and_costs_no_time(text):
    began = time.process_time()
    assert not parse_sql("a > 3.5 AND a < 4").matches(encode_properties({"a": text}))
    assert time.process_time() - began < 1


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from("abcdxyz"), st.sampled_from(["", "1", "20", "text", "1\x01"])), max_size=40
    ),
    names=st.lists(st.sampled_from("abcd"), min_size=9, max_size=12),
)
def test_long_properties_match_as_short_ones_do(pairs, names):
    """If the expression names many properties, the messages' are first reduced to those."""
    parsed = parse_sql(
        " OR ".join(f"{name} = '{number}' OR {name} > 15" for number, name in enumerate(names))
    )
    short = "".join(f"{name}\x01{value}\x02" for name, value in pairs).encode()
    assert parsed.weight > FEW_LOOKUPS
    assert len(short) <= LONG_BYTES
    assert parsed.matches(short + b"filler\x01" + b"x" * LONG_BYTES) == parsed.matches(short)


def test_an_expression_of_too_many_tokens_is_refused_where_they_are_too_many():
    with pytest.raises(SqlFault, match=f"column {TOKENS_MAX + 1}: over {TOKENS_MAX} words, values and signs"):
        parse_sql("+" * 32_000)
