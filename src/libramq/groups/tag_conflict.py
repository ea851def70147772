"""The tag conflict: when members of one group subscribe to different tags of one topic, so that messages are
passed over.

A queue is read by one member at a time, which gets what its own expression selects, and passes over the rest
for the whole group: members with the tags `a` and `b` each miss what lies in the other's queues.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from libramq.errors import ConfigError
from libramq.filter.sql import SQL92
from libramq.filter.tag import ALL, parse_tag_filter
from libramq.message.names import RETRY_PREFIX

#: Ours: how many topics, how many members of each expression and how much of an expression a sentence names.
NAMED_MAX: Final = 8
EXPRESSION_SHOWN_MAX: Final = 100


def tag_conflict(members: Iterable[tuple[str, Mapping[str, str]]]) -> str:
    """Return the conflict in a sentence with the remedy; "" if there is none.

    members: client ids, and the expression of each topic; of several of one client the last counts: it has
    subscribed anew, and is still leaving. A topic that only some subscribe to is no conflict.
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
    """Return an expression in the form shared by all that mean the same; an SQL92 one as it is."""
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
