"""The tag filter: how "tagA || tagB" or "*" is parsed and matched, and how many tags it may have.

The broker compares hashes, which may collide; the consumer compares the text.
Upstream: common/filter/FilterAPI.java.
"""

from dataclasses import dataclass
from typing import Final

from libramq.errors import ConfigError
from libramq.message.tags import java_hash

ALL: Final = "*"
#: ExpressionType.TAG.
TAG: Final = "TAG"
#: Ours, as every heartbeat carries its subscriptions; FilterAPI has no limit.
TAGS_MAX: Final = 1024
#: Ours, twice SQL92's limit: brokers hash each tag of an expression that comes with a pull; 1 MB took 0.3 s.
EXPRESSION_LENGTH_MAX: Final = 65_536


@dataclass(frozen=True, slots=True)
class TagFilter:
    """A parsed expression. An empty set matches nothing, unless the text is "*" (everything)."""

    expression: str
    tags: frozenset[str]

    @property
    def codes(self) -> frozenset[int] | None:
        """Return the hashes to be compared by the broker; None for everything."""
        return None if self.expression == ALL else frozenset(java_hash(tag) for tag in self.tags)

    def matches(self, tag: str | None) -> bool:
        """Return whether a message with this tag matches: the exact comparison."""
        return self.expression == ALL or tag in self.tags


EVERYTHING: Final = TagFilter(ALL, frozenset())


def parse_tag_filter(expression: str | None) -> TagFilter:
    """Parse an expression; raises ConfigError when it consists of separators only."""
    if expression is not None and not isinstance(expression, str):
        raise ConfigError(f"a tag expression is a text such as '*' or 'tagA || tagB', not {expression!r}")
    if not expression or expression == ALL:
        return EVERYTHING
    if len(expression) > EXPRESSION_LENGTH_MAX:
        raise ConfigError(
            f"tag expression of {len(expression)} characters; at most {EXPRESSION_LENGTH_MAX} are allowed"
        )
    tags = frozenset(tag.strip() for tag in expression.split("||") if tag.strip())
    if not tags and "||" in expression:
        raise ConfigError(f"tag expression {expression!r} names no tag; write '*' or 'tagA || tagB'")
    if len(tags) > TAGS_MAX:
        raise ConfigError(f"tag expression names {len(tags)} tags; at most {TAGS_MAX} are allowed")
    return TagFilter(expression, tags)
