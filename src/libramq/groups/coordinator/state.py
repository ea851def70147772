"""The states of a coordinated group.

The first four are Kafka's (KIP-848): the coordinator shares out the queues. In the next two it has to find
out first who holds what, and in three more the members allocate for themselves.
"""

from enum import Enum
from typing import Final


class State(Enum):
    """One group's. The value says what is going on."""

    EMPTY = "it has no members, and nothing is to be shared out"
    ASSIGNING = "changes are collected; a new target assignment is due"
    RECONCILING = "queues are on their way to the members they are meant for"
    STABLE = "every queue is held by the member it is meant for"
    GATHERING = "another coordinator may have had it: fences are asked who reads what"
    AWAITING = "fences have answered: members that have queues open are given a session to come"
    SELF_ALLOCATING = "a stock member is there: all members allocate for themselves"
    PARTING = "the last stock member has left: what it commits last may still be on its way"
    RETURNING = "every member is asked, by its next poll, what it has"
    DEAD = "it was deleted, or lives elsewhere"


#: The coordinator shares out the queues.
ASSIGNED: Final = (State.EMPTY, State.ASSIGNING, State.RECONCILING, State.STABLE)
#: Who holds what is not known: members go on with what they say they hold, nothing is granted or recorded.
UNKNOWN: Final = (State.GATHERING, State.AWAITING)
#: Members allocate for themselves, or did until now.
SELF_ALLOCATED: Final = (State.SELF_ALLOCATING, State.PARTING, State.RETURNING)
#: Something is asked and waited for.
INQUIRING: Final = (*UNKNOWN, State.PARTING, State.RETURNING)
