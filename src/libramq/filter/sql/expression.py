"""The SQL92 filter: a compiled condition on a message's properties.

    a > 3 AND (region IN ('eu', 'us') OR vip IS NOT NULL) AND name NOT CONTAINS 'test'

Upstream: filter/SqlFilter.java.
"""

from functools import lru_cache
from typing import Final

from libramq.errors import ConfigError
from libramq.filter.sql.compiled import Test, compile_condition
from libramq.filter.sql.parser import parse
from libramq.filter.sql.tokens import SqlFault

#: ExpressionType.SQL92.
SQL92: Final = "SQL92"
#: SelectorParser.PARSE_CACHE, faults included.
PARSED_MAX: Final = 100


class SqlFilter:
    """A parsed expression. Equal expressions share one filter, as long as it is among the last ones used."""

    __slots__ = ("_test", "expression")

    def __init__(self, expression: str, test: Test) -> None:
        self.expression = expression
        self._test = test

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these stored properties matches; unknown and errors do not."""
        try:
            return self._test(b"\x02%b\x02" % properties) is True
        except ValueError:  # A text that is no number, compared with one.
            return False


def parse_sql(expression: str) -> SqlFilter:
    """Parse an expression; raises ConfigError, which names the column of the fault."""
    if not isinstance(expression, str):
        raise ConfigError(f"an SQL92 expression is a text such as 'a > 3', not {expression!r}")
    parsed = _parse(expression)
    if isinstance(parsed, str):
        raise SqlFault(parsed)
    return parsed


@lru_cache(maxsize=PARSED_MAX)
def _parse(expression: str) -> SqlFilter | str:
    try:
        return SqlFilter(expression, compile_condition(parse(expression)))
    except SqlFault as fault:
        return str(fault)
