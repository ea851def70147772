"""The states of a coordinated group: who allocates queues in each, and what has to be found out first.

The first four are Kafka's (KIP-848): the coordinator assigns the queues. In the next two it has to find out
first who holds what, and in three more the members allocate for themselves.
"""

from enum import Enum
from typing import Final


class State(Enum):
    """The state of one group. The value describes it."""

    EMPTY = "it has no members, and nothing is assigned"
    ASSIGNING = "changes are collected; a new target assignment is due"
    RECONCILING = "queues are moving to the members they are meant for"
    STABLE = "every queue is held by the member it is meant for"
    GATHERING = "another coordinator may have had the group: the fences are asked who holds what"
    AWAITING = "the fences have answered: members with open queues have one session to return"
    SELF_ALLOCATING = "a stock member is present: all members allocate for themselves"
    PARTING = "the last stock member has left: its last commits may still arrive"
    RETURNING = "every member reports, by its next poll, the queues it holds"
    DEAD = "it was deleted, or another broker coordinates it"


#: The coordinator assigns the queues.
ASSIGNED: Final = (State.EMPTY, State.ASSIGNING, State.RECONCILING, State.STABLE)
#: Who holds what is unknown: members keep what they report, and nothing is granted or recorded.
UNKNOWN: Final = (State.GATHERING, State.AWAITING)
#: Members allocate for themselves, or did until now.
SELF_ALLOCATED: Final = (State.SELF_ALLOCATING, State.PARTING, State.RETURNING)
#: An inquiry is under way.
INQUIRING: Final = (*UNKNOWN, State.PARTING, State.RETURNING)
