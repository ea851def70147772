"""The timed events of a push consumer, each with a deadline of its own."""

from dataclasses import dataclass

from libramq.client.core.process_queue import Delivery
from libramq.message.queue import MessageQueue


@dataclass(frozen=True, slots=True)
class RoutesDue:
    """Look at the routes again."""


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Tell every broker that we live."""


@dataclass(frozen=True, slots=True)
class ReconnectDue:
    """Try a broker again that did not answer."""

    address: str


@dataclass(frozen=True, slots=True)
class PersistDue:
    """Commit what changed."""


@dataclass(frozen=True, slots=True)
class DeadlineDue:
    """Look for handlers that do not end."""


@dataclass(frozen=True, slots=True)
class RebalanceDue:
    """Look at the members again."""


@dataclass(frozen=True, slots=True)
class LoadDue:
    """The last owner has had its time, or a pause is over: ask for the committed offset."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class PullDue:
    """Try to pull again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class DrainOver:
    """Handlers of a queue that is no longer ours have had their time."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RedeliverDue:
    """Give messages to a handler again that could not be sent back."""

    delivery: Delivery


@dataclass(frozen=True, slots=True)
class LocksDue:
    """Renew the locks of our queues."""


@dataclass(frozen=True, slots=True)
class LockDue:
    """Try to lock a queue again."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class SuspendOver:
    """A queue whose handler failed has waited."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class RevokeOver:
    """The listener has had its time with a queue that is no longer ours."""

    queue: MessageQueue
    generation: int


@dataclass(frozen=True, slots=True)
class MembershipDue:
    """Ask the coordinator, or for it, again."""


@dataclass(frozen=True, slots=True)
class ReleaseDue:
    """Queues that were let go have waited for others to be released with."""


@dataclass(frozen=True, slots=True)
class ProcessingDue:
    """Look for handlers that run too long."""


@dataclass(frozen=True, slots=True)
class StopDue:
    """The time to stop in is over."""


Due = (
    RoutesDue
    | HeartbeatDue
    | ReconnectDue
    | PersistDue
    | DeadlineDue
    | RebalanceDue
    | LoadDue
    | PullDue
    | DrainOver
    | RedeliverDue
    | LocksDue
    | LockDue
    | SuspendOver
    | RevokeOver
    | MembershipDue
    | ReleaseDue
    | ProcessingDue
    | StopDue
)
