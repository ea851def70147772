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
    """The queue was assigned to us. delay_ms: its last owner's time to commit. claim: the coordinator's.

    opened: by its fence, under that claim.
    """

    delay_ms: int
    claim: Claim | None
    opened: OpenedQueue | None = None


# Locks.


class LockGranted(Event, frozen=True):
    """The broker has granted or renewed its lock, by a request of this time."""

    address: str
    requested_ms: MonotonicMs


class LockRefused(Event, frozen=True):
    """Another member has its lock."""


class LockFailed(Event, frozen=True):
    """The broker did not answer a request for its lock."""

    error: LibraError


class LockDoubted(Event, frozen=True):
    """The connection to its broker ended: it may give the lock away."""


class LocksLifted(Event, frozen=True):
    """A coordinator allocates from now on, and grants are stronger than locks."""


# Its start offset.


class OffsetDue(Event, frozen=True):
    """The time has come to query the queue's offset, or to open it."""


class OffsetAnswered(Event, frozen=True):
    """Its committed offset is here (None: nothing is committed), or the query failed."""

    outcome: int | LibraError | None


class StartAnswered(Event, frozen=True):
    """The offset of its end, or of a time, is here, or the query failed."""

    outcome: int | LibraError


# Claims, in a coordinated group.


class Granted(Event, frozen=True):
    """The coordinator has granted it to us."""

    claim: Claim


class Opened(Event, frozen=True):
    """Its fence has opened it under the claim that was granted last."""

    claim: Claim
    answer: OpenedQueue


class OpenFenced(Event, frozen=True):
    """Its fence has opened it for another member, under a later epoch."""


class OpenFailed(Event, frozen=True):
    """The queue could not be opened. is_refused_for_long: by an answer, which will not change."""

    error: LibraError
    is_refused_for_long: bool


class PullRefused(Event, frozen=True):
    """Its fence refused a pull under a claim."""

    claim: Claim
    error: Fenced | NotYetGranted


class ClaimRefused(Event, frozen=True):
    """Its fence refused a commit under a claim."""

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
    """An operator has reset the group's offset in it."""

    offset: int


class Paused(Event, frozen=True):
    """The user has paused it."""


class Resumed(Event, frozen=True):
    """The user has resumed it."""


class Continued(Event, frozen=True):
    """Handlers may begin again, which a lease had forbidden."""


# The end.


class Unassigned(Event, frozen=True):
    """The queue is to be given up: handlers have `drain_ms` to end. 0: the time is over."""

    drain_ms: int


class HandlerEnded(Event, frozen=True):
    """A handler has returned, or a message was sent back, while it is being given up."""


class DrainTimedOut(Event, frozen=True):
    """Its handlers have had their time: their messages will be redelivered elsewhere."""


class ListenerDone(Event, frozen=True):
    """The listener has finished with it."""


class ListenerTimedOut(Event, frozen=True):
    """The listener has had its time."""


class MayCommit(Event, frozen=True):
    """Its commit was answered, or others' commits no longer hold it back."""


class TakenByOther(Event, frozen=True):
    """Another member has it, or may have it."""
