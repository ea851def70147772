"""Tokens of an SQL92 filter: words, numbers, strings and symbols; how long an expression may be.

Words are case-insensitive where they are keywords, and names of properties otherwise. A string's quotes are
doubled inside it: `'it''s'`. Comments are `/* … */`, and `--` up to the end of its line; in a last line
without an end, these are two signs.

Upstream: filter/parser/SelectorParser.jj, the section on tokens.
"""

import re
from enum import Enum, auto
from typing import Final, NamedTuple, NoReturn

from libramq.errors import ConfigError

#: Ours: a selector that a person wrote has some hundred characters; one with 1,024 names of a list, 30,000.
EXPRESSION_LENGTH_MAX: Final = 32_768
#: Ours: 1,024 names in a list are 2,051, 256 tests in parentheses 1,536; so many take 10 ms to be parsed.
TOKENS_MAX: Final = 4_096
#: Ours: how much of an expression an error repeats.
QUOTED_LENGTH_MAX: Final = 20

KEYWORDS: Final = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
})  # fmt: skip

#: Nothing here goes back over more than one character, so that the time is in proportion to the length.
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
    KEYWORD = auto()  # `text` is in capitals.
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
