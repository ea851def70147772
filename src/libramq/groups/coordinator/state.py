"""The states of a coordinated group, and the part that outlives its coordinator's process
(config/groups.json).

The first four states are Kafka's (KIP-848): the coordinator assigns the queues. In the next two it must first
find out who holds the queues, and in three more the members allocate for themselves.

The file is LibraMQ's own; a state is written before it is published.
"""

from collections.abc import Callable
from enum import Enum
from typing import Final

from libramq.fencing import MODE_EPOCHS, Claim
from libramq.formats.document import Document
from libramq.message.queue import MessageQueue

#: From the design: a member's default time limit for releasing a queue.
REVOKE_TIMEOUT_MS: Final = 10_000


class State(Enum):
    """The state of one group. The value describes it."""

    EMPTY = "it has no members, and nothing is assigned"
    ASSIGNING = "changes are collected; a new target assignment is due"
    RECONCILING = "queues are moving to the members they are meant for"
    STABLE = "every queue is held by the member it is meant for"
    GATHERING = "another coordinator may have had the group: the fences are queried for the holders of queues"
    AWAITING = "the fences have answered: members with open queues have one session to return"
    SELF_ALLOCATING = "a stock member is present: all members allocate for themselves"
    PARTING = "the last stock member has left: its last commits may still arrive"
    RETURNING = "every member reports, by its next poll, the queues it holds"
    DEAD = "it was deleted, or another broker coordinates it"


#: The coordinator assigns the queues.
ASSIGNED: Final = (State.EMPTY, State.ASSIGNING, State.RECONCILING, State.STABLE)
#: The holders are unknown: members keep the queues they report, and nothing is granted or recorded.
UNKNOWN: Final = (State.GATHERING, State.AWAITING)
#: Members allocate for themselves, or did until now.
SELF_ALLOCATED: Final = (State.SELF_ALLOCATING, State.PARTING, State.RETURNING)
#: An inquiry is under way.
INQUIRING: Final = (*UNKNOWN, State.PARTING, State.RETURNING)


class MemberProfile(Document, frozen=True, kw_only=True):
    """A member's description of itself.

    instance: the name of a static member. revoke_timeout_ms: its time limit for releasing a queue. orderly:
    whether it consumes in order; None if unknown.
    """

    member: str
    client_id: str
    session_ms: int
    instance: str | None = None
    subscriptions: dict[str, str] = {}
    strategy: str = "balanced_sticky"
    capacity: int = 1
    revoke_timeout_ms: int = REVOKE_TIMEOUT_MS
    orderly: bool | None = None

    @property
    def subscription_bytes(self) -> int:
        """Return the approximate memory that the subscriptions take."""
        return sum(len(topic) + len(expression) for topic, expression in self.subscriptions.items())


class StoredHolding(Document, frozen=True, kw_only=True):
    """A queue, its holder, and the epoch of its grant."""

    topic: str
    broker_name: str
    queue_id: int
    epoch: int
    member: str = ""


class GroupState(Document, frozen=True, kw_only=True):
    """One group: its members in joining order, and each queue's holder and epoch."""

    epoch: int = 0
    mode: str = MODE_EPOCHS
    members: list[MemberProfile] = []
    holdings: list[StoredHolding] = []

    @property
    def claims(self) -> dict[MessageQueue, Claim]:
        """Return the holder of each queue."""
        return {
            MessageQueue(each.topic, each.broker_name, each.queue_id): Claim(each.member, each.epoch)
            for each in self.holdings
        }


class GroupStatesFile(Document, frozen=True, kw_only=True):
    """The content of config/groups.json: groups by name."""

    groups: dict[str, GroupState] = {}


#: Persists a group's state; None removes it. Raises OSError if the disk refuses.
Record = Callable[[str, GroupState | None], None]
