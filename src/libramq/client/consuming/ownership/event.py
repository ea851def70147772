"""The events of an owned queue: everything that can happen to it; `transitions` has the action for each."""

from collections.abc import Sequence

import msgspec

from libramq.clock import MonotonicMs
from libramq.errors import Fenced, LibraError, NotYetGranted
from libramq.fencing import Claim, OpenedQueue
from libramq.message.message import MessageExt
from libramq.rpc.broker_calls import PullReply


class Event(msgspec.Struct, frozen=True):
    """Something that happens to an owned queue."""


class Taken(Event, frozen=True):
    """The queue was assigned to us.

    delay_ms: the time its last owner gets to commit. claim: the coordinator's. opened: its fence's answer to
    that claim.
    """

    delay_ms: int
    claim: Claim | None
    opened: OpenedQueue | None = None


# Locks.


class LockGranted(Event, frozen=True):
    """The broker has granted or renewed the lock, which was requested at this time."""

    address: str
    requested_ms: MonotonicMs


class LockRefused(Event, frozen=True):
    """Another member holds the lock."""


class LockFailed(Event, frozen=True):
    """The broker did not answer a request for the lock."""

    error: LibraError


class LockDoubted(Event, frozen=True):
    """The connection to the broker ended; the broker may give the lock away."""


class LocksLifted(Event, frozen=True):
    """A coordinator allocates from now on; its grants replace locks."""


# Its start offset.


class OffsetDue(Event, frozen=True):
    """The time has come to query the queue's offset, or to open it."""


class OffsetAnswered(Event, frozen=True):
    """The committed offset has arrived (None: nothing is committed), or the query failed."""

    outcome: int | LibraError | None


class StartAnswered(Event, frozen=True):
    """The offset of the queue's end, or of a time, has arrived, or the query failed."""

    outcome: int | LibraError


# Claims, in a coordinated group.


class Granted(Event, frozen=True):
    """The coordinator has granted the queue to us."""

    claim: Claim


class Opened(Event, frozen=True):
    """The fence has opened the queue under the claim that was granted last."""

    claim: Claim
    answer: OpenedQueue


class OpenFenced(Event, frozen=True):
    """The fence has opened the queue for another member, under a later epoch."""


class OpenFailed(Event, frozen=True):
    """The queue could not be opened. is_refused_for_long: its claim was refused for too long."""

    error: LibraError
    is_refused_for_long: bool


class PullRefused(Event, frozen=True):
    """The fence refused a pull under a claim."""

    claim: Claim
    error: Fenced | NotYetGranted


class ClaimRefused(Event, frozen=True):
    """The fence refused a commit under a claim."""

    claim: Claim
    error: Fenced | NotYetGranted


class ClaimsDropped(Event, frozen=True):
    """We allocate for ourselves from now on."""


# Reading.


class Pulled(Event, frozen=True):
    """A pull was answered."""

    outcome: PullReply | LibraError
    messages: Sequence[MessageExt]


class Sought(Event, frozen=True):
    """The program continues at another offset."""

    offset: int


class OffsetSet(Event, frozen=True):
    """An operator has reset the group's offset in the queue."""

    offset: int


class Paused(Event, frozen=True):
    """The user has paused the queue."""


class Resumed(Event, frozen=True):
    """The user has resumed the queue."""


class Continued(Event, frozen=True):
    """Handlers may begin again, because the lease holds again or no longer applies."""


# The end.


class Unassigned(Event, frozen=True):
    """The queue is to be released: handlers have `drain_ms` to finish. 0: the time is over."""

    drain_ms: int


class HandlerEnded(Event, frozen=True):
    """A handler has returned, or a message was sent back, during the queue's release."""


class DrainTimedOut(Event, frozen=True):
    """The drain time is over: messages of running handlers will be redelivered elsewhere."""


class ListenerDone(Event, frozen=True):
    """The listener has finished with the queue."""


class ListenerTimedOut(Event, frozen=True):
    """The listener's time is over."""


class MayCommit(Event, frozen=True):
    """The queue's commit was answered, or other commits no longer hold it back."""


class TakenByOther(Event, frozen=True):
    """Another member has the queue, or may have it."""
