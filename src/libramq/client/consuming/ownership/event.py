"""The events of an owned queue: everything that can happen to it; `transitions` has the action for each."""

from collections.abc import Sequence
from dataclasses import dataclass

from libramq.clock import MonotonicMs
from libramq.errors import Fenced, LibraError, NotYetGranted
from libramq.fencing import Claim
from libramq.fencing import Opened as OpenedByFence
from libramq.message.message import MessageExt
from libramq.rpc.broker_calls import PullReply


@dataclass(frozen=True, slots=True)
class Taken:
    """The queue was assigned to us. delay_ms: its last owner's time to commit. claim: the coordinator's.

    opened: by its fence, under that claim.
    """

    delay_ms: int
    claim: Claim | None
    opened: OpenedByFence | None = None


# Locks.


@dataclass(frozen=True, slots=True)
class LockGranted:
    """The broker has granted or renewed its lock, by a request of this time."""

    address: str
    requested_ms: MonotonicMs


@dataclass(frozen=True, slots=True)
class LockRefused:
    """Another member has its lock."""


@dataclass(frozen=True, slots=True)
class LockFailed:
    """The broker did not answer a request for its lock."""

    error: LibraError


@dataclass(frozen=True, slots=True)
class LockDoubted:
    """The connection to its broker ended: it may give the lock away."""


@dataclass(frozen=True, slots=True)
class LocksLifted:
    """A coordinator allocates from now on, and grants are stronger than locks."""


# Its start offset.


@dataclass(frozen=True, slots=True)
class OffsetDue:
    """The time has come to query the queue's offset, or to open it."""


@dataclass(frozen=True, slots=True)
class OffsetAnswered:
    """Its committed offset is here (None: nothing is committed), or the query failed."""

    outcome: int | LibraError | None


@dataclass(frozen=True, slots=True)
class StartAnswered:
    """The offset of its end, or of a time, is here, or the query failed."""

    outcome: int | LibraError


# Claims, in a coordinated group.


@dataclass(frozen=True, slots=True)
class Granted:
    """The coordinator has granted it to us."""

    claim: Claim


@dataclass(frozen=True, slots=True)
class Opened:
    """Its fence has opened it under the claim that was granted last."""

    claim: Claim
    answer: OpenedByFence


@dataclass(frozen=True, slots=True)
class OpenFenced:
    """Its fence has opened it for another member, under a later epoch."""


@dataclass(frozen=True, slots=True)
class OpenFailed:
    """The queue could not be opened. is_refused_for_long: by an answer, which will not change."""

    error: LibraError
    is_refused_for_long: bool


@dataclass(frozen=True, slots=True)
class PullRefused:
    """Its fence refused a pull under a claim."""

    claim: Claim
    error: Fenced | NotYetGranted


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Its fence refused a commit under a claim."""

    claim: Claim
    error: Fenced | NotYetGranted


@dataclass(frozen=True, slots=True)
class ClaimsDropped:
    """We allocate for ourselves from now on."""


# Reading.


@dataclass(frozen=True, slots=True)
class Pulled:
    """A pull was answered."""

    outcome: PullReply | LibraError
    messages: Sequence[MessageExt]


@dataclass(frozen=True, slots=True)
class Sought:
    """The program continues at another offset."""

    offset: int


@dataclass(frozen=True, slots=True)
class OffsetSet:
    """An operator has reset the group's offset in it."""

    offset: int


@dataclass(frozen=True, slots=True)
class Paused:
    """The user has paused it."""


@dataclass(frozen=True, slots=True)
class Resumed:
    """The user has resumed it."""


@dataclass(frozen=True, slots=True)
class Continued:
    """Handlers may begin again, which a lease had forbidden."""


# The end.


@dataclass(frozen=True, slots=True)
class Unassigned:
    """The queue is to be given up: handlers have `drain_ms` to end. 0: the time is over."""

    drain_ms: int


@dataclass(frozen=True, slots=True)
class HandlerEnded:
    """A handler has returned, or a message was sent back, while it is being given up."""


@dataclass(frozen=True, slots=True)
class DrainTimedOut:
    """Its handlers have had their time: their messages will be redelivered elsewhere."""


@dataclass(frozen=True, slots=True)
class ListenerDone:
    """The listener has finished with it."""


@dataclass(frozen=True, slots=True)
class ListenerTimedOut:
    """The listener has had its time."""


@dataclass(frozen=True, slots=True)
class MayCommit:
    """Its commit was answered, or others' commits no longer hold it back."""


@dataclass(frozen=True, slots=True)
class TakenByOther:
    """Another member has it, or may have it."""


Event = (
    Taken
    | LockGranted
    | LockRefused
    | LockFailed
    | LockDoubted
    | LocksLifted
    | OffsetDue
    | OffsetAnswered
    | StartAnswered
    | Granted
    | Opened
    | OpenFenced
    | OpenFailed
    | PullRefused
    | ClaimRefused
    | ClaimsDropped
    | Pulled
    | Sought
    | OffsetSet
    | Paused
    | Resumed
    | Continued
    | Unassigned
    | HandlerEnded
    | DrainTimedOut
    | ListenerDone
    | ListenerTimedOut
    | MayCommit
    | TakenByOther
)
