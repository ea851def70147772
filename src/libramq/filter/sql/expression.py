"""The SQL92 filter: a compiled condition on a message's properties.

    a > 3 AND (region IN ('eu', 'us') OR vip IS NOT NULL) AND name NOT CONTAINS 'test'

Upstream: filter/SqlFilter.java.
"""

from collections.abc import Sequence
from threading import Lock
from typing import Final

from libramq.errors import ConfigError
from libramq.filter.sql.compiled import Test, compile_condition
from libramq.filter.sql.parser import parse
from libramq.filter.sql.tokens import SqlFault
from libramq.filter.sql.tree import names_in

#: ExpressionType.SQL92.
SQL92: Final = "SQL92"
#: SelectorParser.PARSE_CACHE, faults included.
PARSED_MAX: Final = 100
#: Ours: a lookup in 32 KB of properties takes 25 µs, and an expression may have 256. For more than a few in
#: long properties, these are first reduced to those that it names, in 400 µs at most.
FEW_LOOKUPS: Final = 8
LONG_BYTES: Final = 1024

#: The last expressions: their filters, or what is wrong with them. Threads parse, too.
_PARSED: Final[dict[str, "SqlFilter | str"]] = {}
_LOCK: Final = Lock()


class SqlFilter:
    """A parsed expression. Equal expressions share one filter, as long as it is among the last ones used."""

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
        except ValueError:  # A text that is no number, compared with one.
            return False

    def _named_in(self, properties: bytes) -> bytes:
        """Return the properties that the expression names, in their order: the first of a name counts."""
        names = self._names
        return b"\x02".join([
            pair for pair in properties.split(b"\x02") if pair.partition(b"\x01")[0] in names
        ])  # fmt: skip


def parse_sql(expression: str) -> SqlFilter:
    """Parse an expression; raises ConfigError, which names the column of the fault."""
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
    """Return whether an expression is among the last ones parsed."""
    return expression in _PARSED


def _parse(expression: str) -> SqlFilter | str:
    try:
        condition = parse(expression)
    except SqlFault as fault:
        return str(fault)
    return SqlFilter(expression, compile_condition(condition), tuple(names_in(condition)))
