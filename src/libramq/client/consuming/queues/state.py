"""The states of a queue that a consumer owns. `transitions` says what may follow what."""

from enum import Enum
from typing import Final


class QueueState(Enum):
    """The states, with their meanings."""

    NEW = "has just been assigned to us"
    LOCKING = "waits for its lock at the broker (orderly consumption)"
    WAITING = "waits until its last owner has had time to commit"
    OPENING = "its start offset is queried; in a coordinated group it is opened"
    READING = "is pulled, and its messages are handled"
    PAUSED = "was paused by the user"
    DOUBTED = "its lock may be lost: the connection to its broker ended"
    FORGOTTEN = "its fence has forgotten our opening; it is opened again"
    SEARCHING = "its offset was refused; what was stored since our last message is queried"
    MOVING = "its offset was set elsewhere; it is taken again when that is committed"
    DRAINING = "is being given up: handlers are running"
    REVOKING = "is being given up: the listener is at work"
    LEAVING = "is being given up: the last commit is awaited"
    GONE = "is released or lost"


#: The letters of the states, in their order, for drawing.
LETTERS: Final = "NLWORPDFSMGVEZ"
#: Tuples, not sets: a look-up in a set would hash an Enum, in Python.
OURS: Final = (
    QueueState.READING,
    QueueState.PAUSED,
    QueueState.OPENING,
    QueueState.WAITING,
    QueueState.LOCKING,
    QueueState.DOUBTED,
    QueueState.FORGOTTEN,
    QueueState.SEARCHING,
    QueueState.NEW,
)
#: It was pulled before, and its position is known.
POSITIONED: Final = (QueueState.READING, QueueState.PAUSED, QueueState.DOUBTED, QueueState.FORGOTTEN)
