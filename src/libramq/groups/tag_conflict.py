"""The tag conflict: members of one group subscribe to different tags of one topic, so that messages are
skipped.

One member at a time reads a queue. It gets the messages that its own expression selects, and skips the rest
for the whole group. Members with the tags `a` and `b` each miss messages in the other's queues.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libramq.errors import ConfigError
from libramq.filter.sql import SQL92
from libramq.filter.tag import ALL, parse_tag_filter
from libramq.message.names import RETRY_PREFIX

#: Ours: a sentence names at most this many topics, and members of each expression.
NAMED_MAX: Final = 8
#: Ours: a sentence shows at most this many characters of an expression.
EXPRESSION_SHOWN_MAX: Final = 100


def tag_conflict(members: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Return a sentence with the conflict and its remedy; "" if there is none.

    members: client ids with the expression of each topic. A client that rejoined while still leaving appears
    twice; its last entry counts. A topic that only some members subscribe to is no conflict.
    """
    by_topic: dict[str, dict[str, list[str]]] = {}
    known: dict[str, str] = {}
    for client_id, expressions in dict(members).items():
        for topic, expression in expressions.items():
            if not topic.startswith(RETRY_PREFIX):
                if expression not in known:
                    known[expression] = canonical(expression)
                by_topic.setdefault(topic, {}).setdefault(known[expression], []).append(client_id)
    conflicts = [_named(topic, wanted) for topic, wanted in sorted(by_topic.items()) if len(wanted) > 1]
    if not conflicts:
        return ""
    more = f" (and {len(conflicts) - NAMED_MAX} more topics)" if len(conflicts) > NAMED_MAX else ""
    return (
        f"{'; '.join(conflicts[:NAMED_MAX])}{more}: each gets what its own expression selects of its "
        "queues, and the group passes over the rest; give all members the same expression, or separate groups"
    )


def canonical(expression: str) -> str:
    """Return the canonical form of an expression; an SQL92 expression is returned unchanged."""
    if expression.startswith(f"{SQL92}: "):
        return expression
    try:
        tag_filter = parse_tag_filter(expression)
    except ConfigError:
        return expression
    return ALL if tag_filter.expression == ALL else " || ".join(sorted(tag_filter.tags))


def _named(topic: str, wanted: Mapping[str, list[str]]) -> str:
    lots = [f"{_members(ids)} {_shown(expression)}" for expression, ids in list(wanted.items())[:NAMED_MAX]]
    return f"of {topic}, {' and '.join(lots)}"


def _members(ids: list[str]) -> str:
    distinct = list(dict.fromkeys(ids))
    more = f" and {len(distinct) - NAMED_MAX} more" if len(distinct) > NAMED_MAX else ""
    return f"{', '.join(distinct[:NAMED_MAX])}{more} want{'s' if len(distinct) == 1 else ''}"


def _shown(expression: str) -> str:
    short = expression if len(expression) <= EXPRESSION_SHOWN_MAX else f"{expression[:EXPRESSION_SHOWN_MAX]}…"
    return f"'{short}'"
