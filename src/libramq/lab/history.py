"""The history: a group's queues, its first members, and its changes step by step.

        beginning ─► step: members that left, and how; that joined; that changed subscriptions ─► step …

Changes within one step are seen together: the group is balanced again after the step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from libramq.message.queue import MessageQueue

#: A member's topics.
Topics = frozenset[str]


class Departure(StrEnum):
    """The way in which a member leaves.

    LEFT: stopped gracefully. CRASHED: its process is killed, and its connection ends. LOST: it falls silent:
    its machine or network has failed, or it is frozen.
    """

    LEFT = "left"
    CRASHED = "crashed"
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The changes at one moment, by client id. at_ms: since the beginning. what: a description for people."""

    at_ms: int
    what: str
    gone: Mapping[str, Departure] = field(default_factory=dict)
    joined: Mapping[str, Topics] = field(default_factory=dict)
    resubscribed: Mapping[str, Topics] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One group's history. kind: shared by similar histories. queues: by topic, each topic's sorted.

    has_zones: members and brokers are named by the zones they are in (histories.py).
    """

    group: str
    kind: str
    queues: Mapping[str, Sequence[MessageQueue]]
    members: Mapping[str, Topics]
    steps: Sequence[Step]
    has_zones: bool = True

    @property
    def queue_count(self) -> int:
        """Return the number of queues."""
        return sum(map(len, self.queues.values()))
