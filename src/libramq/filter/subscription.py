"""The subscription: which messages of a topic a group receives, by tags or SQL92, as clients write it and as
heartbeats carry it.

    "*"   "tagA || tagB"   Sql("a > 3 AND region IN ('eu', 'us')")

Upstream: remoting/protocol/heartbeat/SubscriptionData.java, MessageModel.java, ConsumeType.java,
common/consumer/ConsumeFromWhere.java, client/consumer/MessageSelector.java.
"""

from dataclasses import dataclass
from typing import Final, Protocol

from libramq.errors import ConfigError
from libramq.filter.sql import SQL92, parse_sql
from libramq.filter.tag import TAG, TagFilter, parse_tag_filter
from libramq.formats.document import Document

#: The kind of delivery: fetched by the client, or pushed to its handler.
CONSUME_ACTIVELY: Final = "CONSUME_ACTIVELY"
CONSUME_PASSIVELY: Final = "CONSUME_PASSIVELY"
#: The message model: every member gets every message, or one member gets each message.
BROADCASTING: Final = "BROADCASTING"
CLUSTERING: Final = "CLUSTERING"
#: Where a group without commits begins.
CONSUME_FROM_LAST_OFFSET: Final = "CONSUME_FROM_LAST_OFFSET"


class SubscriptionData(Document, frozen=True, kw_only=True, gc=False):
    """Which messages of a topic a group receives.

    The garbage collector does not track it: brokers have thousands, none in a cycle.
    """

    topic: str
    sub_string: str = "*"
    tags_set: tuple[str, ...] = ()
    code_set: tuple[int, ...] = ()
    sub_version: int = 0
    expression_type: str | None = "TAG"
    class_filter_mode: bool = False


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


class MessageFilter(Protocol):
    """A filter by properties, in addition to that by tag codes, which needs no message.

    weight: its number of lookups in a message's properties.
    """

    @property
    def weight(self) -> int: ...

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these stored properties matches."""
