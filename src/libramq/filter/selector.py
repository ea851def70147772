"""The selector: what a consumer subscribes by, tags or SQL92, in one form.

    "*"   "tagA || tagB"   Sql("a > 3 AND region IN ('eu', 'us')")

Upstream: client/consumer/MessageSelector.java.
"""

from dataclasses import dataclass

from libramq.errors import ConfigError
from libramq.filter.sql import SQL92, parse_sql
from libramq.filter.tag import TAG, TagFilter, parse_tag_filter


@dataclass(frozen=True, slots=True)
class Sql:
    """A subscription by a condition on properties, such as Sql("a > 3"); brokers apply it.

    Apache's broker needs enablePropertyFilter=true. Raises ConfigError, which names the column of a fault.
    """

    expression: str

    def __post_init__(self) -> None:
        parse_sql(self.expression)


Selector = TagFilter | Sql


def selector(expression: str | Sql) -> Selector:
    """Return an expression as a selector: tags, unless it is an Sql already; raises ConfigError."""
    if expression is not None and not isinstance(expression, str | Sql):
        raise ConfigError(
            f"a subscription is a text such as '*' or 'tagA || tagB', or Sql('a > 3'), not {expression!r}"
        )
    return expression if isinstance(expression, Sql) else parse_tag_filter(expression)


def kind_of(selector: Selector) -> str:
    """Return the kind of an expression, as sent to brokers (ExpressionType)."""
    return SQL92 if isinstance(selector, Sql) else TAG


def named_expression(expression: str, kind: str | None) -> str:
    """Return an expression, prefixed with its kind unless that is TAG, so that members can be compared."""
    return expression if kind in (None, "", TAG) else f"{kind}: {expression}"
