"""The parser of SQL92 filters: its tokens, the grammar's rules, and how deep and how long a condition may be.

    or          and (OR and)*
    and         equality (AND equality)*
    equality    comparison ( (= | <>) comparison | IS [NOT] NULL )*
    comparison  unary ( (> | >= | < | <=) unary | [NOT] BETWEEN unary AND unary
                      | [NOT] IN (string, …) | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) string )*
    unary       + unary | - unary | NOT unary | primary
    primary     string | number | TRUE | FALSE | NULL | name | ( or )

NOT binds more tightly than a comparison: `NOT a = 1` is `(NOT a) = 1`. The rules about types are Apache's as
well; text behind a complete expression is an error here, while Apache's parser ignores it.

Words are case-insensitive where they are keywords, and names of properties otherwise. A string's quotes are
doubled inside it: `'it''s'`. Comments are `/* … */`, and `--` up to the end of its line; in a last line
without an end, these are two signs.

Upstream: filter/parser/SelectorParser.jj; the checks are those of ComparisonExpression.java.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn

from libramq.errors import ConfigError
from libramq.filter.sql.tree import (
    NUMBERS,
    And,
    Comparison,
    Condition,
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
    Value,
)
from libramq.filter.sql.values import as_int32_or_int64, compare_numbers

#: Ours: a selector written by a person has some hundred characters; a list of 1,024 names has 30,000.
EXPRESSION_LENGTH_MAX: Final = 32_768
#: Ours: a list of 1,024 names has 2,051 tokens, 256 tests in parentheses 1,536; this many are parsed in 10
#: ms.
TOKENS_MAX: Final = 4_096
#: Ours: the length to which errors quote an expression.
QUOTED_LENGTH_MAX: Final = 20

KEYWORDS: Final = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
})  # fmt: skip

#: Backtracks over one character at most, so that the time is proportional to the length.
_TOKEN: Final = re.compile(
    r"""(?P<BLANK> [ \t\n\r\f]+ | /\*(?:[^*]|\*(?!/))*\*/ )
      | (?P<NUMBER> (?: [0-9]+(?:\.[0-9]*)? | \.[0-9]+ ) (?: [eE][+-]?[0-9]+ )? )
      | (?P<STRING> '(?:''|[^'])*' )
      | (?P<WORD> [A-Za-z_$][A-Za-z0-9_$]* )
      | (?P<SYMBOL> <> | <= | >= | [<>=(),+-] )
    """,
    re.VERBOSE,
)
_LINE_END: Final = re.compile(r"[\n\r]")


class Kind(Enum):
    """The kind of a token."""

    INTEGER = auto()
    FLOAT = auto()
    STRING = auto()
    NAME = auto()
    KEYWORD = auto()  # `text` is in upper case.
    SYMBOL = auto()
    END = auto()


class Token(NamedTuple):
    """A token. start: its index in the expression."""

    kind: Kind
    text: str
    start: int


class SqlFault(ConfigError):
    """A fault in an SQL92 expression; the text names its column."""


def fail(expression: str, start: int, reason: str) -> NoReturn:
    """Raise the error for a fault at an index; the first character is column 1."""
    line = expression.count("\n", 0, start) + 1
    column = start - (expression.rfind("\n", 0, start) + 1) + 1
    place = f"column {column}" if line == 1 else f"line {line}, column {column}"
    raise SqlFault(f"SQL92 filter, {place}: {reason}")


def tokenize(expression: str) -> list[Token]:
    """Return the tokens of an expression, the last of which is END; raises SqlFault."""
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise SqlFault(
            f"SQL92 filter: {len(expression)} characters; at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    tokens: list[Token] = []
    last_line_end = max(expression.rfind("\n"), expression.rfind("\r"))
    position = 0
    while position < len(expression):
        if position < last_line_end and expression.startswith("--", position):
            line_end = _LINE_END.search(expression, position)
            assert line_end is not None
            position = line_end.end()
            continue
        match = _TOKEN.match(expression, position)
        if len(tokens) >= TOKENS_MAX:
            fail(expression, position, f"over {TOKENS_MAX} words, values and signs")
        if match is None:
            fail(expression, position, _why_no_token(expression, position))
        text = match.group()
        if match.lastgroup == "NUMBER" and expression[match.end() : match.end() + 1] in ("l", "L"):
            text += expression[match.end()]
        if match.lastgroup != "BLANK":
            tokens.append(_token(expression, str(match.lastgroup), text, position))
        position += len(text)
    tokens.append(Token(Kind.END, "the end", position))
    return tokens


def _token(expression: str, group: str, text: str, start: int) -> Token:
    if group == "WORD":
        upper = text.upper()
        return Token(Kind.KEYWORD, upper, start) if upper in KEYWORDS else Token(Kind.NAME, text, start)
    if group != "NUMBER":
        return Token(Kind[group], text, start)
    digits = text.rstrip("lL")
    if not digits.isdigit():
        return Token(Kind.FLOAT, text, start)
    if len(digits) > 1 and digits.startswith("0"):
        fail(expression, start, "a whole number does not begin with 0")
    return Token(Kind.INTEGER, digits, start)


def quoted(text: str) -> str:
    """Return a text for an error message: shortened, and printable."""
    return repr(text if len(text) <= QUOTED_LENGTH_MAX else text[:QUOTED_LENGTH_MAX] + "…")


def _why_no_token(expression: str, position: int) -> str:
    if expression[position] == "'":
        return "a string that begins here has no closing quote"
    if expression.startswith("/*", position):
        return "a comment that begins here has no end"
    return f"{quoted(expression[position])} has no meaning here"


#: Ours: the nesting of parentheses and signs. Each level takes several of Python's 1,000 frames.
DEPTH_MAX: Final = 64
#: Ours: values in one expression, as many as a list of tags may have (TAGS_MAX).
LITERALS_MAX: Final = 1024
#: Ours: tests in one expression. Each searches a message's properties.
TESTS_MAX: Final = 256

_ORDERS: Final = {order.value: order for order in Order if order is not Order.EQUAL}
_PARTS: Final = {part.value: part for part in Part}
_CONDITIONS: Final = (And, Or, Not, Truth, Comparison, IsNull, In, TextTest)


def parse(expression: str) -> Condition:
    """Return the tree of an expression; raises SqlFault, which names the column."""
    return _Parser(expression).parse()


class _Parser:
    def __init__(self, expression: str) -> None:
        self._expression = expression
        self._tokens = tokenize(expression)
        self._next = 0
        self._literal_count = self._test_count = 0

    def parse(self) -> Condition:
        token = self._token
        if token.kind is Kind.END:
            self._fail(token, "the expression is empty")
        tree = self._condition(self._or(0), token)
        if self._token.kind is not Kind.END:
            self._fail(self._token, f"unexpected {quoted(self._token.text)} behind a complete expression")
        return tree

    # Grammar rules.

    def _or(self, depth: int) -> Value:
        start = self._token
        values = [self._and(depth)]
        starts = [start]
        while self._take("OR"):
            starts.append(self._token)
            values.append(self._and(depth))
        if len(values) == 1:
            return values[0]
        return Or(tuple(map(self._condition, values, starts)))

    def _and(self, depth: int) -> Value:
        starts = [self._token]
        values = [self._equality(depth)]
        while self._take("AND"):
            starts.append(self._token)
            values.append(self._equality(depth))
        if len(values) == 1:
            return values[0]
        return And(tuple(map(self._condition, values, starts)))

    def _equality(self, depth: int) -> Value:
        start = self._token
        left = self._comparison(depth)
        while True:
            operator = self._token
            if self._take("=") or self._take("<>"):
                depth = self._deeper(depth, operator)
                right_start = self._token
                right = self._comparison(depth)
                equal = self._equal(left, start, right, right_start)
                left = equal if operator.text == "=" else Not(equal)
            elif self._take("IS"):
                depth = self._deeper(depth, operator)
                is_negated = self._take("NOT")
                self._require("NULL", "IS NULL or IS NOT NULL is meant")
                left = Not(IsNull(left)) if is_negated else IsNull(left)
            else:
                return left
            self._count_test(operator)

    def _comparison(self, depth: int) -> Value:
        start = self._token
        left = self._unary(depth)
        while True:
            operator = self._token
            test = self._test(left, start, depth)
            if test is None:
                return left
            depth = self._deeper(depth, operator)
            left = test
            self._count_test(operator)

    def _test(self, left: Value, start: Token, depth: int) -> Condition | None:
        """Return the test of `left` that follows here, if there is one."""
        operator = self._token
        if operator.kind is Kind.SYMBOL and operator.text in _ORDERS:
            self._next += 1
            return self._ordered(_ORDERS[operator.text], left, start, depth)
        if operator.kind is not Kind.KEYWORD:
            return None
        is_negated = self._take("NOT")
        if self._take("BETWEEN"):
            return self._between(left, start, depth, is_negated=is_negated)
        if self._take("IN"):
            if not isinstance(left, Property):
                self._fail(start, "IN needs a property on its left")
            return In(left, self._strings(), is_negated)
        part = _PARTS.get(self._token.text) if self._token.kind is Kind.KEYWORD else None
        if part is not None:
            self._next += 1
            return TextTest(part, left, self._string(), is_negated)
        if is_negated:
            self._fail(self._token, "BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH is missing after NOT")
        return None

    def _unary(self, depth: int) -> Value:
        token = self._token
        if self._take("+"):
            return self._unary(self._deeper(depth, token))
        if self._take("-"):
            return Negated(self._unary(self._deeper(depth, token)))
        if self._take("NOT"):
            start = self._token
            return Not(self._condition(self._unary(self._deeper(depth, token)), start))
        return self._primary(depth)

    def _primary(self, depth: int) -> Value:
        token = self._token
        if self._take("("):
            value = self._or(self._deeper(depth, token))
            self._require(")", "a closing parenthesis is missing")
            return value
        if token.kind is Kind.NAME:
            self._next += 1
            return Property(token.text)
        return self._literal()

    def _literal(self) -> Literal:
        token = self._token
        if token.kind is Kind.STRING:
            return Literal(self._string(), Type.TEXT)
        constant = _CONSTANTS.get(token.text) if token.kind is Kind.KEYWORD else None
        if constant is None and token.kind not in (Kind.INTEGER, Kind.FLOAT):
            self._fail(token, f"a value is missing before {_shown(token)}")
        self._next += 1
        self._count_literal(token)
        if constant is not None:
            return constant
        if token.kind is Kind.FLOAT:
            if token.text[-1] in "lL":
                self._fail(token, "only a whole number may end in L")
            number = float(token.text)
            if number == float("inf"):
                self._fail(token, "a number beyond 1.8E308")
            return Literal(number, Type.DOUBLE)
        typed = as_int32_or_int64(token.text)
        if typed is None:
            self._fail(token, "a whole number beyond 9223372036854775807")
        return Literal(*typed)

    # Helpers of the rules.

    def _ordered(self, order: Order, left: Value, start: Token, depth: int) -> Comparison:
        right_start = self._token
        right = self._unary(depth)
        self._check_ordered(left, start)
        self._check_ordered(right, right_start)
        return Comparison(order, left, right)

    def _between(self, value: Value, start: Token, depth: int, *, is_negated: bool) -> Condition:
        low_start = self._token
        low = self._unary(depth)
        self._require("AND", "BETWEEN … AND … is meant")
        high_start = self._token
        high = self._unary(depth)
        for bound, bound_start in ((value, start), (low, low_start), (high, high_start)):
            self._check_ordered(bound, bound_start)
        self._count_test(start)
        if is_negated:
            below, above = Comparison(Order.LESS, value, low), Comparison(Order.GREATER, value, high)
            return Or((below, above))
        literals = [bound.value for bound in (low, high) if isinstance(bound, Literal)]
        numbers = [each for each in literals if isinstance(each, (int, float))]
        if len(numbers) == 2 and compare_numbers(numbers[1], numbers[0]) < 0:
            self._fail(low_start, "the lower bound of BETWEEN is above the upper one")
        return And((
            Comparison(Order.GREATER_OR_EQUAL, value, low),
            Comparison(Order.LESS_OR_EQUAL, value, high),
        ))  # fmt: skip

    def _equal(self, left: Value, start: Token, right: Value, right_start: Token) -> Comparison:
        for value, value_start in ((left, start), (right, right_start)):
            if isinstance(value, Literal) and value.type is Type.NULL:
                self._fail(value_start, "nothing equals NULL; write IS NULL or IS NOT NULL")
        is_truth = isinstance(left, Literal) and left.type is Type.BOOLEAN
        if is_truth and isinstance(right, Literal) and right.type is not Type.BOOLEAN:
            self._fail(right_start, "TRUE and FALSE cannot be compared with this value")
        return Comparison(Order.EQUAL, left, right)

    def _check_ordered(self, value: Value, start: Token) -> None:
        """Refuse operands that have no order: conditions, and literals other than numbers."""
        if isinstance(value, _CONDITIONS) or (isinstance(value, Literal) and value.type not in NUMBERS):
            self._fail(start, "only a property or a number can be compared by <, <=, >, >= or BETWEEN")

    def _condition(self, value: Value, start: Token) -> Condition:
        """Return a value as a condition: itself, or the truth of a property."""
        if isinstance(value, Property):
            self._count_test(start)
            return Truth(value)
        is_condition = isinstance(value, _CONDITIONS)
        if isinstance(value, Literal):
            is_condition = value.type in (Type.BOOLEAN, Type.NULL)
        if isinstance(value, Negated) or not is_condition:
            self._fail(start, "a condition is needed here, and this is a value")
        return value

    def _strings(self) -> tuple[str, ...]:
        self._require("(", "a list in parentheses is needed after IN")
        texts = [self._string()]
        while self._take(","):
            texts.append(self._string())
        self._require(")", "a closing parenthesis is missing")
        return tuple(texts)

    def _string(self) -> str:
        token = self._token
        if token.kind is not Kind.STRING:
            self._fail(token, f"a string in single quotes is needed here, not {_shown(token)}")
        self._next += 1
        self._count_literal(token)
        return token.text[1:-1].replace("''", "'")

    # Tokens, limits and faults.

    @property
    def _token(self) -> Token:
        return self._tokens[self._next]

    def _take(self, text: str) -> bool:
        """Consume a keyword or symbol if it comes next."""
        token = self._tokens[self._next]
        if token.text != text or token.kind not in (Kind.KEYWORD, Kind.SYMBOL):
            return False
        self._next += 1
        return True

    def _require(self, text: str, reason: str) -> None:
        if not self._take(text):
            self._fail(self._token, f"{reason}, not {_shown(self._token)}")

    def _deeper(self, depth: int, token: Token) -> int:
        if depth >= DEPTH_MAX:
            self._fail(token, f"over {DEPTH_MAX} levels of parentheses and operators")
        return depth + 1

    def _count_literal(self, token: Token) -> None:
        self._literal_count += 1
        if self._literal_count > LITERALS_MAX:
            self._fail(token, f"over {LITERALS_MAX} values")

    def _count_test(self, token: Token) -> None:
        self._test_count += 1
        if self._test_count > TESTS_MAX:
            self._fail(token, f"over {TESTS_MAX} tests; use IN for many values of one property")

    def _fail(self, token: Token, reason: str) -> NoReturn:
        fail(self._expression, token.start, reason)


_CONSTANTS: Final = {
    "TRUE": Literal(True, Type.BOOLEAN),
    "FALSE": Literal(False, Type.BOOLEAN),
    "NULL": Literal(None, Type.NULL),
}


def _shown(token: Token) -> str:
    return "the end" if token.kind is Kind.END else quoted(token.text)
