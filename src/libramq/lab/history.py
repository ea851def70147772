"""The history: a group's queues, who is in it at first, and how that changes step by step.

    beginning ─► step: who went, and how; who joined; who subscribes to something else ─► step …

What changes within one step is seen at once: the group is balanced anew when the step is over.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from libramq.message.queue import MessageQueue

#: A member's topics.
Topics = frozenset[str]


class Departure(StrEnum):
    """How a member goes.

    LEFT: stopped cleanly. CRASHED: its process is killed, and its connection ends. LOST: nobody hears of it
    any more: its machine or network is gone, or it has frozen.
    """

    LEFT = "left"
    CRASHED = "crashed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The changes at one moment, by client id. at_ms: since the beginning. what: in words, for people."""

    at_ms: int
    what: str
    gone: Mapping[str, Departure] = field(default_factory=dict)
    joined: Mapping[str, Topics] = field(default_factory=dict)
    resubscribed: Mapping[str, Topics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One group's. kind: what such histories have in common. queues: by topic, each topic's sorted.

    has_zones: members and brokers are named by the zones they are in (crew.py).
    """

    group: str
    kind: str
    queues: Mapping[str, Sequence[MessageQueue]]
    members: Mapping[str, Topics]
    steps: Sequence[Step]
    has_zones: bool = True

    @property
    def queue_count(self) -> int:
        """How many queues there are to share."""
        return sum(map(len, self.queues.values()))
